"""Level 1 end to end on the CPU backend: every case against torch."""

from __future__ import annotations

import pytest
from live_cases import Case, check_case
from live_params import parameters

import flagprism_torch.backends.cpu as cpu


@pytest.fixture(scope="module", autouse=True)
def backend():
    """Cases run once without a session, which would register the backend."""
    assert cpu.register("test_live_cases")
    yield
    cpu.unregister("test_live_cases")


@pytest.mark.parametrize("case", parameters("cpu"))
def test_case(case: Case):
    assert check_case(case, "cpu") == 0.0
