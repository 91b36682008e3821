"""Probes of full values: tiles go into memory as they are, lane by lane.

The memory and its header are described in records.dumps, Note [Dump buffer]. Nothing here branches:
what is not wanted is masked off. Tiles are moved as integers, so that no bit of a float changes.
"""

from __future__ import annotations

import triton
import triton.language as tl

from flagprism_torch.instrument.tiles import lane_index


@triton.jit
def row_of(values, program, MAP: tl.constexpr):
    """The row of this program, int64, negative if its values are not wanted. MAP: int32 words
    before the rows of all programs, 0 if all programs have a row, in their order."""
    on = tl.load(values.to(tl.pointer_type(tl.int64), bitcast=True)) != 0
    row = program
    if MAP:
        row = tl.load(values + MAP + program, mask=on, other=-1).to(tl.int64)
    return tl.where(on, row, -1)


@triton.jit
def place_of(values, row, BLOCK: tl.constexpr, BLOCKS: tl.constexpr, ONCE: tl.constexpr):
    """Where this execution of a block goes, counted in tiles, int64, negative for nowhere.

    An atomic gives the number of the execution, to all threads at once: each may be ahead of others
    that have not read a plain counter yet.
    """
    header = values.to(tl.pointer_type(tl.int64), bitcast=True)
    capacity = tl.load(header + 2 + BLOCK)
    wanted = row >= 0
    index = tl.full([], 0, tl.int64)
    if not ONCE:
        counters = _at(values, tl.load(header + 1)).to(tl.pointer_type(tl.int64), bitcast=True)
        index = tl.atomic_add(counters + row * BLOCKS + BLOCK, tl.full([], 1, tl.int64),
                              mask=wanted, sem="relaxed")  # fmt: skip
    return tl.where(wanted & (index < capacity), row * capacity + index, -1)


@triton.jit
def _at(values, offset):
    """The memory `offset` bytes behind the start."""
    return values.to(tl.pointer_type(tl.int8), bitcast=True) + offset


@triton.jit
def _bits(x):
    """x as integers of its size; a truth value as one byte."""
    if x.dtype == tl.int1:
        return x.to(tl.int8)
    elif x.dtype.primitive_bitwidth == 8:  # noqa: RET505 (in Triton a branch not taken needs its else)
        return x.to(tl.int8, bitcast=True)
    elif x.dtype.primitive_bitwidth == 16:
        return x.to(tl.int16, bitcast=True)
    elif x.dtype.primitive_bitwidth == 32:
        return x.to(tl.int32, bitcast=True)
    else:
        return x.to(tl.int64, bitcast=True)


@triton.jit
def put(x, values, place, CHANNEL: tl.constexpr):
    """Write a tile into a channel. CHANNEL: the word of the header with its offset in bytes,
    negative if it is not wanted."""
    offset = tl.load(values.to(tl.pointer_type(tl.int64), bitcast=True) + CHANNEL)
    wanted = (place >= 0) & (offset >= 0)
    bits = _bits(x)
    start = _at(values, tl.multiple_of(offset, 16)).to(tl.pointer_type(bits.dtype), bitcast=True)
    lanes = start + place * x.numel + lane_index(bits)
    tl.store(lanes, bits, mask=tl.broadcast_to(wanted, x.shape))
