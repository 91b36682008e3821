"""A record in memory: the slot of a program and the ways to put words into it.

A record is a vector of 12 int64 (records.layout): executions, live, nan, posinf, neginf, zero,
min_key, max_key, sum, sumsq, first, scale. Records are zero when a launch starts (the fold leaves
them so), which also makes a statement that never runs an empty record.
"""

from __future__ import annotations

import triton
import triton.language as tl

STORE, MERGE, ATOMIC = 0, 1, 2  # how `write` treats the record in memory

SIGN = tl.constexpr(-0x8000000000000000)


@triton.jit
def programs():
    """How many programs the launch has, int64."""
    return (
        tl.num_programs(0).to(tl.int64)
        * tl.num_programs(1).to(tl.int64)
        * tl.num_programs(2).to(tl.int64)
    )


@triton.jit
def program_id():
    """The linear program id, x fastest, int64."""
    return tl.program_id(0).to(tl.int64) + tl.num_programs(0).to(tl.int64) * (
        tl.program_id(1).to(tl.int64)
        + tl.num_programs(1).to(tl.int64) * tl.program_id(2).to(tl.int64)
    )


@triton.jit
def slot(records, OFFSET: tl.constexpr, OPS: tl.constexpr, SLOTS: tl.constexpr):
    """(pointer to this program's slot, linear program id). SLOTS > 0: programs share that many.
    OFFSET: words before the first slot (histograms)."""
    program = program_id()
    index = program
    if SLOTS > 0:
        index = program % SLOTS
    return records + OFFSET + index * (OPS * 24), program


@triton.jit
def _count(record, word: tl.constexpr, value, MODE: tl.constexpr):
    """Add an int64 counter to a word (as int64) of a record."""
    if MODE == 0:
        tl.store(record + word, value)
    elif MODE == 1:
        tl.store(record + word, tl.load(record + word, volatile=True) + value)
    else:
        tl.atomic_add(record + word, value, sem="relaxed")


@triton.jit
def _raise(record, word: tl.constexpr, value, MODE: tl.constexpr):
    """Raise a word to an unsigned key."""
    at = record.to(tl.pointer_type(tl.uint64), bitcast=True) + word
    key = value.to(tl.uint64, bitcast=True)
    if MODE == 0:
        tl.store(at, key)
    elif MODE == 1:
        tl.store(at, tl.maximum(tl.load(at, volatile=True), key))
    else:
        tl.atomic_max(at, key, sem="relaxed")


@triton.jit
def _sum(record, word: tl.constexpr, value, MODE: tl.constexpr):
    """Add a float64 to a word."""
    _count(record.to(tl.pointer_type(tl.float64), bitcast=True), word, value, MODE)


@triton.jit
def write(base, op, MODE: tl.constexpr, executions, live, zero, low_key, high_key, total, squares):
    """Put everything of a record but its non-finite part (`write_bad`): counters int64, keys int64
    bit patterns, sums float64. Scalar accesses: Triton's coalescing pass costs compile time in
    proportion to tensor accesses times operations."""
    record = (base + op * 24).to(tl.pointer_type(tl.int64))
    _count(record, 0, executions, MODE)
    _count(record, 1, live, MODE)
    _count(record, 5, zero, MODE)
    _raise(record, 6, low_key, MODE)
    _raise(record, 7, high_key, MODE)
    _sum(record, 8, total, MODE)
    _sum(record, 9, squares, MODE)


@triton.jit
def write_bad(base, op, MODE: tl.constexpr, nan, posinf, neginf, place, program):
    """Put the non-finite part: counters int64; place: iteration << LANE_BITS | lane of the first,
    int64 below 2**35."""
    record = (base + op * 24).to(tl.pointer_type(tl.int64))
    _count(record, 2, nan, MODE)
    _count(record, 3, posinf, MODE)
    _count(record, 4, neginf, MODE)
    _raise(record, 10, -1 - ((tl.minimum(program, (1 << 28) - 1) << 35) | place), MODE)


@triton.jit
def executed(base, op):
    """How often this program ran the statement so far, from the record in memory."""
    return tl.load((base + op * 24).to(tl.pointer_type(tl.int64)), volatile=True)


@triton.jit
def float_key(value):
    """Total order of a finite float as an int64 bit pattern (records.layout.order_key)."""
    bits = value.to(tl.float64).to(tl.int64, bitcast=True)
    return bits ^ ((bits >> 63) | SIGN)
