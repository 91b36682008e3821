"""Parts that probes share: lanes of a tile, the share of a thread, and what reductions combine by.

Note [Lane order]
`per_thread` is generated with `allow_reorder`, so that a thread keeps its own elements. Quantities
that need a lane's place are computed before it; nothing after it may depend on the lane order.
Triton gives the result a layout with one row per thread only if a `reduce` along axis 1 uses it
directly (OptimizeReshapeLayoutPattern in its OptimizeThreadLocality.cpp); otherwise rows may be
spread over lanes, and each iteration of a loop pays shuffles and shared memory.
"""

from __future__ import annotations

import triton
import triton.language as tl

NO_LANE = tl.constexpr(0x7FFFFFFF)
INF = tl.constexpr(float("inf"))


@triton.jit
def added(a, b):
    return a + b


@triton.jit
def lower_of(a, b):
    return tl.minimum(a, b)


@triton.jit
def higher_of(a, b):
    return tl.maximum(a, b)


@triton.jit
def either(a, b):
    return a | b


@triton.jit
def lane_index(x):
    """Row-major lane index, int32, shape of x."""
    if len(x.shape) == 1:
        return tl.arange(0, x.numel)
    elif len(x.shape) == 2:  # noqa: RET505 (in Triton a branch not taken needs its else)
        # sums of ranges need no layout conversion, a reshape may
        rows = tl.expand_dims(tl.arange(0, x.shape[0]) * x.shape[1], 1)
        return tl.broadcast_to(rows + tl.expand_dims(tl.arange(0, x.shape[1]), 0), x.shape)
    else:
        return tl.reshape(tl.arange(0, x.numel), x.shape)


@triton.jit
def per_thread(x, T: tl.constexpr):
    """x as [T, K] in any order (Note [Lane order])."""
    return tl.reshape(x, [T, x.numel // T])


@triton.jit
def as_float(x):
    """x as float32, or as it is if it is float64."""
    if x.dtype == tl.float64:
        return x
    else:  # noqa: RET505 (in Triton a branch not taken needs its else)
        return x.to(tl.float32)
