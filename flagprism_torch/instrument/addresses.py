"""Address probes: where the lanes of an access lie, and which lie outside of every tensor.

An offset is the number of bytes from the start of the tensor that is passed as an argument to a
lane's element, int64. All lanes of an element of SIZE bytes lie inside if low <= offset <= high;
`limits` makes both from what the launch says about the tensor, its bytes from the first element to
the end of the last one (`extent`, negative if nothing is known).
"""

from __future__ import annotations

import triton
import triton.language as tl

from flagprism_torch.instrument.births import flat, lower, place_of
from flagprism_torch.instrument.tiles import (
    NO_LANE,
    added,
    higher_of,
    lane_index,
    lower_of,
    per_thread,
)
from flagprism_torch.instrument.words import SIGN, programs, write

_TOP = tl.constexpr(0x7FFFFFFFFFFFFFFF)


@triton.jit
def limits(base, first_base, extent, SIZE: tl.constexpr):
    """(lowest, highest) offset inside a tensor at `base`, relative to `first_base`, int64."""
    start = base - first_base
    known = extent >= 0
    return tl.where(known, start, SIGN), tl.where(known, start + extent - SIZE, _TOP)


@triton.jit
def inside(offsets, low, high):
    """Lanes inside, i1."""
    return (offsets >= low) & (offsets <= high)


@triton.jit
def outside(offsets, low, high):
    """Lanes outside, i1."""
    return (offsets < low) | (offsets > high)


@triton.jit
def _merge_extremes(l0, h0, l1, h1):
    return tl.minimum(l0, l1), tl.maximum(h0, h1)


@triton.jit
def offset_partials(offsets, mask, MASKED: tl.constexpr, T: tl.constexpr):
    """(lowest, highest) offset of the active lanes per thread, each int64 [T]."""
    low = offsets
    high = offsets
    if MASKED:
        low = tl.where(mask, offsets, _TOP)
        high = tl.where(mask, offsets, SIGN)
    return tl.reduce((per_thread(low, T), per_thread(high, T)), 1, _merge_extremes)


@triton.jit
def put_offsets(low, high, live, base, op, MODE: tl.constexpr):
    """Record of one execution. live: active lanes, int64."""
    _put(low, high, live, tl.full([], 1, tl.int64), base, op, MODE)


@triton.jit
def merge_offsets(part_low, part_high, low, high):
    """Loop-carried partials after one more execution."""
    return tl.minimum(low, part_low), tl.maximum(high, part_high)


@triton.jit
def offset_total(low, high, live, executions, base, op, MODE: tl.constexpr):
    """Record of loop-carried partials."""
    low, high = tl.reduce((low, high), 0, _merge_extremes)
    _put(low, high, live, executions, base, op, MODE)


@triton.jit
def _put(low, high, live, executions, base, op, MODE: tl.constexpr):
    low_key = tl.where(live > 0, ~(low ^ SIGN), 0)
    high_key = tl.where(live > 0, high ^ SIGN, 0)
    nothing = tl.full([], 0, tl.int64)
    none = tl.full([], 0, tl.float64)
    write(base, op, MODE, executions, live, nothing, low_key, high_key, none, none)


@triton.jit
def beyond(low, high, lowest, highest):
    """Whether extremes of offsets leave limits, i1, in the shape of the extremes. No active lane:
    low is the largest int64, high the smallest."""
    return (low <= high) & ((low < lowest) | (high > highest))


@triton.jit
def any_lane(found):
    """Whether any lane is true, i1."""
    return tl.reduce(found.to(tl.int32), 0, higher_of) != 0


@triton.jit
def as_doubt(found):
    """Of i1 [T], what a round takes for a doubt (instrument.values): NaN where true, else 0."""
    return tl.where(found, float("nan"), 0.0)


@triton.jit
def add_flag(found, flags, BIT: tl.constexpr):
    """`flags` with bit BIT if `found`."""
    return flags | tl.where(found, 1 << BIT, 0)


@triton.jit
def _merge_outside(n0, l0, h0, i0, n1, l1, h1, i1):
    return n0 + n1, tl.minimum(l0, l1), tl.maximum(h0, h1), tl.minimum(i0, i1)


