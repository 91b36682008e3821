"""A kernel stores a NaN, the next one loads it: name the first, not the load."""

import numpy as np
import torch
import triton
import triton.language as tl

KIND = "chain"
CAUSE = "the scale of group 1 is zero in the first kernel; the second only passes the NaN on"
MODE = "triton"
EXPECT = {
    "verdict": "anomaly",
    "anomaly": "nan",
    "kernel": "rescale",
    "statement": "y = x / scale",
    "op": "arith.divf",
    "cause": "0 / 0",
    "inf_cause": "x / 0",
    "first": {"program": (1, 0, 0), "lane": 0},
    "nan_count": 1,
    "inf_statement": "y = x / scale",
    "inf_op": "arith.divf",
    "out": {"middle": {"nan": 1, "inf": 7}, "out": {"nan": 1, "inf": 7}},
}


@triton.jit
def rescale(x_ptr, scale_ptr, out_ptr, N: tl.constexpr):
    group = tl.program_id(0)
    i = group * N + tl.arange(0, N)
    x = tl.load(x_ptr + i)
    scale = tl.load(scale_ptr + group)
    y = x / scale
    tl.store(out_ptr + i, y)


@triton.jit
def shift(x_ptr, out_ptr, N: tl.constexpr):
    i = tl.program_id(0) * N + tl.arange(0, N)
    x = tl.load(x_ptr + i)
    tl.store(out_ptr + i, x + 1.0)


def arrays():
    x = np.arange(24, dtype=np.float32)
    x[8:16] = [0, 1, 2, 3, -4, 5, 6, 7]
    return x, np.array([2, 0, 4], np.float32)


def run(device="cuda"):
    x, scale = (torch.from_numpy(a).to(device) for a in arrays())
    middle, out = torch.zeros_like(x), torch.zeros_like(x)
    rescale[(3,)](x, scale, middle, N=8)
    shift[(3,)](middle, out, N=8)
    return {"middle": middle, "out": out}


def oracle():
    x, scale = arrays()
    y = x / np.repeat(scale, 8)
    return {"stats": {EXPECT["statement"]: y}, "out": {"middle": y, "out": y + 1}}
