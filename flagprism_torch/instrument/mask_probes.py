"""Probes that compute masks (instrument.mask_text), generated like those of instrument.values."""

from __future__ import annotations

import triton
import triton.language as tl

from flagprism_torch.instrument.tiles import either


@triton.jit
def reverse_any(mask, AXIS: tl.constexpr, REVERSE: tl.constexpr):
    """Where the lane or a later one along AXIS is in, with REVERSE an earlier one; i1."""
    if REVERSE:
        return tl.associative_scan(mask.to(tl.int32), AXIS, either) != 0
    else:  # noqa: RET505 (in Triton a branch not taken needs its else)
        return tl.associative_scan(mask.to(tl.int32), AXIS, either, reverse=True) != 0


@triton.jit
def within(index, extent, LANES: tl.constexpr):
    """Where 0 <= index + lane < extent, i1 [LANES]; int64, so that a sum cannot wrap."""
    at = index.to(tl.int64) + tl.arange(0, LANES)
    return (at >= 0) & (at < extent.to(tl.int64))


@triton.jit
def rows_within(index, extent):
    """Where 0 <= index < extent, i1, for a tile of indices."""
    return (index >= 0) & (index.to(tl.int64) < extent.to(tl.int64))


@triton.jit
def gathered(mask, index, AXIS: tl.constexpr):
    """The mask's lanes at indices along AXIS, i1."""
    return tl.gather(mask.to(tl.int32), index, AXIS) != 0
