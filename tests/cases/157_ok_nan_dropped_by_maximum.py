"""Healthy: sqrt of negative values, cut off by a maximum that drops NaN; nothing gets out."""

import numpy as np
import torch
import triton
import triton.language as tl

KIND = "healthy"
CAUSE = "none: the NaN is born and hidden again"
MODE = "triton"
EXPECT = {
    "verdict": "healthy",
    "kernel": "clipped_root",
    "naive_nan": {"root = tl.sqrt(x)": 2},
    "hidden": ["root = tl.sqrt(x)"],
    "out": {"out": {"nan": 0, "inf": 0}},
}


@triton.jit
def clipped_root(x_ptr, out_ptr, N: tl.constexpr):
    i = tl.arange(0, N)
    x = tl.load(x_ptr + i)
    root = tl.sqrt(x)
    tl.store(out_ptr + i, tl.maximum(root, 0.0))


X = np.array([4, 9, -1, 16, 0, -2, 25, 1], np.float32)


def run(device="cuda"):
    x = torch.from_numpy(X).to(device)
    out = torch.zeros_like(x)
    clipped_root[(1,)](x, out, N=8)
    return {"out": out}


def oracle():
    root = np.sqrt(X)
    return {"stats": {"root = tl.sqrt(x)": root}, "out": {"out": np.fmax(root, 0)}}
