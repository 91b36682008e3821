"""Healthy: 1/0, rsqrt(0) and log(0) only in lanes that where() replaces."""

import numpy as np
import torch
import triton
import triton.language as tl

KIND = "healthy"
CAUSE = "none: no lane with an infinity is taken"
MODE = "triton"
EXPECT = {
    "verdict": "healthy",
    "kernel": "safe_functions",
    "naive_inf": {"inverse = 1.0 / v": 3},
    "out": {"out": {"nan": 0, "inf": 0}},
}


@triton.jit
def safe_functions(v_ptr, out_ptr, N: tl.constexpr):
    i = tl.arange(0, N)
    v = tl.load(v_ptr + i)
    positive = v > 0
    inverse = 1.0 / v
    root = tl.rsqrt(v)
    logs = tl.log(v)
    total = tl.where(positive, inverse + root, 0.0) + tl.where(v <= 0, 0.0, logs)
    tl.store(out_ptr + i, total)


V = np.array([0, 1, 4, 0, 0.25, 16, 0, 64], np.float32)


def run(device="cuda"):
    v = torch.from_numpy(V).to(device)
    out = torch.zeros_like(v)
    safe_functions[(1,)](v, out, N=8)
    return {"out": out}


def oracle():
    inverse = 1 / V
    total = np.where(V > 0, inverse + 1 / np.sqrt(V) + np.log(V), 0)
    return {"stats": {"inverse = 1.0 / v": inverse}, "out": {"out": total}}
