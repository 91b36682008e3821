"""The case set on the device."""

from __future__ import annotations

import pytest
import test_cases as cpu
from case_runs import expected, load, run, wrong_outputs, wrong_verdicts

NAMES = [name for name in cpu.NAMES if cpu.number(name) not in cpu.NOT_YET]

# As test_cases.NOT_YET, for what only an accelerator does.
NOT_YET = {
    "30": "replays of a CUDA graph that was captured inside the session are not recorded yet",
}


@pytest.mark.parametrize("name", NAMES)
def test_verdict(name: str, device: str, request: pytest.FixtureRequest) -> None:
    if cpu.number(name) in NOT_YET and device != "cpu":
        reason = NOT_YET[cpu.number(name)]
        request.applymarker(pytest.mark.xfail(strict=True, reason=reason, raises=AssertionError))
    case, done = load(name), run(name, device)
    expect, session = expected(case, device), done.session
    assert list(wrong_verdicts(expect, session.anomalies, session.table())) == []
    assert [hidden.statement for hidden in session.hidden] == expect.get("hidden", [])
    if case.MODE == "triton":
        assert list(wrong_outputs(case, done, device)) == []
