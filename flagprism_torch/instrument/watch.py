"""Level 0: which statements of a kernel made or met a non-finite value; nothing else.

Note [Watch]
The watch is meant to stay on, so it must cost next to nothing: one instruction per lane (two where
lanes are masked) for the largest magnitude that a thread sees, which is NaN if it sees a NaN; a few
per thread and value for two bits of a flag word; and at the end of the kernel one reduction across
threads and a branch that is never taken in a healthy run. Tiles need not live up to that branch, so
it does not know lanes. In loops the flag words are carried on. Only a value in a branch, or in a
loop that nothing can be carried through, is reduced on its own.

Infinities that a program may have written itself (ir.sentinels) are not looked for.
"""

from __future__ import annotations

import triton
import triton.language as tl

from flagprism_torch.instrument.tiles import INF, as_float, either, lower_of, per_thread

WORD = 15  # values of a flag word
UNKNOWN = (1 << 31) - 2  # an iteration that is not known, or larger


@triton.jit
def _larger(a, b):
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def largest(x, mask, MASKED: tl.constexpr, T: tl.constexpr):
    """The largest magnitude per thread, [T]; NaN if a lane is NaN."""
    size = tl.abs(as_float(x))
    if MASKED:
        size = tl.where(mask, size, 0)
    return tl.reduce(per_thread(size, T), 1, _larger)


@triton.jit
def mark(size, flags, BIT: tl.constexpr, INFINITE: tl.constexpr):
    """Flag words int32 [T] with bit BIT where there is a NaN, and BIT + 1 where there is an
    infinity that is looked for."""
    flags = flags | tl.where(size != size, 1 << BIT, 0)
    if INFINITE:
        flags = flags | tl.where(size == INF, 2 << BIT, 0)
    return flags


@triton.jit
def begun(before, after, first, iteration):
    """The iteration, int32 [T], in which a thread's first flag was set."""
    now = tl.minimum(iteration, 0x7FFFFFFE).to(tl.int32)
    return tl.where((before == 0) & (after != 0), now, first)


@triton.jit
def any_flag(flags):
    """The flags of all threads."""
    return tl.reduce(flags, 0, either)


@triton.jit
def put(flags, first, checks, program, NUMBER: tl.constexpr):
    """Write the flags of one word into the check records from NUMBER on (records.layout, Note
    [Watch record]). flags, first: int32 [T]."""
    found = tl.reduce(flags, 0, either)
    place = tl.reduce(first, 0, lower_of).to(tl.int64) << 2
    value = tl.arange(0, 16)
    at = checks.to(tl.pointer_type(tl.int64)) + (NUMBER + value) * 6
    nan = ((found >> (value * 2)) & 1) != 0
    infinite = ((found >> (value * 2 + 1)) & 1) != 0
    one = tl.full(value.shape, 1, tl.int64)
    tl.atomic_add(at, one, mask=nan & (value < 15), sem="relaxed")
    tl.atomic_add(at + 1, one, mask=infinite & (value < 15), sem="relaxed")
    key = -1 - ((tl.minimum(program, (1 << 28) - 1) << 35) | place)
    keys = tl.full(value.shape, 0, tl.int64) + key
    where = at.to(tl.pointer_type(tl.uint64), bitcast=True)
    wide = keys.to(tl.uint64, bitcast=True)
    tl.atomic_max(where + 4, wide, mask=nan & (value < 15), sem="relaxed")
    tl.atomic_max(where + 5, wide, mask=infinite & (value < 15), sem="relaxed")
