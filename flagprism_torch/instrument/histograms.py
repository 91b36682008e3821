"""Histogram probe: finite non-zero lanes of a stored value per signed binade."""

from __future__ import annotations

import triton
import triton.language as tl

from flagprism_torch.instrument.tiles import INF


@triton.jit
def histogram(x, mask, records, program, block, BLOCKS: tl.constexpr, SHARDS: tl.constexpr,
              MASKED: tl.constexpr):  # fmt: skip
    """Count finite non-zero live lanes per signed binade (records.layout, HIST_*)."""
    if x.dtype == tl.float64:
        v = x
        exponent = (((x.to(tl.int64, bitcast=True) >> 52) & 2047) - 1023).to(tl.int32)
    else:
        v = x.to(tl.float32)
        exponent = ((v.to(tl.int32, bitcast=True) >> 23) & 255) - 127
    magnitude = tl.minimum(tl.maximum(exponent, -24), 7) + 24
    bucket = tl.where(v < 0, 31 - magnitude, 32 + magnitude)
    keep = (tl.abs(v) < INF) & (v != 0)
    if MASKED:
        keep = keep & mask
    bins = tl.arange(0, 64)
    if x.numel == 1:
        here = tl.broadcast_to(tl.reshape(bucket, [1]), [64]) == bins
        counts = (here & tl.broadcast_to(tl.reshape(keep, [1]), [64])).to(tl.int32)
    else:
        counts = tl.histogram(tl.reshape(bucket, [x.numel]), 64, mask=tl.reshape(keep, [x.numel]))
    shard = (program % SHARDS).to(tl.int32)
    at = records.to(tl.pointer_type(tl.int64)) + (shard * BLOCKS + block) * 64 + bins
    tl.atomic_add(at, counts.to(tl.int64), mask=counts > 0, sem="relaxed")
