"""Probes of the silent checks (instrument.silent): trouble that leaves no NaN behind.

They count lanes into check records (records.layout, Note [Check record]). `undefined`, `saturated`
and `wrapped` report at once, from a branch that a program takes only if there is something.
Stagnation and lost operand bits are no rare events: `stagnation` and `tf32` add to [T] partials,
which a loop carries, and `put_tally` writes once per program.
"""

from __future__ import annotations

import triton
import triton.language as tl

from flagprism_torch.instrument.births import flat, lower, place_of
from flagprism_torch.instrument.tiles import (
    INF,
    NO_LANE,
    added,
    as_float,
    either,
    higher_of,
    lane_index,
    lower_of,
    per_thread,
)

NEVER = tl.constexpr(0x7FFFFFFFFFFFFFFF)  # no place yet
LARGE = 1 << 30  # magnitudes of offsets from which on lanes are examined


@triton.jit
def _merge_lanes(n0, f0, n1, f1):
    return n0 + n1, tl.minimum(f0, f1)


@triton.jit
def _merge_tallies(m0, n0, f0, m1, n1, f1):
    return m0 + m1, n0 + n1, tl.minimum(f0, f1)


@triton.jit
def _merge_wraps(m0, n0, s0, f0, m1, n1, s1, f1):
    return m0 + m1, n0 + n1, tl.maximum(s0, s1), tl.minimum(f0, f1)


@triton.jit
def _put_lanes(found, iteration, checks, program, index, T: tl.constexpr, LANE_BITS: tl.constexpr):
    """Count the lanes `found` (i1) into check `index`, if there are any."""
    some = tl.reduce(tl.reduce(per_thread(found.to(tl.int32), T), 1, either), 0, either)
    if some != 0:
        lane = tl.where(found, lane_index(found) << 2, NO_LANE)
        count, first = tl.reduce((flat(found.to(tl.int32)), flat(lane)), 0, _merge_lanes)
        at = (checks + index * 12).to(tl.pointer_type(tl.int64))
        tl.atomic_add(at, count.to(tl.int64), sem="relaxed")
        lower(at, 4, place_of(first, iteration, LANE_BITS), program)


@triton.jit
def undefined(mask, needed, iteration, checks, program, index, NEEDED: tl.constexpr,
              T: tl.constexpr, LANE_BITS: tl.constexpr):  # fmt: skip
    """Needed lanes that the mask of a load leaves undefined."""
    outside = mask == 0
    if NEEDED:
        outside = outside & needed
    _put_lanes(outside, iteration, checks, program, index, T, LANE_BITS)


@triton.jit
def saturated(source, result, needed, iteration, checks, program, index, LIMIT: tl.constexpr,
              NEEDED: tl.constexpr, T: tl.constexpr, LANE_BITS: tl.constexpr):  # fmt: skip
    """Lanes of a cast with a finite source beyond LIMIT and a finite result."""
    size = tl.abs(as_float(source))
    beyond = (size > LIMIT) & (size < INF) & (tl.abs(as_float(result)) < INF)
    if NEEDED:
        beyond = beyond & needed
    _put_lanes(beyond, iteration, checks, program, index, T, LANE_BITS)


@triton.jit
def magnitude(x, T: tl.constexpr):
    """The largest magnitude of a tile of integers, int64."""
    low = tl.reduce(tl.reduce(per_thread(x, T), 1, lower_of), 0, lower_of).to(tl.int64)
    high = tl.reduce(tl.reduce(per_thread(x, T), 1, higher_of), 0, higher_of).to(tl.int64)
    return tl.maximum(tl.abs(low), tl.abs(high))


@triton.jit
def scalar_magnitude(x):
    return tl.abs(x.to(tl.int64))


