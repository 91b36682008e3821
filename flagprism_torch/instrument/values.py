"""Value probes: plain Triton functions that turn a tile of floats into one record
(instrument.whole: of integers).

They are generated into the kernel's module and inlined (`instrument.codegen`). A value is recorded
in two steps, so that a loop pays no cross-lane reduction per iteration:

1. `*_partials`: elementwise work, then a reduction along the lanes one thread holds, [T] partials;
2. a reduction over the T threads, of all values of a round (instrument.rounds), then `put_*`.

Inside an `scf.for` the [T] partials are loop-carried (`float_merge`), and step 2 (`float_total`)
runs once after the outermost loop. T is a power of two (`backends.profile.Profile.threads`).

Note [Usual tiles]
Nearly all tiles are finite and of middling size, and instructions are what a probe costs. So the
common path does not look at single lanes: it adds up values and squares, and the sum of squares
tells afterwards whether that was right. NaN or infinity there means a non-finite lane (or squares
that overflowed), a tiny one squares that vanished. Only then a rare branch (instrument.rare) looks
at the lanes one by one, and what it finds replaces the quick sums and extrema. Lanes that matter
to a check but not to the statistics take part as `extra`, a tile that is 0 where nothing is wrong
and NaN elsewhere.

Sums within a program are float32 (a loop carries them per thread, so registers count), across
threads of a loop nest and across programs float64.
"""

from __future__ import annotations

import triton
import triton.language as tl

from flagprism_torch.instrument.rare import finite_lanes, record_bad
from flagprism_torch.instrument.tiles import (
    INF,
    added,
    as_float,
    either,
    higher_of,
    per_thread,
)
from flagprism_torch.instrument.words import float_key, write

_LARGE = tl.constexpr(1e30)  # sums of squares beyond may overflow soon
_SMALL = tl.constexpr(1e-16)  # squares of smaller values soon lose digits in float32


@triton.jit
def mask_partials(mask, T: tl.constexpr):
    """Live lanes per thread, int32 [T]."""
    return tl.reduce(per_thread(mask.to(tl.int32), T), 1, added)


@triton.jit
def mask_accumulate(mask, live, T: tl.constexpr):
    return live + mask_partials(mask, T)


@triton.jit
def mask_total(live):
    """Live lanes, int64."""
    return tl.reduce(live.to(tl.int64), 0, added)


@triton.jit
def mask_count(mask, T: tl.constexpr):
    """Live lanes of one execution, int64."""
    return tl.reduce(mask_partials(mask, T), 0, added).to(tl.int64)


@triton.jit
def doubt(extra, x):
    """`extra` (float32, shape of x, Note [Usual tiles]), NaN also where x is NaN or infinite."""
    return extra + x.to(tl.float32) * 0.0


@triton.jit
def doubt_unless(extra, x, operand):
    """`doubt`, but not where x is the infinity that an operand handed on."""
    return extra + tl.where(x == operand, 0.0, x.to(tl.float32)) * 0.0


@triton.jit
def doubt_within(extra, lanes):
    """`extra` in some lanes only."""
    return tl.where(lanes, extra, 0)


@triton.jit
def doubts(extra, T: tl.constexpr):
    """Per thread, [T]: 0 if no lane is in doubt, else NaN."""
    return tl.reduce(per_thread(extra, T), 1, added)


@triton.jit
def doubt_flags(found, flags, BIT: tl.constexpr):
    """`flags` with bit BIT where `doubts` found something."""
    return flags | tl.where(found == 0, 0, 1 << BIT)


@triton.jit
def float_partials(x, mask, extra, MASKED: tl.constexpr, EXTRA: tl.constexpr,
                   T: tl.constexpr):  # fmt: skip
    """Per-thread partials of one execution, each [T]: zeros (int32), and low, high (NaN for none),
    total, squares (fp32, or fp64 for fp64 values), all over live lanes; right if the squares are
    usual (Note [Usual tiles])."""
    v = as_float(x)
    known = v
    value = v
    if MASKED:
        known = tl.where(mask, v, float("nan"))
        value = tl.where(mask, v, 0)
    zero = (known == 0).to(tl.int32)
    squares = value * value
    if EXTRA:
        squares = squares + extra
    known = per_thread(known, T)
    return tl.reduce(
        (per_thread(zero, T), known, known, per_thread(value, T), per_thread(squares, T)),
        1,
        merge_partials,
    )


@triton.jit
def is_usual(x, squares):
    """Whether sums of squares of values like x neither overflowed nor met a non-finite value."""
    if x.dtype == tl.float32 or x.dtype == tl.bfloat16:
        return squares <= _LARGE
    else:  # noqa: RET505 (in Triton a branch not taken needs its else)
        return squares < INF  # fp16 and fp8 cannot come near; fp64 has nothing wider


