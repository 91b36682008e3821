"""Value probes for integers and truth values, in the two steps of instrument.values.

Extrema and counts are exact, and so are sums within a program, but those of 64-bit integers, which
are float64. Squares are float32 for the lanes of one thread and one execution; of 64-bit integers
they are scaled by 2**-64: the largest must not overflow, those of 1 stay normal. Of a tile of truth
values everything follows from how many are true.
"""

from __future__ import annotations

import triton
import triton.language as tl

from flagprism_torch.instrument.tiles import added, per_thread
from flagprism_torch.instrument.values import merge_partials
from flagprism_torch.instrument.words import SIGN, write


@triton.jit
def int_partials(x, mask, MASKED: tl.constexpr, T: tl.constexpr):
    """Per-thread partials, each [T]: zeros int32, low, high int32 or int64 (int64 also for uint32;
    uint64 in its order as int64), total int64 (float64 for 64 bits), squares float64."""
    if x.dtype == tl.uint64:
        ordered = x.to(tl.int64, bitcast=True) ^ SIGN
    elif (x.dtype == tl.int64) | (x.dtype == tl.uint32):
        ordered = x.to(tl.int64)
    else:
        ordered = x.to(tl.int32)
    if ordered.dtype == tl.int64:
        top = tl.full(ordered.shape, 0x7FFFFFFFFFFFFFFF, tl.int64)
    else:
        top = tl.full(ordered.shape, 0x7FFFFFFF, tl.int32)
    zero = (x == 0).to(tl.int32)
    if x.dtype.primitive_bitwidth == 64:
        value = x.to(tl.float64)
        small = (value * 2.0**-32).to(tl.float32)
    else:
        value = x.to(tl.int64)
        small = x.to(tl.float32)
    low = ordered
    high = ordered
    if MASKED:
        zero = tl.where(mask, zero, 0)
        low = tl.where(mask, ordered, top)
        high = tl.where(mask, ordered, -1 - top)
        value = tl.where(mask, value, 0)
        small = tl.where(mask, small, 0.0)
    zero, low, high, total, squares = tl.reduce(
        (
            per_thread(zero, T),
            per_thread(low, T),
            per_thread(high, T),
            per_thread(value, T),
            per_thread(small * small, T),
        ),
        1,
        merge_partials,
    )
    squares = squares.to(tl.float64)
    if x.dtype.primitive_bitwidth == 64:
        squares = squares * 2.0**64
    return zero, low, high, total, squares


@triton.jit
def put_int(zero, low, high, total, squares, live, base, op, MODE: tl.constexpr):
    """Record of one execution. live: int64."""
    _put(zero, low, high, total, squares, live, tl.full([], 1, tl.int64), base, op, MODE)


@triton.jit
def int_accumulate(x, mask, zero, low, high, total, squares, MASKED: tl.constexpr, T: tl.constexpr):
    """Loop-carried partials after one more execution."""
    z, lo, hi, t, s = int_partials(x, mask, MASKED, T)
    return zero + z, tl.minimum(low, lo), tl.maximum(high, hi), total + t, squares + s


@triton.jit
def int_total(zero, low, high, total, squares, live, executions, base, op, MODE: tl.constexpr):
    """Record of loop-carried partials."""
    zero, low, high, total, squares = tl.reduce(
        (zero.to(tl.int64), low, high, total, squares), 0, merge_partials
    )
    _put(zero, low, high, total, squares, live, executions, base, op, MODE)


@triton.jit
def _put(zero, low, high, total, squares, live, executions, base, op, MODE: tl.constexpr):
    low_key = tl.where(live > 0, ~(low.to(tl.int64) ^ SIGN), 0)
    high_key = tl.where(live > 0, high.to(tl.int64) ^ SIGN, 0)
    write(base, op, MODE, executions, live, zero.to(tl.int64), low_key, high_key,
          total.to(tl.float64), squares)  # fmt: skip


@triton.jit
def true_partials(x, mask, MASKED: tl.constexpr, T: tl.constexpr):
    """Live lanes per thread that are true, int32 [T]."""
    if MASKED:
        x = x & mask
    return tl.reduce(per_thread(x.to(tl.int32), T), 1, added)


@triton.jit
def put_true(true, live, base, op, MODE: tl.constexpr):
    """Record of one execution."""
    _put_true(true.to(tl.int64), live, tl.full([], 1, tl.int64), base, op, MODE)


@triton.jit
def true_accumulate(x, mask, true, MASKED: tl.constexpr, T: tl.constexpr):
    """Loop-carried partials after one more execution."""
    return true + true_partials(x, mask, MASKED, T)


@triton.jit
def true_total(true, live, executions, base, op, MODE: tl.constexpr):
    """Record of loop-carried partials."""
    _put_true(tl.reduce(true.to(tl.int64), 0, added), live, executions, base, op, MODE)


@triton.jit
def _put_true(true, live, executions, base, op, MODE: tl.constexpr):
    smallest = (true == live).to(tl.int64)
    largest = (true > 0).to(tl.int64)
    low_key = tl.where(live > 0, ~(smallest ^ SIGN), 0)
    high_key = tl.where(live > 0, largest ^ SIGN, 0)
    total = true.to(tl.float64)
    write(base, op, MODE, executions, live, live - true, low_key, high_key, total, total)
