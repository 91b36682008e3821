"""Healthy: the output buffer is full of NaN before the launch and is completely overwritten."""

import numpy as np
import torch
import triton
import triton.language as tl

KIND = "healthy"
SOURCE = "pytorch/pytorch#127574"
CAUSE = "none: torch.empty may contain anything; only reads of it would matter"
MODE = "triton"
EXPECT = {
    "verdict": "healthy",
    "kernel": "copy_all",
    "argument_nan_before": {"out_ptr": 64},
    "out": {"out": {"nan": 0, "inf": 0}},
}


@triton.jit
def copy_all(x_ptr, out_ptr, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + i)
    tl.store(out_ptr + i, x)


def run(device="cuda"):
    x = torch.arange(64.0, device=device)
    out = torch.full((64,), float("nan"), device=device)
    copy_all[(4,)](x, out, BLOCK=16)
    return {"out": out}


def oracle():
    x = np.arange(64, dtype=np.float32)
    return {"stats": {"x = tl.load(x_ptr + i)": x}, "out": {"out": x}}


# of oracle()["stats"], over all lanes of all programs and iterations; min and max of finite values
STATS = {
    "x = tl.load(x_ptr + i)": {
        "count": 64,
        "nan": 0,
        "posinf": 0,
        "neginf": 0,
        "zero": 1,
        "min": 0.0,
        "max": 63.0,
    },
}