@triton.jit
def wrapped(a, b, result, needed, iteration, checks, program, index, RULE: tl.constexpr,
            NEEDED: tl.constexpr, LANE_BITS: tl.constexpr):  # fmt: skip
    """Lanes whose int32 result is not the true one (counter 0) and lanes whose true result is
    LARGE (counter 1); the largest magnitude of a true result, as a number in the last word."""
    left = a.to(tl.int64)
    right = b.to(tl.int64)
    if RULE == "mul":
        true = left * right
    elif RULE == "add":
        true = left + right
    elif RULE == "sub":
        true = left - right
    else:
        true = left << right
    size = tl.abs(true)
    large = size >= 1073741824
    if NEEDED:
        large = large & needed
    wrong = large & (true != result.to(tl.int64))  # what is not large fits
    lane = tl.where(wrong, lane_index(wrong) << 2, NO_LANE)
    count, near, top, first = tl.reduce(
        (
            flat(wrong.to(tl.int32)),
            flat(large.to(tl.int32)),
            flat(tl.where(large, size, 0)),
            flat(lane),
        ),
        0,
        _merge_wraps,
    )
    if near != 0:
        at = (checks + index * 12).to(tl.pointer_type(tl.int64))
        tl.atomic_add(at + 1, near.to(tl.int64), sem="relaxed")
        tl.atomic_max(at + 5, top, sem="relaxed")
        if count != 0:
            tl.atomic_add(at, count.to(tl.int64), sem="relaxed")
            lower(at, 4, place_of(first, iteration, LANE_BITS), program)


@triton.jit
def _tally(found, other, iteration, first, count, others, T: tl.constexpr, LANE_BITS: tl.constexpr):
    """Partials [T] (first place int64, lanes int32, `other` int64) with one more execution's."""
    lane = per_thread(tl.where(found, lane_index(found) << 2, NO_LANE), T)
    these, those, lane = tl.reduce(
        (per_thread(found.to(tl.int32), T), per_thread(other, T), lane),
        1,
        _merge_tallies,
    )
    place = tl.where(lane != NO_LANE, place_of(lane, iteration, LANE_BITS), NEVER)
    return tl.minimum(first, place), count + these, others + those


@triton.jit
def stagnation(following, carried, addend, needed, iteration, first, count, others,
               NEEDED: tl.constexpr, T: tl.constexpr, LANE_BITS: tl.constexpr):  # fmt: skip
    """Additions of something (counter 1) and those among them that change nothing (counter 0)."""
    after = as_float(following)
    x = as_float(addend)
    adds = (x != 0) & (tl.abs(x) < INF) & (tl.abs(after) < INF)
    if NEEDED:
        adds = adds & needed
    lost = adds & (after == as_float(carried))
    return _tally(lost, adds.to(tl.int64), iteration, first, count, others, T, LANE_BITS)


@triton.jit
def tf32(x, needed, iteration, first, count, others, NEEDED: tl.constexpr, T: tl.constexpr,
         LANE_BITS: tl.constexpr):  # fmt: skip
    """Finite lanes of a float32 operand that have more bits than tf32, as `count`; in `others`
    those among them that rounding to the nearest takes away from zero, and 2**32 x all."""
    dropped = x.to(tl.int32, bitcast=True) & 0x1FFF
    finite = tl.abs(x) < INF
    if NEEDED:
        finite = finite & needed
    lost = finite & (dropped != 0)
    other = (lost & (dropped >= 0x1000)).to(tl.int64) | (finite.to(tl.int64) << 32)
    return _tally(lost, other, iteration, first, count, others, T, LANE_BITS)


@triton.jit
def put_tally(first, count, others, checks, program, index, TF32: tl.constexpr):
    """Write partials into check `index`. TF32: `others` are those of `tf32`."""
    count = tl.reduce(count.to(tl.int64), 0, added)
    if (count | tl.reduce(others, 0, either)) != 0:
        at = (checks + index * 12).to(tl.pointer_type(tl.int64))
        if TF32:
            away = tl.reduce(others & 0xFFFFFFFF, 0, added)
            tl.atomic_add(at + 1, count - away, sem="relaxed")
            tl.atomic_add(at + 2, away, sem="relaxed")
            tl.atomic_add(at + 3, tl.reduce(others >> 32, 0, added), sem="relaxed")
        else:
            tl.atomic_add(at + 1, tl.reduce(others, 0, added), sem="relaxed")
        if count != 0:
            tl.atomic_add(at, count, sem="relaxed")
            lower(at, 4, tl.reduce(first, 0, lower_of), program)
