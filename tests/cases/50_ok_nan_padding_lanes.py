"""Healthy: padding lanes are loaded as NaN on purpose and never reach a store."""

import numpy as np
import torch
import triton
import triton.language as tl

KIND = "healthy"
SOURCE = "triton-lang/triton#10448"
CAUSE = "none: every NaN lane is switched off at the store"
MODE = "triton"
EXPECT = {
    "verdict": "healthy",
    "kernel": "affine",
    "naive_nan": {"y = x * 2.0 + 1.0": 24},
    "active_nan": 0,
    "out": {"out": {"nan": 0, "inf": 0}},
}


@triton.jit
def affine(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    keep = offs < n
    x = tl.load(x_ptr + offs, mask=keep, other=float("nan"))
    y = x * 2.0 + 1.0
    tl.store(out_ptr + offs, y, mask=keep)


def run(device="cuda"):
    x = torch.arange(40.0, device=device)
    out = torch.zeros(40, device=device)
    affine[(2,)](x, out, 40, BLOCK=32)
    return {"out": out}


def oracle():
    y = np.full(64, np.nan, np.float32)
    y[:40] = np.arange(40) * 2 + 1
    return {"stats": {"y = x * 2.0 + 1.0": y}, "out": {"out": y[:40]}}


# of oracle()["stats"], over all lanes of all programs and iterations; min and max of finite values
STATS = {
    "y = x * 2.0 + 1.0": {
        "count": 64,
        "nan": 24,
        "posinf": 0,
        "neginf": 0,
        "zero": 0,
        "min": 1.0,
        "max": 79.0,
    },
}
