"""Rows against NumPy, and who owns them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from oracle import block_of, entry_of

from flagprism_torch.analysis import join
from flagprism_torch.analysis.totals import merged
from flagprism_torch.records.model import Block, CallSite, Origin, Row, StatementOrigin


def _row(array: Any, dtype: str, mask: Any = None, **fields: Any) -> Row:
    entry = entry_of(0, "arith.addf", array, dtype, **fields)
    (row,) = join.rows(0, [block_of([(entry, array, mask)])])
    return row


FLOATS = st.floats(width=32, allow_nan=True, allow_infinity=True)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(FLOATS, st.booleans()), min_size=1, max_size=40))
def test_floats_match_numpy(lanes: list[tuple[float, bool]]) -> None:
    array = np.array([x for x, _ in lanes], np.float32)
    mask = np.array([live for _, live in lanes])
    row = _row(array, "fp32", mask)
    live = array[mask].astype(np.float64)
    finite = live[np.isfinite(live)]
    assert (row.executions, row.lanes, row.live) == (1, len(array), len(live))
    assert (row.nan, row.zero) == (np.isnan(live).sum(), (live == 0).sum())
    assert (row.posinf, row.neginf) == ((live == np.inf).sum(), (live == -np.inf).sum())
    if len(finite):
        assert (row.min, row.max) == (finite.min(), finite.max())
        assert row.mean == pytest.approx(finite.mean(), rel=1e-12, abs=1e-12 * abs(finite).max())
        assert row.l2 == pytest.approx(np.linalg.norm(finite), rel=1e-12)
    else:
        assert (row.min, row.max, row.mean, row.l2) == (None,) * 4
    assert not row.inexact
    assert (row.first_nonfinite is None) == (row.nonfinite == 0)


def test_l2_of_huge_doubles_does_not_overflow() -> None:
    array = np.array([3e300, -4e300])
    row = _row(array, "fp64")
    assert row.l2 == pytest.approx(5e300, rel=1e-12)
    assert row.mean == pytest.approx(-0.5e300, rel=1e-12)
    assert (row.min, row.max) == (-4e300, 3e300)


def test_l2_of_tiny_doubles_does_not_underflow() -> None:
    assert _row(np.array([3e-300, 4e-300]), "fp64").l2 == pytest.approx(5e-300, rel=1e-12)


def test_a_sum_beyond_float64_leaves_no_mean() -> None:
    row = _row(np.array([1.7e308, 1.7e308]), "fp64")
    assert row.mean is None
    assert row.max == 1.7e308
    assert row.l2 == math.inf  # 2.4e308: beyond float64 itself


@pytest.mark.parametrize(
    ("array", "dtype"),
    [
        (np.array([-(2**63), 2**63 - 1, 0]), "int64"),
        (np.array([0, 2**64 - 1], np.uint64), "uint64"),
        (np.array([-7, 0, 3], np.int8), "int8"),
        (np.array([0, 1, 1], np.uint8), "int1"),
    ],
)
def test_integers_are_exact(array: Any, dtype: str) -> None:
    row = _row(array, dtype)
    assert (row.min, row.max) == (int(array.min()), int(array.max()))
    assert isinstance(row.min, int)
    assert row.mean == pytest.approx(sum(map(int, array)) / len(array), rel=1e-12)
    assert row.zero == int((array == 0).sum())


@pytest.mark.parametrize(
    ("values", "inexact"),
    [
        ([2**53 - 1], False),
        ([2**53, 1], True),  # 2**53 + 1 is no float64
        ([-(2**53), -1], True),
        ([2**60, -(2**60), 1], True),  # only a partial sum is large
        ([2**20] * 100, False),
        ([-3, 5], False),
    ],
)
def test_inexact_integer_sums_are_flagged(values: list[int], inexact: bool) -> None:
    assert _row(np.array(values), "int64").inexact is inexact


def test_first_place_and_lanes_of_a_tile() -> None:
    array = np.zeros((4, 8), np.float32)
    array[2, 5] = np.nan
    row = _row(array, "fp32")
    assert row.first_nonfinite == ((0, 0, 0), 0, (2, 5))
    block = block_of([(entry_of(0, "arith.addf", array, "fp32"), array, None)])
    block.records["executions"] = 3
    assert join.rows(0, [block])[0].lanes == 3 * 32


def test_empty_and_never_executed_values() -> None:
    row = _row(np.ones(4, np.float32), "fp32", np.zeros(4, bool))
    assert (row.live, row.min, row.mean, row.l2, row.inexact) == (0, None, None, None, False)
    block = block_of([(entry_of(0, "arith.addf", np.ones(4), "fp32"), np.ones(4), None)])
    block.records[:] = 0
    (row,) = join.rows(None, [block])
    assert (row.step, row.executions, row.lanes, row.max) == (None, 0, 0, None)


def test_fields_are_taken_over_and_histograms_too() -> None:
    array = np.array([0.0, 1.0, 1.5, -4.0], np.float32)
    entry = entry_of(0, "tt.store", array, "fp32", role="store", pointer="p", histogram=0)
    site = CallSite("w.py:9", "k", 2, Origin())
    (row,) = join.rows(7, [block_of([(entry, array, None)], site=site)])
    assert (row.step, row.site, row.call, row.kernel, row.launches) == (7, "w.py:9", 2, "k", 1)
    assert (row.role, row.mask, row.line, row.variable) == ("store", "valid", 10, "tmp0")
    assert row.histogram is not None
    assert row.histogram[32 + 24] == 2
    assert row.histogram[31 - 26] == 1
    assert sum(row.histogram) == 3


def test_a_block_that_does_not_fit_its_table_is_refused() -> None:
    array = np.ones(2, np.float32)
    block = block_of([(entry_of(0, "arith.addf", array, "fp32"), array, None)])
    broken = Block(block.site, block.table, block.records[:0], block.histograms)
    with pytest.raises(ValueError, match="0 records for 1 ops"):
        join.rows(0, [broken])


SOFTMAX = StatementOrigin("attn", ("attn",), "aten._softmax", "model.py", 88, "backward")
LINEAR = StatementOrigin("fc", ("fc",), "aten.addmm", "model.py", 12)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"variable": "tmp7"}, SOFTMAX),
        ({"variable": "_tmp7"}, SOFTMAX),
        ({"variable": "tmp7", "role": "load", "pointer": "out_ptr0"}, SOFTMAX),
        ({"variable": "tmp7", "role": "store", "pointer": "out_ptr0"}, LINEAR),
        ({"variable": "tmp7", "role": "atomic", "pointer": "out_ptr0"}, LINEAR),
        ({"variable": "tmp7", "role": "store", "pointer": "out_ptr1"}, SOFTMAX),
        ({"variable": None, "role": "store", "pointer": "out_ptr1"}, None),
        ({"variable": "xindex"}, None),
        ({"variable": None}, None),
    ],
)
def test_owner(fields: dict[str, Any], expected: StatementOrigin | None) -> None:
    origin = Origin(
        module="block",
        modules=("block",),
        phase="forward",
        aten=("aten.mul", "aten.add"),
        model_file="site.py",
        model_line=3,
        statements={"tmp7": SOFTMAX, "out_ptr0": LINEAR},
    )
    array = np.ones(2, np.float32)
    entry = entry_of(0, "arith.addf", array, "fp32", **fields)
    (row,) = join.rows(0, [block_of([(entry, array, None)], origin=origin)])
    got = (row.module, row.modules, row.aten, row.model_file, row.model_line, row.phase)
    if expected is None:
        assert got == ("block", ("block",), "aten.mul, aten.add", "site.py", 3, "forward")
    else:
        phase = expected.phase if expected is SOFTMAX else "forward"
        assert got == (
            expected.module,
            expected.modules,
            expected.aten,
            expected.model_file,
            expected.model_line,
            phase,
        )


def test_several_owners_without_a_module_of_their_own() -> None:
    array = np.ones(2, np.float32)
    shared = StatementOrigin(modules=("layers.0.a", "layers.0.b"))
    block = block_of(
        [(entry_of(0, "arith.addf", array, "fp32"), array, None)],
        origin=Origin(statements={"tmp0": shared}),
    )
    assert join.rows(0, [block])[0].module == "layers.0"
    assert join.common_prefix(["layers.10", "layers.1"]) == "layers"
    assert join.common_prefix(["a", "b"]) == "<none>"


@settings(max_examples=40, deadline=None)
@given(st.lists(st.lists(FLOATS, min_size=1, max_size=12), min_size=1, max_size=5))
def test_totals_are_those_of_the_concatenation(parts: list[list[float]]) -> None:
    rows = [_row(np.array(part, np.float32), "fp32") for part in parts]
    whole = np.concatenate([np.array(part, np.float32) for part in parts]).astype(np.float64)
    finite = whole[np.isfinite(whole)]
    totals = merged(rows)
    assert (totals.values, totals.live, totals.finite) == (len(parts), len(whole), len(finite))
    assert (totals.nan, totals.zero) == (np.isnan(whole).sum(), (whole == 0).sum())
    if len(finite):
        assert (totals.min, totals.max) == (finite.min(), finite.max())
        scale = abs(finite).max()
        assert totals.mean == pytest.approx(finite.mean(), rel=1e-9, abs=1e-12 * scale)
        assert totals.l2 == pytest.approx(np.linalg.norm(finite), rel=1e-9)
    else:
        assert (totals.min, totals.max, totals.mean, totals.l2) == (None,) * 4
