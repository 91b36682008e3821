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
_BLOCK = 1024
_SIGN: tl.constexpr = tl.constexpr(-(1 << 63))
_NONE: tl.constexpr = tl.constexpr((1 << 63) - 1)
_ALL_ONES = (1 << 64) - 1
_compiled: dict[Any, Any] = {}  # (device, dtype, alignment, size of indices) -> compiled kernel


@triton.jit
def _order_key(value):
    """records.layout.order_key of a float64, as int64."""
    bits = value.to(tl.int64, bitcast=True)
    return tl.where(bits < 0, ~bits, bits ^ _SIGN)


@triton.jit(do_not_specialize=["numel"])
def record_kernel(values, records, numel, BLOCK: tl.constexpr, DOUBLE: tl.constexpr):
    """values: floats [numel], contiguous -> records int64 [programs, 12], all zero before. DOUBLE:
    whether the values are float64. The lane of a place is the flat index."""
    WIDE: tl.constexpr = tl.float64 if DOUBLE else tl.float32
    program = tl.program_id(0)
    lane = tl.arange(0, BLOCK).to(tl.int64)
    nan = tl.zeros([BLOCK], tl.int64)
    posinf = tl.zeros([BLOCK], tl.int64)
    neginf = tl.zeros([BLOCK], tl.int64)
    zero = tl.zeros([BLOCK], tl.int64)
    finite = tl.zeros([BLOCK], tl.int64)
    first = tl.full([BLOCK], _NONE, tl.int64)
    low = tl.full([BLOCK], float("inf"), WIDE)
    high = tl.full([BLOCK], float("-inf"), WIDE)
    total = tl.zeros([BLOCK], tl.float64)
    squares = tl.zeros([BLOCK], tl.float64)
    for start in range(program.to(tl.int64) * BLOCK, numel, tl.num_programs(0) * BLOCK):
        index = start + lane
        live = index < numel
        x = tl.load(values + index, mask=live, other=0.0).to(WIDE)
        is_nan = x != x
        is_high = x == float("inf")
        is_low = x == float("-inf")
        bad = is_nan | is_high | is_low
        good = live & ~bad
        nan += is_nan
        posinf += is_high
        neginf += is_low
        zero += live & (x == 0.0)
        finite += good
        first = tl.minimum(first, tl.where(bad, index, _NONE))
        low = tl.minimum(low, tl.where(good, x, float("inf")))
        high = tl.maximum(high, tl.where(good, x, float("-inf")))
        x = tl.where(good, x, 0.0).to(tl.float64)
        total += x
        squares += x * x
    counted = tl.sum(finite, 0)
    nans = tl.sum(nan, 0)
    highs = tl.sum(posinf, 0)
    lows = tl.sum(neginf, 0)
    earliest = tl.min(first, 0)
    smallest = ~_order_key(tl.min(low, 0).to(tl.float64))
    largest = _order_key(tl.max(high, 0).to(tl.float64))
    some = counted > 0
    at = records + program.to(tl.int64) * 12
    tl.store(at, (program == 0).to(tl.int64))
    tl.store(at + 1, counted + nans + highs + lows)
    tl.store(at + 2, nans)
    tl.store(at + 3, highs)
    tl.store(at + 4, lows)
    tl.store(at + 5, tl.sum(zero, 0))
    tl.store(at + 6, tl.where(some, smallest, 0))
    tl.store(at + 7, tl.where(some, largest, 0))
    tl.store(at + 8, tl.sum(total, 0).to(tl.int64, bitcast=True))
    tl.store(at + 9, tl.sum(squares, 0).to(tl.int64, bitcast=True))
    tl.store(at + 10, tl.where(earliest == _NONE, 0, ~earliest))


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
    return min(MAX_PROGRAMS, -(-tensor.numel() // _BLOCK))


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
            values, records, numel, BLOCK=_BLOCK, DOUBLE=double, num_warps=4
        )
        return
    kernel.run(
        programs, 1, 1, stream, kernel.function, kernel.packed_metadata, None, None, None,
        values, records, numel, _BLOCK, double,
    )  # fmt: skip
