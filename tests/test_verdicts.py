"""Verdicts inside one kernel: births and their chains, loaded and unexplained NaNs, what is hidden,
severity, and the bounded log."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from graph_blocks import Step, kernel, load, store

from flagprism_torch.analysis import join
from flagprism_torch.analysis.verdicts import AnomalyLog
from flagprism_torch.exporters.tensorboard import TensorBoardWriter
from flagprism_torch.records.model import Anomaly, Block, Found, Origin, StatementOrigin

NAN, INF = np.nan, np.inf
FINE = [1.0, 2.0]
BORN = (1, 0, 0, 0)


def log_of(*blocks: Block, steps: Sequence[int] = ()) -> AnomalyLog:
    log = AnomalyLog()
    for step, block in zip(steps or [0] * len(blocks), blocks, strict=True):
        log.add(step, [block])
    return log


def only(steps: Sequence[Step], **where: Any) -> Anomaly:
    (anomaly,) = log_of(kernel(steps, **where)).anomalies()
    return anomaly


def silent(steps: Sequence[Step]) -> bool:
    log = log_of(kernel(steps))
    return log.anomalies() == () == log.hidden()


SOFTMAX = [
    load([-INF, -INF]),
    Step("tt.reduce", -INF, (0,)),
    Step("arith.subf", [NAN, NAN], (0, 1), (2, 0, 0, 1), bits=2, rule="sub"),
    Step("math.exp", [NAN, NAN], (2,)),
    store(3, [NAN, NAN]),
]


def test_a_birth() -> None:
    origin = Origin(
        statements={
            "tmp2": StatementOrigin(
                "layers.3.attn", ("layers.3.attn",), "aten._softmax", "/src/model.py", 88, "forward"
            )
        }
    )
    one = only(SOFTMAX, launch=41, origin=origin)
    assert (one.kind, one.verdict, one.severity, one.op) == ("nan", "born", "error", "arith.subf")
    assert (one.launch, one.program, one.iteration, one.lane) == (41, (1, 2, 3), 4, 5)
    assert dict(one.counts) == {
        "lanes": 2, "live": 2, "padding": 1, "nan": 2, "posinf": 0, "neginf": 0,
    }  # fmt: skip
    assert one.cause == "inf - inf"
    left, right = one.operands
    assert (left["name"], left["live"], left["neginf"], left["nan"]) == ("tmp0", 2, 2, 0)
    assert (right["name"], right["live"], right["min"]) == ("tmp1", 1, None)
    assert one.details["padding"] is True
    assert one.details["padding_only"] is False
    assert one.details["stored_nan"] is True
    passed = [entry["op_id"] for entry in one.details["passed"]]
    assert passed == [3, 4]
    assert one.details["visible"]["op_id"] == 4
    (birth,) = one.births
    assert (birth.op_id, birth.kind, birth.births) == (2, "nan", ())
    assert str(one) == (
        "BORN nan | layers.3.attn | aten._softmax | model.py:88 | kernel_0 | tmp2 = arith.subf | "
        "2 of 2 lanes, first at program (1, 2, 3) lane 5 iteration 4"
    )
    with pytest.raises(TypeError):
        one.counts["nan"] = 0  # type: ignore[index]


def test_births_that_lead_to_each_other_are_one_chain() -> None:
    steps = [
        load([100.0, 0.0]),
        Step("math.exp", [INF, 1.0], (0,), (0, 1, 0, 0), rule="exp"),
        Step("arith.addf", [INF, 2.0], (1,), (0, 0, 0, 0)),
        Step("arith.divf", [NAN, 1.0], (2, 2), BORN, bits=2, rule="div"),
        store(3, [NAN, 1.0]),
    ]
    one = only(steps)
    assert (one.kind, one.op, one.severity) == ("inf", "math.exp", "error")
    assert [(b.kind, b.op, b.cause) for b in one.births] == [
        ("inf", "math.exp", "exp overflows fp32"),
        ("nan", "arith.divf", "inf / inf"),
    ]
    assert [entry["op_id"] for entry in one.details["passed"]] == [4]


def test_births_without_a_way_between_them_are_two() -> None:
    steps = [
        load(FINE),
        Step("math.log", [NAN, 1.0], (0,), BORN, rule="log"),
        Step("math.sqrt", [NAN, 1.0], (0,), BORN, rule="sqrt"),
        store(1, [NAN, 1.0]),
        store(2, [NAN, 1.0], "out_ptr1"),
    ]
    first, second = log_of(kernel(steps)).anomalies()
    assert (first.op, second.op) == ("math.log", "math.sqrt")
    assert [first.details["visible"]["op_id"], second.details["visible"]["op_id"]] == [3, 4]


def test_a_check_with_both_kinds_gives_two_births() -> None:
    steps = [
        load([0.0, 1.0]),
        Step("arith.divf", [NAN, INF], (0,), (1, 1, 0, 2), bits=1, rule="div"),
        store(1, [NAN, INF]),
    ]
    one = only(steps)
    assert [(b.kind, b.cause) for b in one.births] == [("nan", "0 / 0"), ("inf", "x / 0")]
    assert one.kind == "nan"
    assert all(b.details["padding_only"] for b in one.births)
    # of one padding lane nobody knows which kind it had
    unknown = [steps[0], dataclasses.replace(steps[1], born=(1, 1, 0, 1)), steps[2]]
    assert all("padding" not in b.details for b in only(unknown).births)


def test_a_check_without_a_row() -> None:
    """The row of its statement tells lanes and owner: `exp(x - m)` has one for the exponential."""
    steps = [
        load([1.0, 2.0]),
        Step("arith.subf", [NAN, 1.0], (0,), BORN, row=False, rule="sub"),
        store(1, [NAN, 1.0]),
    ]
    softmax = StatementOrigin("attn", ("attn",), "aten._softmax", "/src/model.py", 88, "forward")
    one = only(steps, origin=Origin(statements={"tmp1": softmax}))
    assert (one.op_id, one.module) == (-1, "attn")
    assert (one.counts["lanes"], one.counts["live"]) == (2, 2)
    assert [entry["op_id"] for entry in one.details["passed"]] == [1, 2]
    block = kernel(steps)
    (check,) = block.table.checks
    for shape, lanes in (((4,), 4), ((), 1)):  # a reduction in one statement with its operand
        table = dataclasses.replace(
            block.table, checks=(dataclasses.replace(check, shape=shape, variable=None),)
        )
        (one,) = log_of(dataclasses.replace(block, table=table)).anomalies()
        assert (one.counts["lanes"], one.counts["live"]) == (lanes, lanes)


def test_what_does_not_leave_the_kernel_is_hidden() -> None:
    for bad, kind in (([NAN, 1.0], "nan"), ([INF, 1.0], "inf")):
        born = BORN if kind == "nan" else (0, 1, 0, 0)
        steps = [
            load([0.0, 1.0]),
            Step("math.log", bad, (0,), born, rule="log", bits=1),
            Step("arith.select", FINE, (1,)),
            store(2, FINE),
        ]
        log = log_of(kernel(steps))
        assert log.anomalies() == ()
        (hidden,) = log.hidden()
        assert (hidden.kind, hidden.op) == (kind, "math.log")
        assert hidden.details.get("stored_nan") is (False if kind == "nan" else None)
    # another store of the kernel does not matter, one that is reached does
    other = [*steps, load([NAN, NAN], "in_ptr1"), store(4, [NAN, NAN], "out_ptr1")]
    log = log_of(kernel(other))
    assert [one.verdict for one in log.anomalies()] == ["loaded"]
    assert len(log.hidden()) == 1


def test_a_loaded_nan_that_is_not_stored_is_hidden() -> None:
    steps = [load([NAN, 1.0]), Step("arith.select", FINE, (0,)), store(1, FINE)]
    log = log_of(kernel(steps))
    assert log.anomalies() == ()
    assert [one.verdict for one in log.hidden()] == ["loaded"]


@pytest.mark.parametrize(
    ("left_out", "hidden"),
    [
        ({}, True),
        ({"index arithmetic": 3, "never needed": 1}, True),
        ({"noinline call": 1}, False),
        ({"type !tt.ptr": 1}, False),
        ({"no source location": 1}, False),
        ({"max_values": 2}, True),  # stores are left out last, and there are other values
    ],
)
def test_what_may_have_left_the_kernel_is_not_hidden(left_out: Any, hidden: bool) -> None:
    steps = [load(FINE), Step("math.log", [NAN, 1.0], (0,), BORN, rule="log"), store(0, FINE)]
    block = kernel(steps)
    table = dataclasses.replace(block.table, left_out=left_out)
    log = log_of(dataclasses.replace(block, table=table))
    assert len(log.hidden()) == hidden
    if not hidden:
        (one,) = log.anomalies()
        assert (one.severity, one.details["stored_nan"]) == ("warning", None)


def test_an_atomic_does_not_show_what_it_adds() -> None:
    atomic = Step("tt.atomic_rmw", FINE, (1,), role="atomic", pointer="out_ptr0")
    steps = [load(FINE), Step("math.log", [NAN, 1.0], (0,), BORN, rule="log"), atomic]
    assert only(steps).severity == "warning"
    # a later program reads it back: that is no NaN from elsewhere
    read = dataclasses.replace(atomic, values=[NAN, 1.0])
    one = only([*steps[:2], read])
    assert (one.verdict, one.severity, one.op) == ("born", "error", "math.log")
    assert [entry["op_id"] for entry in one.details["passed"]] == [2]


def test_a_loaded_nan() -> None:
    steps = [
        load([NAN, 1.0], "v_ptr"),
        load([0.0, 1.0], "w_ptr"),
        Step("arith.mulf", [NAN, 1.0], (0, 1), (0, 0, 0, 0), rule="mul"),
        Step("tt.reduce", NAN, (2,)),
        store(3, NAN),
    ]
    one = only(steps)
    assert (one.verdict, one.severity, one.op_id, one.births) == ("loaded", "error", 0, ())
    assert one.cause == "loaded through v_ptr"
    assert one.details["argument"] == "v_ptr"
    assert [entry["op_id"] for entry in one.details["passed"]] == [2, 3, 4]
    assert dict(one.counts)["nan"] == 1


def test_a_loaded_nan_and_a_birth_are_two_chains() -> None:
    steps = [
        load([NAN, 1.0]),
        Step("math.log", [NAN, NAN], (0,), BORN, rule="log"),
        store(1, [NAN, NAN]),
    ]
    loaded, born = log_of(kernel(steps)).anomalies()
    assert (loaded.verdict, born.verdict) == ("loaded", "born")


def test_infinities_that_nothing_explains_are_silent() -> None:
    scores = [-INF, 1.0]
    assert silent(
        [
            load(scores),
            Step("arith.mulf", scores, (0,), (0, 0, 0, 0)),
            Step("arith.divf", [INF, 1.0], (1,)),  # not checked
            store(2, [INF, 1.0]),
        ]
    )
    assert silent([load([INF, -INF]), store(0, [INF, -INF])])


def test_a_nan_that_nothing_explains_is_seen_once() -> None:
    steps = [
        load(FINE),
        Step("tt.call", [NAN, 1.0], (0,)),
        Step("math.exp", [NAN, 1.0], (1,)),
        store(2, [NAN, 1.0]),
    ]
    one = only(steps)
    assert (one.verdict, one.severity, one.op) == ("seen", "error", "tt.call")
    assert [entry["op_id"] for entry in one.details["passed"]] == [2, 3]
    assert one.cause == ""
    stored = only([store(0, [NAN, 1.0])])
    assert (stored.verdict, stored.cause, stored.severity) == (
        "seen", "stored through out_ptr0", "error",
    )  # fmt: skip


@pytest.mark.parametrize(("stored", "severity"), [([NAN, 1.0], "warning"), (FINE, None)])
def test_unknown_need_is_seen_not_born(stored: Any, severity: str | None) -> None:
    for first in (
        [Step("math.log", [NAN, 1.0], (), BORN, rule="log", check_mask="unknown")],
        [load([NAN, 1.0], mask="unknown")],
    ):
        log = log_of(kernel([*first, store(0, stored)]))
        (one,) = log.hidden() if severity is None else log.anomalies()
        assert (one.verdict, one.severity) == ("seen", severity or "info")


def test_severity_of_an_infinity() -> None:
    steps = [
        load(FINE),
        Step("math.exp", [INF, 1.0], (0,), (0, 1, 0, 0), rule="exp"),
        store(1, [INF, 1.0]),
    ]
    one = only(steps)
    assert (one.kind, one.severity, "stored_nan" in one.details) == ("inf", "warning", False)
    assert [entry["op_id"] for entry in one.details["passed"]] == [2]


def test_loops_do_not_confuse_the_order() -> None:
    """A carried value leads back to an earlier check."""
    block = kernel(
        [
            load(FINE),
            Step("math.exp", [INF, 1.0], (0,), (0, 1, 0, 0), rule="exp"),
            Step("arith.subf", [NAN, 1.0], (1,), BORN, rule="sub"),
            store(2, [NAN, 1.0]),
        ]
    )
    both = tuple(dataclasses.replace(c, leads=(0, 1)) for c in block.table.checks)
    table = dataclasses.replace(block.table, checks=both)
    (one,) = log_of(dataclasses.replace(block, table=table)).anomalies()
    assert [b.op for b in one.births] == ["math.exp", "arith.subf"]


def test_order() -> None:
    def mixed(launch: int, name: str) -> Block:
        steps = [
            load(FINE),
            Step("math.exp", [INF, 1.0], (0,), (0, 1, 0, 0), rule="exp"),
            Step("math.log", [NAN, 1.0], (0,), BORN, rule="log"),
            Step("math.sqrt", [NAN, 1.0], (0,), BORN, rule="sqrt"),
            store(1, [INF, 1.0]),
            store(2, [NAN, 1.0], "b"),
            store(3, [NAN, 1.0], "c"),
            Step("arith.muli", FINE, (), (3, 0, 0, 0), kind="wrap"),
        ]
        return kernel(steps, launch=launch, kernel=name)

    found = log_of(mixed(9, "a"), mixed(4, "b")).anomalies()
    assert [(a.kind, a.launch, a.op) for a in found] == [
        ("nan", 4, "math.log"),
        ("nan", 4, "math.sqrt"),
        ("nan", 9, "math.log"),
        ("nan", 9, "math.sqrt"),
        ("inf", 4, "math.exp"),
        ("inf", 9, "math.exp"),
        ("int_overflow", 4, "arith.muli"),
        ("int_overflow", 9, "arith.muli"),
    ]


def test_one_anomaly_per_site_operation_and_kind() -> None:
    def log_kernel(nan: int, left: Any, name: str = "kernel_0") -> Block:
        values = [NAN if i < nan else 1.0 for i in range(2)]
        steps = [load(FINE), Step("math.log", values, (0,), (nan, 0, 0, 0), rule="log")]
        return kernel([*steps, Step("x", values, (1,)), store(2, left)], kernel=name)

    quiet, worse = log_kernel(1, FINE), log_kernel(2, [NAN, NAN])
    unknown = dataclasses.replace(quiet.table, left_out={"noinline call": 1})
    quiet = dataclasses.replace(quiet, table=unknown)
    healthy = log_kernel(0, FINE)
    log = log_of(quiet, quiet, healthy, worse, steps=[2, 2, 3, 7])
    (one,) = log.anomalies()
    assert (one.step, one.last_step, one.occurrences) == (2, 7, 3)
    assert one.counts["nan"] == 2  # both blocks of step 2, not that of step 7
    assert one.counts["lanes"] == 4
    assert one.severity == "error"  # it was a warning in step 2
    log.add(8, [log_kernel(1, [NAN, 1.0], "kernel_1")])
    assert len(log) == 2
    copied = log.copy()
    copied.add(9, [log_kernel(1, [NAN, 1.0], "kernel_2")])
    assert (len(log), len(copied)) == (2, 3)


def test_memory_is_bounded_and_what_is_left_out_counted() -> None:
    def block(name: str) -> Block:
        values = [NAN, 1.0]
        steps = [load(FINE), Step("math.log", values, (0,), BORN, rule="log"), store(1, values)]
        return kernel(steps, kernel=name)

    log = AnomalyLog(capacity=3)
    for step in range(4):
        log.add(step, [block(f"k{i}") for i in range(5)])
    assert len(log) == 3
    assert {a.occurrences for a in log.anomalies()} == {4}
    assert log.left_out == 8
    assert log.values() == {(f"wrapper.py:k{i}", f"k{i}", 1) for i in range(3)}


def test_values_with_an_anomaly_have_a_chart(tmp_path: Path) -> None:
    """An infinity too, which its row alone does not show to be one."""
    steps = [
        load([100.0, INF]),
        Step("math.exp", [INF, INF], (0,), (0, 1, 0, 0), rule="exp"),
        Step("arith.mulf", [INF, INF], (1,), (0, 0, 0, 0)),
        store(2, [INF, INF]),
    ]
    block = kernel(steps)
    log = log_of(block)
    assert log.values() == {("wrapper.py:kernel_0", "kernel_0", 1)}
    with TensorBoardWriter(tmp_path, "kernel") as writer:
        writer.write(0, join.rows(0, [block]), log.values())
    accumulator = pytest.importorskip(
        "tensorboard.backend.event_processing.event_accumulator"
    ).EventAccumulator(str(tmp_path))
    accumulator.Reload()
    charts = {tag.split("/")[-2] for tag in accumulator.Tags()["scalars"]}
    assert charts == {"L11.tmp1", "L13.tmp3"}


def test_long_chains_are_cut() -> None:
    steps = [load(FINE)]
    steps += [Step("math.log", [NAN, 1.0], (i,), BORN, rule="log") for i in range(70)]
    steps += [Step("arith.extf", [NAN, 1.0], (i,)) for i in range(70, 140)]
    one = only([*steps, store(140, [NAN, 1.0])])
    assert len(one.births) == 64
    assert len(one.details["passed"]) == 64
    assert one.details["left_out"] == (70 - 64) + (71 - 64)
    assert one.details["visible"]["role"] == "store"


@pytest.mark.parametrize(
    ("kind", "counters", "anomaly"),
    [
        ("undefined", (12, 0, 0), ("undefined_lanes", "undefined_lanes")),
        ("wrap", (2, 0, 0), ("int_overflow", "wrapped_lanes")),
        ("stagnation", (100, 200, 0), ("stagnation", "lost_additions")),
        ("stagnation", (100, 2000, 0), None),
        ("stagnation", (100, 0, 0), ("stagnation", "lost_additions")),
        ("saturation", (1, 0, 0), ("saturation", "saturated_lanes")),
        ("tf32", (1024, 1024, 0), ("precision", "operand_lanes_not_tf32")),
        ("tf32", (1024, 500, 524), None),
        ("tf32", (31, 0, 31), None),
    ],
)
def test_other_kinds(kind: str, counters: Any, anomaly: Any) -> None:
    steps = [
        Step("tt.load", FINE, (), (1, 0, 0, 0), kind=kind, role="load"),
        Step("tt.reduce", 2.0, (0,)),
        store(1, 2.0),
    ]
    block = kernel(steps, launch=6)
    place = (6, (1, 0, 0), 0, 13, 0)
    found = log_of(dataclasses.replace(block, found={0: Found(*counters, 0, place)})).anomalies()
    if anomaly is None:
        assert found == ()
        return
    (one,) = found
    assert (one.kind, one.verdict, one.severity) == (anomaly[0], "found", "warning")
    assert dict(one.details) == {anomaly[1]: counters[0], "consumer": "tmp1 = tt.reduce"}
    assert (one.launch, one.program, one.lane) == (6, (1, 0, 0), 13)
    assert one.cause
