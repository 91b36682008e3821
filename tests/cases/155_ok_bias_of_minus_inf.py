"""Healthy: a loaded bias holds -inf, and the biased scores are stored for the next kernel."""

import numpy as np
import torch
import triton
import triton.language as tl

KIND = "healthy"
CAUSE = "none: an infinity that is loaded is meant, and so is the sum that holds it"
MODE = "triton"
EXPECT = {
    "verdict": "healthy",
    "kernel": "add_bias",
    "benign_inf": ["b", "y"],
    "out": {"scores": {"nan": 0, "inf": 28}, "out": {"nan": 0, "inf": 0}},
}


@triton.jit
def add_bias(s_ptr, b_ptr, out_ptr, N: tl.constexpr):
    i = tl.program_id(0) * N + tl.arange(0, N)
    b = tl.load(b_ptr + i)
    y = tl.load(s_ptr + i) * 0.5 + b
    tl.store(out_ptr + i, y)


@triton.jit
def soft_rows(s_ptr, out_ptr, N: tl.constexpr):
    i = tl.program_id(0) * N + tl.arange(0, N)
    s = tl.load(s_ptr + i)
    e = tl.exp(s - tl.max(s, axis=0))
    tl.store(out_ptr + i, e / tl.sum(e, axis=0))


def arrays():
    s = (np.arange(64) * 5 % 9).astype(np.float32).reshape(8, 8)
    return s, np.where(np.tri(8, dtype=bool), 0, -np.inf).astype(np.float32)


def run(device="cuda"):
    s, b = (torch.from_numpy(a).to(device) for a in arrays())
    scores, out = torch.zeros_like(s), torch.zeros_like(s)
    add_bias[(8,)](s, b, scores, N=8)
    soft_rows[(8,)](scores, out, N=8)
    return {"scores": scores, "out": out}


def oracle():
    s, b = arrays()
    y = s / 2 + b
    e = np.exp(y - y.max(1, keepdims=True))
    return {
        "stats": {"b = tl.load(b_ptr + i)": b, "y = tl.load(s_ptr + i) * 0.5 + b": y},
        "out": {"scores": y, "out": e / e.sum(1, keepdims=True)},
    }
