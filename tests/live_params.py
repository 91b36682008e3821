"""The cases of live_cases as pytest parameters, with what is known to fall short."""

from __future__ import annotations

from typing import Any

import pytest
from live_cases import cases

SHORT = {
    "fp64_squares_overflow": "sums of squares of fp64 values are not scaled yet: l2 overflows",
}


def parameters(device: str) -> list[Any]:
    """One parameter for each case; those in `SHORT` must fail."""
    return [
        pytest.param(
            case,
            id=case.name,
            marks=[pytest.mark.xfail(reason=SHORT[case.name])] if case.name in SHORT else [],
        )
        for case in cases(device)
    ]
