"""The record of a whole tensor: what the probes of a store leave, for results that no twin writes.

On an accelerator one kernel of ours reads the tensor on the current stream; on the CPU NumPy does.
Either writes records into scratch that the fold then merges (records.buffers).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import triton
import triton.language as tl

from flagprism_torch.records.layout import RECORD_BYTES, RECORD_DTYPE, order_key, pack_first
from flagprism_torch.records.modes import unseen

DTYPES = {
    torch.float16: "fp16",
    torch.bfloat16: "bf16",
    torch.float32: "fp32",
    torch.float64: "fp64",
}
MAX_NUMEL = 1 << 34  # a place holds 35 bits of lane (records.layout)
MAX_PROGRAMS = 1024
_BLOCK, _CHUNK = 512, 4096  # 96 registers on sm_90, 254 with the double
_SIGN: tl.constexpr = tl.constexpr(-(1 << 63))
_NONE: tl.constexpr = tl.constexpr((1 << 63) - 1)
_ALL_ONES = (1 << 64) - 1
_compiled: dict[Any, Any] = {}  # (device, dtype, alignment, size of indices) -> compiled kernel


@triton.jit
def _order_key(value):
    """records.layout.order_key of a float64, as int64."""
    bits = value.to(tl.int64, bitcast=True)
    return tl.where(bits < 0, ~bits, bits ^ _SIGN)


@triton.jit
def _merge(z0, l0, h0, t0, s0, z1, l1, h1, t1, s1):
    return z0 + z1, tl.minimum(l0, l1), tl.maximum(h0, h1), t0 + t1, s0 + s1


@triton.jit
def _exactly(values, start, numel, CHUNK: tl.constexpr, BLOCK: tl.constexpr):
    """(nan, posinf, neginf, first flat index or _NONE, low, high, total, squares) of a chunk, each
    lane looked at; extrema and sums float64."""
    nan = tl.zeros([BLOCK], tl.int32)
    posinf = tl.zeros([BLOCK], tl.int32)
    neginf = tl.zeros([BLOCK], tl.int32)
    first = tl.full([BLOCK], _NONE, tl.int64)
    total = tl.zeros([BLOCK], tl.float64)
    squares = tl.zeros([BLOCK], tl.float64)
    low = tl.full([BLOCK], float("nan"), tl.float64)
    high = low
    for k in range(0, CHUNK, BLOCK):
        index = start + k + tl.arange(0, BLOCK)
        live = index < numel
        x = tl.load(values + index, mask=live, other=0.0).to(tl.float64)
        good = live & (tl.abs(x) < float("inf"))
        nan += x != x
        posinf += x == float("inf")
        neginf += x == float("-inf")
        first = tl.minimum(first, tl.where(live & ~good, index, _NONE))
        low = tl.minimum(low, tl.where(good, x, float("nan")))
        high = tl.maximum(high, tl.where(good, x, float("nan")))
        x = tl.where(good, x, 0.0)
        total += x
        squares += x * x
    return (tl.sum(nan, 0).to(tl.int64), tl.sum(posinf, 0).to(tl.int64),
            tl.sum(neginf, 0).to(tl.int64), tl.min(first, 0), tl.min(low, 0), tl.max(high, 0),
            tl.sum(total, 0), tl.sum(squares, 0))  # fmt: skip


@triton.jit(do_not_specialize=["numel"])
def record_kernel(values, records, numel, BLOCK: tl.constexpr, CHUNK: tl.constexpr,
                  DOUBLE: tl.constexpr):  # fmt: skip
    """values: floats [numel], contiguous -> records int64 [programs, 12], all zero before. DOUBLE:
    whether the values are float64. The lane of a place is the flat index.

    A chunk is summed up in float32 (float64 for float64); if its squares say that this was not
    right, because a value is not finite or leaves the range, it is read once more by `_exactly`.
    """
    WIDE: tl.constexpr = tl.float64 if DOUBLE else tl.float32
    LARGE: tl.constexpr = 1e300 if DOUBLE else 1e30
    SMALL: tl.constexpr = 1e-150 if DOUBLE else 1e-16
    program = tl.program_id(0)
    lane = tl.arange(0, BLOCK)
    zero = tl.full([], 0, tl.int64)
    nan, posinf, neginf, live_lanes = zero, zero, zero, zero
    first = tl.full([], _NONE, tl.int64)
    total = tl.full([], 0.0, tl.float64)
    squares = total
    low = tl.full([], float("nan"), tl.float64)
    high = low
    for start in range(program.to(tl.int64) * CHUNK, numel, tl.num_programs(0) * CHUNK):
        some_zero = tl.zeros([BLOCK], tl.int32)
        some_low = tl.full([BLOCK], float("nan"), WIDE)
        some_high = some_low
        some_total = tl.zeros([BLOCK], WIDE)
        some_squares = tl.zeros([BLOCK], WIDE)
        for k in tl.static_range(0, CHUNK, BLOCK):
            left = tl.minimum(numel - start - k, BLOCK).to(tl.int32)
            live = lane < left
            x = tl.load(values + start + k + lane, mask=live, other=0.0).to(WIDE)
            known = tl.where(live, x, float("nan"))
            some_zero += known == 0.0
            some_low = tl.minimum(some_low, known)
            some_high = tl.maximum(some_high, known)
            some_total += x
            some_squares += x * x
        z, lo, hi, t, s = tl.reduce(
            (some_zero, some_low, some_high, some_total, some_squares), 0, _merge
        )
        zero += z
        live_lanes += tl.minimum(numel - start, CHUNK)
        largest = tl.maximum(-lo, hi)
        chunk_low, chunk_high = lo.to(tl.float64), hi.to(tl.float64)
        chunk_total, chunk_squares = t.to(tl.float64), s.to(tl.float64)
        if ((s <= LARGE) == 0) | ((largest > 0) & (largest < SMALL)):
            n, p, m, at, chunk_low, chunk_high, chunk_total, chunk_squares = _exactly(
                values, start, numel, CHUNK, BLOCK
            )
            nan += n
            posinf += p
            neginf += m
            first = tl.minimum(first, at)
        low = tl.minimum(low, chunk_low)
        high = tl.maximum(high, chunk_high)
        total += chunk_total
        squares += chunk_squares
    some = low == low
    at = records + program.to(tl.int64) * 12
    tl.store(at, (program == 0).to(tl.int64))
    tl.store(at + 1, live_lanes)
    tl.store(at + 2, nan)
    tl.store(at + 3, posinf)
    tl.store(at + 4, neginf)
    tl.store(at + 5, zero)
    tl.store(at + 6, tl.where(some, ~_order_key(low), 0))
    tl.store(at + 7, tl.where(some, _order_key(high), 0))
    tl.store(at + 8, total.to(tl.int64, bitcast=True))
    tl.store(at + 9, squares.to(tl.int64, bitcast=True))
    tl.store(at + 10, tl.where(first == _NONE, 0, ~first))


def recordable(tensor: torch.Tensor) -> bool:
    """Whether `write` can record the tensor: a plain strided one of floats that has elements."""
    return (
        type(tensor) is torch.Tensor
        and tensor.layout == torch.strided
        and tensor.dtype in DTYPES
        and 0 < tensor.numel() <= MAX_NUMEL
    )


def programs_of(tensor: torch.Tensor) -> int:
    """Records that `write` makes."""
    if tensor.device.type == "cpu":
        return 1
    return min(MAX_PROGRAMS, -(-tensor.numel() // _CHUNK))


def write(tensor: torch.Tensor, scratch: torch.Tensor, stream: int) -> None:
    """Write the records of a `recordable` tensor into scratch, int32, all zero; nothing waits.

    The statement of such a record ran once, on a tile of the tensor's shape.
    """
    with unseen(), torch.no_grad():
        values = tensor.detach().contiguous()  # a copy where flat indices are not memory order
        if tensor.device.type == "cpu":
            words = scratch[: RECORD_BYTES // 4]
            words.copy_(torch.from_numpy(record_of(values).view(np.int32)))
        else:
            _launch(values, scratch.view(torch.int64), programs_of(tensor), stream)


def record_of(tensor: torch.Tensor) -> np.ndarray[Any, Any]:
    """The record [1] of a CPU tensor of floats."""
    x = tensor.double().numpy().reshape(-1)
    bad = ~np.isfinite(x)
    finite = x[~bad]
    record = np.zeros(1, RECORD_DTYPE)
    record["executions"] = 1
    record["live"] = x.size
    record["nan"] = np.isnan(x).sum()
    record["posinf"] = np.isposinf(x).sum()
    record["neginf"] = np.isneginf(x).sum()
    record["zero"] = x.size - np.count_nonzero(x)
    if finite.size:
        record["min_key"] = _ALL_ONES - order_key(finite.min(), "fp64")
        record["max_key"] = order_key(finite.max(), "fp64")
        with np.errstate(over="ignore"):
            record["sum"] = finite.sum()
            record["sumsq"] = np.square(finite).sum()
    if finite.size < x.size:
        record["first"] = pack_first(0, 0, int(bad.argmax()), x.size)
    return record


def _launch(values: torch.Tensor, records: torch.Tensor, programs: int, stream: int) -> None:
    """As records.fold launches: directly, once there is a compiled kernel."""
    numel = values.numel()
    aligned = values.data_ptr() % 16 == 0  # what Triton specialises pointers on
    key = (values.device, values.dtype, aligned, numel >= 1 << 31)
    kernel = _compiled.get(key)
    double = values.dtype == torch.float64
    if kernel is None:
        _compiled[key] = record_kernel[(programs,)](
            values, records, numel, BLOCK=_BLOCK, CHUNK=_CHUNK, DOUBLE=double, num_warps=4
        )
        return
    kernel.run(
        programs, 1, 1, stream, kernel.function, kernel.packed_metadata, None, None, None,
        values, records, numel, _BLOCK, _CHUNK, double,
    )  # fmt: skip
