"""Findings: NaN is always one, inf only where it can be new; the log is bounded."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from oracle import block_of, entry_of

from flagprism_torch.analysis import join
from flagprism_torch.analysis.verdicts import AnomalyLog, by_block, findings
from flagprism_torch.records.model import Block, Origin, StatementOrigin

NAN, INF = np.nan, np.inf
FINE = [1.0, 2.0]

# (op, values) or (op, values, fields); one op of a kernel each
Ops = list[Any]


def _block(ops: Ops, **where: Any) -> Block:
    values = []
    for op_id, (op, numbers, *fields) in enumerate(ops):
        array = np.array(numbers, np.float32)
        given = fields[0] if fields else {}
        role = {"tt.load": "load", "tt.store": "store"}.get(op, "value")
        entry = entry_of(op_id, op, array, given.get("dtype", "fp32"), role=role)
        entry = type(entry)(**{**vars(entry), **given})
        values.append((entry, array, None))
    return block_of(values, **where)


def _found(ops: Ops) -> list[tuple[int, str]]:
    return [(row.op_id, kind) for row, kind in findings(join.rows(0, [_block(ops)]))]


def _log(*blocks: Block, steps: list[int] | None = None) -> AnomalyLog:
    log = AnomalyLog()
    for step, block in zip(steps or [0] * len(blocks), blocks, strict=True):
        log.add(step, [block])
    return log


def test_every_nan_is_a_finding() -> None:
    assert _found(
        [
            ("tt.load", [NAN, 1]),
            ("arith.select", [NAN, 1]),
            ("math.exp", FINE),
            ("tt.store", [NAN, 1]),
        ]
    ) == [(0, "nan"), (1, "nan"), (3, "nan")]


def test_a_row_with_both_gives_both() -> None:
    assert _found([("arith.divf", [NAN, INF])]) == [(0, "nan"), (0, "inf")]


@pytest.mark.parametrize(
    "op",
    [
        *("arith.mulf", "arith.addf", "arith.divf", "math.exp", "math.rsqrt", "arith.truncf"),
        *("tt.fp_to_fp", "tt.dot", "tt.extern_elementwise"),
    ],
)
def test_an_overflow_is_a_finding(op: str) -> None:
    assert _found([("tt.load", [1e30, 2.0]), (op, [INF, 1.0]), ("tt.store", [INF, 1.0])]) == [
        (1, "inf")
    ]


@pytest.mark.parametrize(
    "op",
    [
        *("tt.load", "tt.store", "arith.select", "arith.maximumf", "arith.maxnumf"),
        *("arith.minimumf", "arith.negf", "arith.extf", "tt.broadcast", "tt.expand_dims"),
    ],
)
def test_an_infinity_handed_on_is_none(op: str) -> None:
    assert _found([(op, [INF, -INF, 1.0])]) == []


def test_only_sums_among_reductions_make_infinities() -> None:
    summed = {"statement": "tmp1 = tl.sum(tmp0, 1)[:, None]"}
    largest = {"statement": "tmp1 = triton_helpers.max2(tmp0, 1)"}
    load = ("tt.load", FINE)
    assert _found([load, ("tt.reduce", INF, summed)]) == [(1, "inf")]
    assert _found([load, ("tt.reduce", -INF, largest)]) == []


def test_masked_softmax_is_silent() -> None:
    load, scores = ("tt.load", FINE), [-INF, 1.0]
    softmax: Ops = [
        ("arith.select", scores),
        ("arith.mulf", scores),
        ("tt.reduce", 1.0, {"statement": "m = tl.max(x)"}),
        ("arith.subf", [-INF, 0.0]),
        ("math.exp", [0.0, 1.0]),
        ("tt.store", [0.0, 1.0]),
    ]
    assert _found([load, *softmax]) == []
    assert _found([("tt.load", scores), *softmax[1:]]) == []


def test_a_running_maximum_that_starts_at_minus_inf_is_silent() -> None:
    kernel: Ops = [
        ("tt.load", [30.0, -20.0]),
        ("tt.reduce", 30.0, {"statement": "m = tl.max(x)"}),
        ("arith.subf", [-INF, -3.0]),  # old maximum - new maximum
        ("math.exp2", [0.0, 0.1]),
    ]
    assert _found(kernel) == []
    # but an overflow downwards is none of these: large operands were seen
    assert _found([("tt.load", [-3e38, 2.0]), ("arith.addf", [-INF, 4.0])]) == [(1, "inf")]
    assert _found([("tt.load", [-1e20, 1.0]), ("arith.mulf", [-INF, 1.0])]) == [(1, "inf")]
    half = {"dtype": "fp16"}
    assert _found([("tt.load", [6e4, 1.0], half), ("arith.subf", [-INF, 0.0], half)]) == [
        (1, "inf")
    ]


def test_signs_tell_a_new_infinity_from_a_sentinel() -> None:
    sentinel = ("tt.load", [-INF, 1.0])
    assert _found([sentinel, ("math.exp", [0.0, INF])]) == [(1, "inf")]
    assert _found([sentinel, ("math.log", [-INF, 0.0])]) == [(1, "inf")]
    assert _found([sentinel, ("arith.addf", [-INF, INF])]) == [(1, "inf")]
    assert _found([sentinel, ("arith.subf", [INF, 1.0])]) == []
    assert _found([sentinel, ("arith.truncf", [-INF, 1.0])]) == []


def test_a_found_infinity_explains_no_silence() -> None:
    assert _found([("math.exp", [INF, 1.0]), ("arith.mulf", [INF, 1.0])]) == [
        (0, "inf"),
        (1, "inf"),
    ]


def test_an_unknown_mask_silences_inf_but_not_nan() -> None:
    unknown = {"mask": "unknown"}
    assert _found([("arith.divf", [INF, NAN], unknown)]) == [(0, "nan")]


def test_by_block_separates_rows() -> None:
    one = _block([("tt.load", FINE), ("math.exp", FINE)])
    two = _block([("tt.load", FINE)], kernel="kernel_1")
    rows = join.rows(0, [one, one, two, two])
    assert [len(block) for block in by_block(rows)] == [2, 2, 1, 1]
    assert list(by_block([])) == []


def test_an_anomaly_carries_its_row() -> None:
    origin = Origin(
        statements={
            "tmp1": StatementOrigin(
                "layers.3.attn", ("layers.3.attn",), "aten._softmax", "/src/model.py", 88, "forward"
            )
        }
    )
    block = _block(
        [
            ("tt.load", FINE),
            ("arith.subf", [[1.0, NAN, NAN], [-INF, NAN, 2.0]]),
            ("tt.store", [NAN, 1.0], {"pointer": "out_ptr0"}),
        ],
        origin=origin,
        launch=41,
    )
    nan, stored = _log(block, steps=[5]).anomalies()
    assert (nan.kind, nan.verdict, nan.severity) == ("nan", "seen", "error")
    assert (nan.step, nan.last_step, nan.occurrences, nan.launch) == (5, 5, 1, 41)
    assert (nan.program, nan.iteration, nan.lane) == ((0, 0, 0), 0, (0, 1))
    assert dict(nan.counts) == {
        "lanes": 6,
        "live": 6,
        "padding": 0,
        "nan": 3,
        "posinf": 0,
        "neginf": 1,
    }
    assert (nan.module, nan.aten, nan.model_line) == ("layers.3.attn", "aten._softmax", 88)
    assert (stored.op, stored.cause) == ("tt.store", "stored through out_ptr0")
    assert str(nan) == (
        "SEEN nan | layers.3.attn | aten._softmax | model.py:88 | kernel_0 | tmp1 = arith.subf | "
        "3 of 6 lanes, first at program (0, 0, 0) lane (0, 1)"
    )
    with pytest.raises(TypeError):
        nan.counts["nan"] = 0  # type: ignore[index]


@pytest.mark.parametrize(
    ("store", "mask", "severity", "stored_nan"),
    [
        ([NAN], "valid", "error", True),
        ([1.0], "valid", "warning", False),
        ([INF], "valid", "warning", False),
        ([1.0], "unknown", "info", False),
        (None, "valid", "error", None),
    ],
)
def test_severity_of_a_nan(store: Any, mask: str, severity: str, stored_nan: bool | None) -> None:
    ops: Ops = [("math.log", [NAN, 1.0], {"mask": mask})]
    if store is not None:
        ops.append(("tt.store", store))
    first = _log(_block(ops)).anomalies()[0]
    assert (first.severity, first.details["stored_nan"]) == (severity, stored_nan)


def test_severity_of_an_inf() -> None:
    (anomaly,) = _log(_block([("math.exp", [INF, 1.0]), ("tt.store", [INF, 1.0])])).anomalies()
    assert (anomaly.kind, anomaly.severity, dict(anomaly.details)) == ("inf", "warning", {})


def test_one_anomaly_per_site_op_and_kind() -> None:
    quiet = _block([("math.log", [NAN, 1.0]), ("tt.store", FINE)])
    worse = _block([("math.log", [NAN, NAN]), ("tt.store", [NAN, NAN])])
    healthy = _block([("math.log", FINE), ("tt.store", FINE)])
    log = _log(quiet, quiet, healthy, worse, steps=[2, 2, 3, 7])
    log_nan, store_nan = log.anomalies()
    assert (log_nan.step, log_nan.last_step, log_nan.occurrences) == (2, 7, 3)
    assert log_nan.counts["nan"] == 2  # both blocks of step 2, not those of step 7
    assert log_nan.counts["lanes"] == 4
    assert log_nan.severity == "error"  # it was a warning in step 2
    assert (store_nan.step, store_nan.occurrences) == (7, 1)
    other = _block([("math.log", [NAN, 1.0])], kernel="kernel_1")
    log.add(8, [other])
    assert len(log) == 3


def test_order() -> None:
    late = _block([("math.exp", [INF]), ("math.log", [NAN])], kernel="a", launch=9)
    early = _block([("math.exp", [INF]), ("math.log", [NAN]), ("tt.store", [NAN])], launch=4)
    found = _log(late, early).anomalies()
    assert [(a.kind, a.launch, a.op_id) for a in found] == [
        ("nan", 4, 1),
        ("nan", 4, 2),
        ("nan", 9, 1),
        ("inf", 4, 0),
        ("inf", 9, 0),
    ]


def test_memory_is_bounded_and_what_is_left_out_counted() -> None:
    log = AnomalyLog(capacity=3)
    for step in range(4):
        log.add(step, [_block([("math.log", [NAN])], kernel=f"k{i}") for i in range(5)])
    assert len(log) == 3
    assert {a.occurrences for a in log.anomalies()} == {4}
    assert log.left_out == 8
