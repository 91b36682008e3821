"""Level 1 on an accelerator: every case against torch, and outputs unchanged by the session."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from live_cases import Case, check_case
from live_params import parameters


def _device() -> str:
    found = torch.accelerator.current_accelerator(check_available=True)
    return "cpu" if found is None else found.type


@pytest.mark.parametrize("case", parameters(_device()))
def test_case(case: Case, device: str, say: Callable[[str], None]):
    gap = check_case(case, device)
    say(f"largest output difference {gap:g}")
    assert gap == 0.0
