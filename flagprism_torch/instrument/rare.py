"""The rare branch of a float record: an execution with non-finite lanes, or whose squares leave the
range of float32 (instrument.values, Note [Usual tiles]). Lanes are looked at one by one.

Squares of float32 values overflow above 1.8e19 and vanish below 1e-19, so values are scaled by the
power of two that brings the largest near 1 before they are squared.
"""

from __future__ import annotations

import triton
import triton.language as tl

from flagprism_torch.instrument.tiles import (
    INF,
    NO_LANE,
    added,
    as_float,
    lane_index,
    lower_of,
    per_thread,
)
from flagprism_torch.instrument.words import write_bad


@triton.jit
def finite_lanes(x, mask, MASKED: tl.constexpr, T: tl.constexpr):
    """(low, high, total, squares) over the finite live lanes of one execution: extrema as in
    `as_float`, NaN for none; sums float64."""
    v = as_float(x)
    finite = tl.abs(v) < INF
    if MASKED:
        finite = finite & mask
    known = per_thread(tl.where(finite, v, float("nan")), T)
    low, high = tl.reduce(tl.reduce((known, known), 1, _merge_extrema), 0, _merge_extrema)
    value = tl.where(finite, v, 0)
    if v.dtype == tl.float64:
        factor = tl.full([], 1.0, tl.float64)
        back = factor
    else:
        largest = tl.maximum(tl.maximum(-low, high), 0.0)
        exponent = tl.minimum(largest.to(tl.int32, bitcast=True) >> 23, 253)
        factor = ((254 - exponent) << 23).to(tl.float32, bitcast=True)
        back = ((exponent.to(tl.int64) + 896) << 52).to(tl.float64, bitcast=True)
    scaled = per_thread(value * factor, T)
    sums = tl.reduce((scaled, scaled * scaled), 1, _merge_sums)
    total, squares = tl.reduce(sums, 0, _merge_sums)
    return low, high, total.to(tl.float64) * back, squares.to(tl.float64) * back * back


@triton.jit
def _merge_extrema(l0, h0, l1, h1):
    return tl.minimum(l0, l1), tl.maximum(h0, h1)


@triton.jit
def _merge_sums(t0, s0, t1, s1):
    return t0 + t1, s0 + s1


@triton.jit
def bad_partials(x, mask, MASKED: tl.constexpr, T: tl.constexpr):
    """Per-thread (nan, posinf, neginf, first lane or NO_LANE) of one execution, each int32 [T]."""
    v = as_float(x)
    K: tl.constexpr = x.numel // T
    kind = tl.where(v == INF, 1 << 10, tl.where(v == -INF, 1 << 20, 0))
    kind = tl.where(v != v, 1, kind)
    if MASKED:
        kind = tl.where(mask, kind, 0)
    lane = per_thread(tl.where(kind > 0, lane_index(x), NO_LANE), T)
    if K < 1024:
        kinds, lane = tl.reduce((per_thread(kind, T), lane), 1, _merge_kinds)
        nan = kinds & 1023
        posinf = (kinds >> 10) & 1023
        neginf = kinds >> 20
    else:
        nan = tl.reduce(per_thread(kind & 1, T), 1, added)
        posinf = tl.reduce(per_thread((kind >> 10) & 1, T), 1, added)
        neginf = tl.reduce(per_thread(kind >> 20, T), 1, added)
        lane = tl.reduce(lane, 1, lower_of)
    return nan, posinf, neginf, lane


@triton.jit
def _merge_kinds(k0, f0, k1, f1):
    return k0 + k1, tl.minimum(f0, f1)


@triton.jit
def _merge_bad(n0, p0, m0, f0, n1, p1, m1, f1):
    return n0 + n1, p0 + p1, m0 + m1, tl.minimum(f0, f1)


@triton.jit
def record_bad(x, mask, iteration, base, program, op, MODE: tl.constexpr, MASKED: tl.constexpr,
               T: tl.constexpr, LANE_BITS: tl.constexpr):  # fmt: skip
    """The non-finite part of one execution's record; nothing if it has no such live lane."""
    bad = bad_partials(x, mask, MASKED, T)
    nan, posinf, neginf, lane = tl.reduce(bad, 0, _merge_bad)
    if lane != NO_LANE:
        limit = (1 << (35 - LANE_BITS)) - 1
        place = (tl.minimum(iteration, limit) << LANE_BITS) | lane.to(tl.int64)
        write_bad(base, op, MODE, nan.to(tl.int64), posinf.to(tl.int64), neginf.to(tl.int64), place,
                  program)  # fmt: skip
