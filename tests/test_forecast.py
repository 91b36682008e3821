"""Headroom and lanes beyond the largest value, against NumPy and torch's own numbers."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from oracle import block_of, entry_of

from flagprism_torch.analysis.forecast import LARGEST, headroom, lanes_beyond, wraps_at
from flagprism_torch.analysis.join import rows
from flagprism_torch.records.model import Row

TORCH = {
    "fp16": torch.float16,
    "bf16": torch.bfloat16,
    "fp8e4nv": torch.float8_e4m3fn,
    "fp8e5": torch.float8_e5m2,
}


def row_of(values: np.ndarray, *, histogram: bool = True) -> Row:
    entry = entry_of(0, "arith.mulf", values, "fp32", histogram=0 if histogram else -1)
    (row,) = rows(0, [block_of([(entry, values, None)])])
    return row


def test_the_largest_values() -> None:
    assert {name: torch.finfo(TORCH[name]).max for name in LARGEST} == LARGEST


def test_headroom() -> None:
    row = row_of(np.array([1.0, -1024.0, np.inf, np.nan, 3.0], np.float32))
    assert headroom(row) == {name: torch.finfo(t).max / 1024 for name, t in TORCH.items()}
    assert headroom(row_of(np.zeros(3, np.float32))) == dict.fromkeys(LARGEST, math.inf)
    nothing = row_of(np.array([np.nan, np.inf], np.float32))
    assert headroom(nothing) is None
    assert [lanes_beyond(nothing, name) for name in LARGEST] == [0] * 4


@settings(max_examples=200, deadline=None)
@given(
    values=st.lists(
        st.one_of(
            st.floats(-100, 100, width=32),
            st.sampled_from(
                [448.0, 449.0, -448.5, 65504.0, -65505.0, 6e4, 1e30, math.inf, math.nan]
            ),
            st.floats(width=32),
        ),
        min_size=1,
        max_size=6,
    ),
    name=st.sampled_from(list(LARGEST)),
    histogram=st.booleans(),
)
def test_lanes_beyond(values: list[float], name: str, histogram: bool) -> None:
    """What is told is true."""
    array = np.array(values, np.float32)
    true = int((np.isfinite(array) & (np.abs(array) > LARGEST[name])).sum())
    assert lanes_beyond(row_of(array, histogram=histogram), name) in (true, None)


@pytest.mark.parametrize(
    ("values", "beyond"),
    [
        ([1.0, -448.0, 447.0], 0),
        ([500.0, 1.0], 1),
        ([500.0, -1e9, 1.0], 2),
        ([500.0, 130.0], None),  # both in the outermost bucket
        ([500.0, 600.0, 1e9], 3),
        ([-500.0, -600.0, math.nan], 2),
    ],
)
def test_when_it_can_be_told(values: list[float], beyond: int | None) -> None:
    assert lanes_beyond(row_of(np.array(values, np.float32)), "fp8e4nv") == beyond


def test_without_a_histogram() -> None:
    row = row_of(np.array([500.0, 1.0], np.float32), histogram=False)
    assert row.histogram is None
    assert lanes_beyond(row, "fp8e4nv") is None
    assert lanes_beyond(row, "fp16") == 0


def test_an_unknown_type() -> None:
    with pytest.raises(KeyError, match="fp12"):
        lanes_beyond(row_of(np.ones(2, np.float32)), "fp12")


def test_where_offsets_wrap() -> None:
    assert wraps_at(2**30) == 2.0
    assert wraps_at(2**31 - 1) > 1.0
    assert wraps_at(3 * 2**31) == pytest.approx(1 / 3)
    assert wraps_at(0) == math.inf
