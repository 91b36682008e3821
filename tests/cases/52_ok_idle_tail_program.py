"""Healthy: the last program has no active lane; its masked lanes compute 0/0."""

import numpy as np
import torch
import triton
import triton.language as tl

KIND = "healthy"
SOURCE = "triton-lang/triton-ascend#984"
CAUSE = "none: the NaN lanes are all off"
MODE = "triton"
EXPECT = {
    "verdict": "healthy",
    "kernel": "ratio",
    "naive_nan": {"q = a / b": 60},
    "active_nan": 0,
    "idle_programs": [(2, 0, 0)],
    "out": {"out": {"nan": 0, "inf": 0}},
}


@triton.jit
def ratio(a_ptr, b_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    keep = offs < n
    a = tl.load(a_ptr + offs, mask=keep, other=0.0)
    b = tl.load(b_ptr + offs, mask=keep, other=0.0)
    q = a / b
    tl.store(out_ptr + offs, q, mask=keep)


def run(device="cuda"):
    a = torch.arange(36.0, device=device)
    b = torch.full((36,), 2.0, device=device)
    out = torch.zeros(36, device=device)
    ratio[(3,)](a, b, out, 36, BLOCK=32)
    return {"out": out}


def oracle():
    q = np.full(96, np.nan, np.float32)
    q[:36] = np.arange(36) / 2
    return {"stats": {"q = a / b": q}, "out": {"out": q[:36]}}


# of oracle()["stats"], over all lanes of all programs and iterations; min and max of finite values
STATS = {
    "q = a / b": {
        "count": 96,
        "nan": 60,
        "posinf": 0,
        "neginf": 0,
        "zero": 1,
        "min": 0.0,
        "max": 17.5,
    },
}
