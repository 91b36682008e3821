"""The case set on the device."""

from __future__ import annotations

import pytest
import test_cases as cpu
from case_runs import load, run, wrong_outputs, wrong_verdicts

NAMES = [name for name in cpu.NAMES if cpu.number(name) not in cpu.NOT_YET]


@pytest.mark.parametrize("name", NAMES)
def test_verdict(name: str, device: str) -> None:
    case, done = load(name), run(name, device)
    expect, session = case.EXPECT, done.session
    assert list(wrong_verdicts(expect, session.anomalies, session.table())) == []
    assert [hidden.statement for hidden in session.hidden] == expect.get("hidden", [])
    if case.MODE == "triton":
        assert list(wrong_outputs(case, done)) == []