@triton.jit
def put_outside(bad, offsets, mask, iteration, checks, program, index, MASKED: tl.constexpr,
                LANE_BITS: tl.constexpr):  # fmt: skip
    """Count the lanes `bad` into check `index` (records.layout, Note [Bounds])."""
    if MASKED:
        bad = bad & mask
    lane = tl.where(bad, lane_index(bad), NO_LANE)
    low = tl.where(bad, offsets, _TOP)
    high = tl.where(bad, offsets, SIGN)
    count, lowest, highest, first = tl.reduce(
        (flat(bad.to(tl.int32)), flat(low), flat(high), flat(lane)), 0, _merge_outside
    )
    if count != 0:
        at = (checks + index * 12).to(tl.pointer_type(tl.int64))
        tl.atomic_add(at, count.to(tl.int64), sem="relaxed")
        tl.atomic_add(at + 1, tl.full([], 1, tl.int64), sem="relaxed")
        keys = at.to(tl.pointer_type(tl.uint64), bitcast=True)
        tl.atomic_max(keys + 2, (~(lowest ^ SIGN)).to(tl.uint64, bitcast=True), sem="relaxed")
        tl.atomic_max(keys + 3, (highest ^ SIGN).to(tl.uint64, bitcast=True), sem="relaxed")
        # of each program its first execution only: what stands there comes first otherwise
        mine = ((1 << 28) - 1) - tl.minimum(program, (1 << 28) - 2)
        known = (tl.load(at + 5, volatile=True) >> 36) & ((1 << 28) - 1)
        if mine > known:
            own = tl.where(lane == first, offsets, SIGN)
            offset = tl.reduce(flat(own), 0, higher_of)
            near = tl.minimum(tl.maximum(offset + (1 << 35), 0), (1 << 36) - 1)
            lower(at, 4, place_of(first << 2, iteration, LANE_BITS), program)
            key = (mine << 36) | near
            tl.atomic_max(keys + 5, key.to(tl.uint64, bitcast=True), sem="relaxed")


@triton.jit
def _lane_of(offsets, lane, wanted):
    """The offset of one lane."""
    return tl.reduce(flat(tl.where(lane == wanted, offsets, 0)), 0, added)


@triton.jit
def _is_active(active, lane, wanted):
    return tl.reduce(flat((active & (lane == wanted)).to(tl.int32)), 0, higher_of) != 0


@triton.jit
def _axis(offsets, active, lane, start, step, SIZE: tl.constexpr):
    """Of an axis whose lanes are `step` apart: (stride in bytes, whether it was measured at an
    active lane, what it adds to the offset of each lane)."""
    if SIZE == 1:
        stride = tl.full([], 0, tl.int64)
        there = tl.full([], 1, tl.int1)
    else:
        stride = _lane_of(offsets, lane, step) - start
        there = _is_active(active, lane, step)
    return stride, there, ((lane // step) % SIZE).to(tl.int64) * stride


@triton.jit
def is_edge(program):
    """Whether a program is the first or the last one."""
    return (program == 0) | (program == programs() - 1)


@triton.jit
def sample(offsets, mask, checks, program, index, MASKED: tl.constexpr):
    """What the first and the last program tell about an access (records.layout, Note [Sample]);
    others must not come here. Strides are those of the first program's first execution with an
    active lane, between the lanes 0 and 1 of the last three axes."""
    RANK: tl.constexpr = len(offsets.shape)
    at = (checks + index * 12).to(tl.pointer_type(tl.int64))
    lane = lane_index(offsets)
    active = lane >= 0
    if MASKED:
        active = active & mask
    first = tl.reduce(flat(tl.where(active, lane, NO_LANE)), 0, lower_of)
    final = tl.reduce(flat(tl.where(active, lane, -1)), 0, higher_of)
    if final >= 0:
        if program == programs() - 1:
            tl.store(at + 2, _lane_of(offsets, lane, final))
            tl.atomic_or(at, tl.full([], 2, tl.int64), sem="relaxed")
        if (program == 0) & ((tl.load(at, volatile=True) & 1) == 0):
            start = _lane_of(offsets, lane, 0)
            known = tl.full([], 1, tl.int1)
            line = tl.zeros(offsets.shape, tl.int64)
            step = tl.full([], 1, tl.int32)
            for back in tl.static_range(RANK):
                stride, there, part = _axis(
                    offsets, active, lane, start, step, offsets.shape[RANK - 1 - back]
                )
                known = known & there
                line += part
                if back < 3:
                    tl.store(at + 3 + back, stride)
                step = step * offsets.shape[RANK - 1 - back]
            known = known & _is_active(active, lane, 0)
            wrong = active & (line + start != offsets)
            even = tl.reduce(flat(wrong.to(tl.int32)), 0, higher_of) == 0
            flags = 1 + tl.where(known, 4, 0) + tl.where(even, 8, 0)
            tl.store(at + 1, _lane_of(offsets, lane, first))
            tl.atomic_or(at, flags.to(tl.int64), sem="relaxed")
