"""The fold kernel: per-program records of one launch become one record per op, on the device.

Each program merges a chunk of slots of one op; the last one to arrive (a ticket per op) merges the
chunks in order, so the result does not depend on scheduling. The last to read a chunk (a ticket per
chunk) clears it, as one piece of memory: each program clearing what it read takes five times as
long, because the records of one op lie apart. One more program moves the check records, of which a
launch has only one set. On the CPU the C++ `fold` does this.
"""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

from flagprism_torch.records.layout import RECORD_WORDS

CHUNK_SLOTS = 256
_WORDS = RECORD_WORDS // 2  # as int64


@triton.jit
def _add(a, b):
    return a + b


@triton.jit
def _high(a, b):
    return tl.maximum(a, b)


@triton.jit
def _merge_rows(pointer, first, last, stride, BLOCK: tl.constexpr):
    """Merge rows first..last of int64 [rows, 12] (`stride` apart) into one [16] vector."""
    row = tl.arange(0, BLOCK)
    column = tl.arange(0, 16)
    counts = tl.zeros([BLOCK, 16], tl.int64)
    keys = tl.zeros([BLOCK, 16], tl.uint64)
    sums = tl.zeros([BLOCK, 16], tl.float64)
    for start in range(first, last, BLOCK):
        rows = start + row
        live = (rows < last)[:, None] & (column < 12)[None, :]
        at = pointer + rows.to(tl.int64)[:, None] * stride + column[None, :]
        value = tl.load(at, mask=live, other=0)
        counts += value
        keys = tl.maximum(keys, value.to(tl.uint64, bitcast=True))
        sums += value.to(tl.float64, bitcast=True)
    count = tl.reduce(counts, 0, _add)
    key = tl.reduce(keys, 0, _high).to(tl.int64, bitcast=True)
    total = tl.reduce(sums, 0, _add).to(tl.int64, bitcast=True)
    is_key = (column == 6) | (column == 7) | (column == 10)
    is_sum = (column == 8) | (column == 9)
    return tl.where(is_sum, total, tl.where(is_key, key, count))


@triton.jit
def _clear(pointer, words, BLOCK: tl.constexpr):
    """Write int64 zeros."""
    for start in range(0, words, BLOCK):
        at = start + tl.arange(0, BLOCK)
        tl.store(pointer + at, tl.zeros([BLOCK], tl.int64), mask=at < words)


@triton.jit
def _move(source, target, words, BLOCK: tl.constexpr):
    """Copy int64 words, leaving zeros."""
    for start in range(0, words, BLOCK):
        at = start + tl.arange(0, BLOCK)
        tl.store(target + at, tl.load(source + at, mask=at < words), mask=at < words)
    tl.debug_barrier()
    _clear(source, words, BLOCK)


@triton.jit(do_not_specialize=["slots", "ops", "checks"])
def fold_kernel(scratch, partial, tickets, out, slots, ops, found, checks, CHUNK: tl.constexpr,
                BLOCK: tl.constexpr):  # fmt: skip
    """scratch int64 [slots, ops, 12] -> out int64 [ops, 12], leaving scratch zero; partial int64
    [ops, chunks, 12]; tickets int32 [ops + chunks], zero before and after; found int64 [checks],
    moved to out[ops * 12:]. Grid: (ops + 1, chunks)."""
    if tl.program_id(0) == ops:
        if tl.program_id(1) == 0:
            _move(found, out + ops * 12, checks, 256)
    else:
        _fold(scratch, partial, tickets, out, slots, ops, CHUNK, BLOCK)


@triton.jit
def _fold(scratch, partial, tickets, out, slots, ops, CHUNK: tl.constexpr, BLOCK: tl.constexpr):
    op = tl.program_id(0)
    chunk = tl.program_id(1)
    chunks = tl.num_programs(1)
    column = tl.arange(0, 16)
    first = chunk * CHUNK
    last = tl.minimum(first + CHUNK, slots)
    merged = _merge_rows(scratch + op * 12, first, last, ops * 12, BLOCK)
    tl.debug_barrier()  # all threads have read
    if tl.atomic_add(tickets + ops + chunk, 1, sem="acq_rel", scope="gpu") == ops - 1:
        _clear(scratch + first.to(tl.int64) * ops * 12, (last - first) * ops * 12, 1024)
        tl.store(tickets + ops + chunk, 0)
    if chunks == 1:
        tl.store(out + op * 12 + column, merged, mask=column < 12)
    else:
        mine = partial + (op.to(tl.int64) * chunks + chunk) * 12
        tl.store(mine + column, merged, mask=column < 12)
        tl.debug_barrier()
        ticket = tl.atomic_add(tickets + op, 1, sem="acq_rel", scope="gpu")
        if ticket == chunks - 1:
            tl.debug_barrier()
            whole = _merge_rows(partial + op.to(tl.int64) * chunks * 12, 0, chunks, 12, BLOCK)
            tl.store(out + op * 12 + column, whole, mask=column < 12)
            tl.store(tickets + op, 0)


def chunks_of(slots: int) -> int:
    return max(1, -(-slots // CHUNK_SLOTS))


_BLOCK = 64
_compiled: dict[Any, Any] = {}  # device -> the compiled kernel: one variant serves every launch


def launch(
    scratch: Any,
    partial: Any,
    tickets: Any,
    out: Any,
    slots: int,
    ops: int,
    found: Any,
    stream: int,
) -> None:
    """Queue the fold; tensors, 16-byte aligned, are int64 views as in `fold_kernel`.

    After the first launch on a device the compiled kernel is launched directly, which spares the
    argument specialisation of `JITFunction.run` and calls no launch hook of other tools.
    """
    grid = (ops + 1, chunks_of(slots))
    kernel = _compiled.get(scratch.device)
    arguments = (scratch, partial, tickets, out, slots, ops, found, found.numel())
    if kernel is None:
        _compiled[scratch.device] = fold_kernel[grid](
            *arguments, CHUNK=CHUNK_SLOTS, BLOCK=_BLOCK, num_warps=4
        )
        return
    kernel.run(
        *grid, 1, stream, kernel.function, kernel.packed_metadata, None, None, None,
        *arguments, CHUNK_SLOTS, _BLOCK,
    )  # fmt: skip
