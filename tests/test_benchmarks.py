"""The benchmarks run from start to end with small sizes, keep their results and print one table."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.measure import geometric_mean, interleaved, plain
from benchmarks.rows import GROUPS
from benchmarks.run import main, table
from flagprism_torch.backends.cpu import register, unregister


@pytest.fixture(scope="module", autouse=True)
def backend():
    """Sessions register the backend for good; here it goes with the last test."""
    registered = register("benchmarks")  # False beside a GPU
    yield
    if registered:
        unregister("benchmarks")


@pytest.mark.slow
def test_small_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    results = tmp_path / "results.json"
    assert main(["--small", "--results", str(results)]) == 0
    printed = capsys.readouterr().out
    kept = json.loads(results.read_text())
    assert list(kept) == list(GROUPS)
    for found in kept.values():
        assert {"device", "torch", "triton", "date"} <= set(found["conditions"])
        assert all(line["ms"] > 0 for line in found["lines"])
        assert all(line["ratio"] is None or line["ratio"] > 0 for line in found["lines"])
    assert printed.strip() == table(kept).strip()
    notes = {line["what"]: line["note"] for line in kept["step"]["lines"]}
    assert "0 stepped down" in notes["level 1"] and "not instrumented" not in notes["level 1"]
    assert main(["--small", "--results", str(results)]) == 0  # nothing is measured again
    assert json.loads(results.read_text()) == kept


def test_kept_results_are_shown_and_wrong_rows_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    results = tmp_path / "results.json"
    lines = [{"what": "base", "ms": 2.0, "ratio": None, "note": "n"}]
    lines.append({"what": "tool", "ms": 3.0, "ratio": 1.5, "note": ""})
    results.write_text(json.dumps({"step": {"conditions": {"torch": "1"}, "lines": lines}}))
    assert main(["step", "--small", "--results", str(results)]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert any(line.split() == ["base", "2.0000", "n"] for line in printed)
    assert any(line.split() == ["tool", "3.0000", "1.50x"] for line in printed)
    with pytest.raises(SystemExit):
        main(["nothing"])
    assert "unknown rows nothing; allowed: compile, reuse, step" in capsys.readouterr().err


def test_variants_take_turns():
    seen: list[str] = []
    found = interleaved(
        {name: lambda name=name: plain(lambda: seen.append(name)) for name in "ab"}, "cpu", 2, 2
    )
    assert "".join(seen) == "aaabbb" * 2  # one step that is not measured, then two
    assert set(found) == {"a", "b"}
    assert geometric_mean([1.0, 4.0]) == pytest.approx(2.0)