@triton.jit
def is_tiny(x, low, high):
    """Whether values between low and high are so small that float32 squares vanish."""
    tiny = (low == 0) & (low != 0)
    if x.dtype == tl.float32 or x.dtype == tl.bfloat16:
        largest = tl.maximum(-low, high)
        tiny = (largest > 0) & (largest < _SMALL)
    return tiny


@triton.jit
def merge_partials(z0, l0, h0, t0, s0, z1, l1, h1, t1, s1):
    return z0 + z1, tl.minimum(l0, l1), tl.maximum(h0, h1), t0 + t1, s0 + s1


@triton.jit
def put_float(base, op, MODE: tl.constexpr, executions, live, zero, low, high, total, squares):
    """Put everything of a float record but its non-finite part. low, high: NaN for none."""
    low_key = tl.where(low == low, ~float_key(low), 0)
    high_key = tl.where(low == low, float_key(high), 0)
    write(base, op, MODE, executions, live, zero, low_key, high_key, total, squares)


@triton.jit
def float_flags(x, part_low, part_high, part_squares, low, high, flags, BIT: tl.constexpr):
    """`flags` (int32, of a program or [T] of its threads) with bit BIT if the partials of one
    execution may hold a non-finite lane, BIT + 1 if its squares may have vanished and all that was
    seen so far (low, high) is as small."""
    bad = is_usual(x, part_squares) == 0
    tiny = is_tiny(x, tl.minimum(low, part_low), tl.maximum(high, part_high))
    return flags | tl.where(bad, 1 << BIT, 0) | tl.where(tiny, 2 << BIT, 0)


@triton.jit
def put_usual(zero, low, high, total, squares, flags, live, base, op, BIT: tl.constexpr,
              MODE: tl.constexpr):  # fmt: skip
    """Record of one execution that is not in a loop; what has flags is left to `rare_execution`,
    but for its counters."""
    keep = ((flags >> BIT) & 3) == 0
    low = tl.where(keep, low, float("nan"))
    total = tl.where(keep, total.to(tl.float64), 0)
    squares = tl.where(keep, squares.to(tl.float64), 0)
    put_float(base, op, MODE, tl.full([], 1, tl.int64), live, zero.to(tl.int64), low, high, total,
              squares)  # fmt: skip


@triton.jit
def any_flags(flags):
    """Flags that any thread has."""
    return tl.reduce(flags, 0, either)


@triton.jit
def float_merge(part_zero, part_low, part_high, part_total, part_squares, zero, low, high, total,
                squares, flags, BIT: tl.constexpr):  # fmt: skip
    """Loop-carried partials after one more execution, all [T]. One with flags is left to
    `rare_execution`, but for its zeros."""
    keep = ((flags >> BIT) & 3) == 0
    part_low = tl.where(keep, part_low, low)
    part_high = tl.where(keep, part_high, high)
    return (zero + part_zero, tl.minimum(low, part_low), tl.maximum(high, part_high),
            total + tl.where(keep, part_total, 0),
            squares + tl.where(keep, part_squares, 0))  # fmt: skip


@triton.jit
def rare_execution(x, mask, flags, iteration, base, program, op, BIT: tl.constexpr,
                   MODE: tl.constexpr, MASKED: tl.constexpr, T: tl.constexpr,
                   LANE_BITS: tl.constexpr):  # fmt: skip
    """Merge an execution with flags into its record; returns whether a lane may be non-finite."""
    if ((flags >> BIT) & 3) != 0:
        low, high, total, squares = finite_lanes(x, mask, MASKED, T)
        nothing = tl.full([], 0, tl.int64)
        put_float(base, op, MODE, nothing, nothing, nothing, low, high, total, squares)
        record_bad(x, mask, iteration, base, program, op, MODE, MASKED, T, LANE_BITS)
    return ((flags >> BIT) & 1) != 0


@triton.jit
def float_total(zero, low, high, total, squares, live, executions, base, op, flags,
                MODE: tl.constexpr, BIT: tl.constexpr):  # fmt: skip
    """Record of loop-carried partials. flags: of all executions; those with some are in memory
    already."""
    zero, low, high, total, squares = tl.reduce(
        (zero.to(tl.int64), low, high, total.to(tl.float64), squares.to(tl.float64)),
        0,
        merge_partials,
    )
    if MODE == 0:
        if ((flags >> BIT) & 3) != 0:
            put_float(base, op, 1, executions, live, zero, low, high, total, squares)
        else:
            put_float(base, op, 0, executions, live, zero, low, high, total, squares)
    else:
        put_float(base, op, MODE, executions, live, zero, low, high, total, squares)


@triton.jit
def flag(flags, BIT: tl.constexpr):
    """One flag, i1."""
    return ((flags >> BIT) & 1) != 0


@triton.jit
def mask_any(mask, AXIS: tl.constexpr):
    """Where any lane along AXIS is valid, i1."""
    return tl.reduce(mask.to(tl.int32), AXIS, higher_of) != 0
