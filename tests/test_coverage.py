"""Coverage: exact counts from any thread, in one line and in full."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor

from flagprism_torch.analysis.coverage import Coverage


def _filled() -> Coverage:
    coverage = Coverage()
    for number in range(41):
        coverage.saw(f"k{number}")
        coverage.saw(f"k{number}")
        coverage.instrumented(f"k{number}")
    coverage.passed("k41", "benchmark")
    coverage.passed("k41", "benchmark")
    coverage.passed("k42", "stream capture")
    coverage.not_instrumented("k43", "out of shared memory")
    coverage.extern("aten.bmm", 4)
    coverage.extern("aten.addmm")
    coverage.extern("aten.addmm", 11)
    return coverage


def test_nothing() -> None:
    coverage = Coverage()
    assert coverage.line() == "0 of 0 Triton kernels seen, 0 instrumented, 0 stepped down"
    assert str(coverage) == coverage.line() + "\n  launches recorded: 0"


def test_line() -> None:
    assert _filled().line() == (
        "41 of 44 Triton kernels seen, 41 instrumented, 0 stepped down; 1 not instrumented; "
        "3 launches passed through unrecorded; "
        "extern calls not visible: aten.addmm x12, aten.bmm x4"
    )


def test_line_names_the_most_frequent_extern_calls_and_counts_the_rest() -> None:
    coverage = Coverage()
    for n in range(1, 8):
        coverage.extern(f"aten.op{n}", n)
    assert coverage.line().endswith(
        "aten.op7 x7, aten.op6 x6, aten.op5 x5, aten.op4 x4, aten.op3 x3, and 2 more"
    )
    assert "aten.op1 x1" in str(coverage)


def test_reasons() -> None:
    coverage = _filled()
    coverage.stepped_down("k1", "out of registers: stores only")
    coverage.left_out("k1", "max_values", 3)
    coverage.left_out("k1", "max_values", 2)  # another twin of the same kernel
    coverage.left_out("k1", "unsupported type", 1)
    coverage.provenance("recorded", 30)
    coverage.provenance("none")
    coverage.launches(100)
    coverage.launches(5)
    coverage.note("cpp_wrapper is on")
    coverage.note("cpp_wrapper is on")
    assert "1 stepped down" in coverage.line()
    assert "4 values left out" in coverage.line()
    assert str(coverage).splitlines()[1:] == [
        "  launches recorded: 105",
        "  provenance of call sites: recorded 30, none 1",
        "  stepped down: k1: out of registers: stores only",
        "  not instrumented: k43: out of shared memory",
        "  passed: k41 x2: benchmark",
        "  passed: k42 x1: stream capture",
        "  left out: 3 values of k1: max_values",
        "  left out: 1 value of k1: unsupported type",
        "  note: cpp_wrapper is on",
    ]
    as_dict = coverage.to_dict()
    assert json.loads(json.dumps(as_dict)) == as_dict
    assert as_dict["extern"] == {"aten.addmm": 12, "aten.bmm": 4}


def test_a_dict_is_a_copy() -> None:
    coverage = _filled()
    coverage.to_dict()["extern"].clear()
    assert coverage.to_dict()["extern"]["aten.bmm"] == 4


def test_threads() -> None:
    coverage = Coverage()

    def work(thread: int) -> None:
        for n in range(500):
            coverage.saw(f"k{n % 7}")
            coverage.launches(1)
            coverage.passed("k0", f"reason {thread % 2}")
            coverage.extern("aten.mm")
            coverage.line()

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))
    now = coverage.to_dict()
    assert (now["seen"], now["launches"], now["extern"]) == (7, 4000, {"aten.mm": 4000})
    assert [entry["launches"] for entry in now["passed"]] == [2000, 2000]


def test_left_out_values_are_grouped_by_reason():
    coverage = Coverage()
    coverage.left_out("one", "index arithmetic", 3)
    coverage.left_out("two", "index arithmetic", 4)
    coverage.left_out("two", "max_values", 1)
    lines = str(coverage).splitlines()
    assert "  left out: 7 values of 2 kernels: index arithmetic" in lines
    assert "  left out: 1 value of two: max_values" in lines
