"""An independent oracle: records computed from NumPy arrays, as the layout page defines them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from flagprism_torch.records.layout import RECORD_DTYPE
from flagprism_torch.records.model import Block, CallSite, OpEntry, OpTable, Origin

SIGN = 1 << 63
ALL = (1 << 64) - 1


def record_of(
    array: Any,
    dtype: str,
    mask: Any = None,
    *,
    executions: int = 1,
    program: int = 0,
    iteration: int = 0,
) -> np.void:
    """The record (scalar of `RECORD_DTYPE`) of one execution that produced `array`.

    `array` holds the values of a tile or scalar as any NumPy type that represents them exactly
    (fp8, bf16 and fp16 may come as float32). `mask` (bool, broadcastable) selects the live lanes;
    None means all. `dtype` is Triton's name of the type. `program` and `iteration` place the first
    non-finite live lane; lanes are row-major indices into `array`.
    """
    values = np.asarray(array)
    live = np.broadcast_to(True if mask is None else np.asarray(mask, bool), values.shape)
    record = np.zeros((), RECORD_DTYPE)
    record["executions"] = executions
    record["live"] = live.sum()
    if dtype.startswith(("fp", "bf")):
        numbers = values.astype(np.float64)
        bad = live & ~np.isfinite(numbers)
        record["nan"] = (live & np.isnan(numbers)).sum()
        record["posinf"] = (live & (numbers == np.inf)).sum()
        record["neginf"] = (live & (numbers == -np.inf)).sum()
        record["zero"] = (live & (numbers == 0)).sum()
        finite: list[Any] = [float(x) for x in numbers[live & np.isfinite(numbers)]]
        if bad.any():
            bits = max(values.size - 1, 0).bit_length()
            lane = int(np.flatnonzero(bad.reshape(-1))[0])
            record["first"] = ALL - ((program << 35) | (iteration << bits) | lane)
    else:
        finite = [int(x) for x in values[live].reshape(-1)]
        record["zero"] = finite.count(0)
    if finite:
        # -0.0 and 0.0 compare equal but have different keys
        record["min_key"] = ALL - min(_key(x, dtype) for x in finite)
        record["max_key"] = max(_key(x, dtype) for x in finite)
        record["sum"] = _sum(finite)
        scale = 0
        if dtype == "fp64":
            largest = max(abs(x) for x in finite)
            scale = math.frexp(largest)[1] if largest else 0
        record["scale"] = scale
        record["sumsq"] = _sum([math.ldexp(float(x), -scale) ** 2 for x in finite])
    return record[()]


def histogram_of(array: Any, mask: Any = None) -> np.ndarray:
    """int64 [64]: counts per signed binade of the finite, non-zero live lanes."""
    values = np.asarray(array)
    live = np.broadcast_to(True if mask is None else np.asarray(mask, bool), values.shape)
    counts = np.zeros(64, np.int64)
    for x in values[live].reshape(-1).astype(np.float64):
        if np.isfinite(x) and x != 0:
            exponent = min(max(math.frexp(abs(x))[1] - 1, -24), 7)
            counts[31 - (exponent + 24) if x < 0 else 32 + exponent + 24] += 1
    return counts


def entry_of(op_id: int, op: str, array: Any, dtype: str, **fields: Any) -> OpEntry:
    """An op entry for a value like `array`; `fields` override."""
    given: dict[str, Any] = {
        "file": "kernel.py",
        "line": 10 + op_id,
        "variable": f"tmp{op_id}",
        "statement": f"tmp{op_id} = {op}",
        "mask": "valid",
        "shape": np.shape(array),
    }
    return OpEntry(op_id=op_id, op=op, dtype=dtype, **{**given, **fields})


def block_of(
    values: Sequence[tuple[OpEntry, Any, Any]],
    *,
    kernel: str = "kernel_0",
    site: CallSite | None = None,
    origin: Origin | None = None,
    launch: int = 0,
) -> Block:
    """A block of one launch of one program: (entry, array, mask or None) per op.

    Entries with `histogram >= 0` get their histogram; `firsts` is filled for non-finite values.
    """
    ops = tuple(entry for entry, _, _ in values)
    records = np.array([record_of(a, e.dtype, m) for e, a, m in values], RECORD_DTYPE)
    blocks = [(e.histogram, histogram_of(a, m)) for e, a, m in values if e.histogram >= 0]
    histograms = np.zeros((len(blocks), 64), np.int64)
    for index, counts in blocks:
        histograms[index] = counts
    firsts: dict[int, Any] = {}
    for entry, array, mask in values:
        lanes = np.asarray(array)
        if not np.issubdtype(lanes.dtype, np.floating):
            continue
        live = np.broadcast_to(True if mask is None else np.asarray(mask, bool), lanes.shape)
        bad = np.argwhere(live & ~np.isfinite(lanes))
        if len(bad):
            place = tuple(int(i) for i in bad[0])
            lane = place if len(place) > 1 else (place[0] if place else 0)
            firsts[entry.op_id] = (launch, (0, 0, 0), 0, lane)
    return Block(
        site=site or CallSite(f"wrapper.py:{kernel}", kernel, 0, origin or Origin()),
        table=OpTable(kernel, "kernel.py", 1, ops),
        records=records,
        histograms=histograms,
        launches=1,
        first_launch=launch,
        firsts=firsts,
    )


def _sum(numbers: list[Any]) -> float:
    if all(isinstance(x, int) for x in numbers):
        return float(sum(numbers))
    try:
        return math.fsum(numbers)
    except OverflowError:
        return math.inf if max(numbers) > -min(numbers) else -math.inf


def _key(x: Any, dtype: str) -> int:
    if dtype.startswith(("fp", "bf")):
        bits = int(np.float64(x).view(np.uint64))
        return bits ^ ALL if bits & SIGN else bits | SIGN
    return int(x) if dtype == "uint64" else int(x) + SIGN
