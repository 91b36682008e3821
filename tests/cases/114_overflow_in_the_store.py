"""The value is finite in fp32 and becomes inf in the cast that a store to fp16 makes."""

import numpy as np
import torch
import triton
import triton.language as tl

KIND = "overflow_half"
CAUSE = "x * x passes 65504, the largest fp16; the cast is part of tl.store"
MODE = "triton"
EXPECT = {
    "verdict": "anomaly",
    "anomaly": "inf",
    "kernel": "squares",
    "statement": "tl.store(out_ptr + i, y, mask=i < n)",
    "op": "arith.truncf",
    "cause": "cast overflows fp16",
    "first": {"program": (1, 0, 0), "lane": 2},
    "inf_count": 5,
    "out": {"out": {"nan": 0, "inf": 5}},
}


@triton.jit
def squares(x_ptr, out_ptr, n, N: tl.constexpr):
    i = tl.program_id(0) * N + tl.arange(0, N)
    x = tl.load(x_ptr + i, mask=i < n, other=1000.0)
    y = x * x
    tl.store(out_ptr + i, y, mask=i < n)


X = np.array([0, 2, -4, 8, 16, 255, 256, -256, 300, 255.875, 1e4, -3e4, 1], np.float32)


def run(device="cuda"):
    x = torch.from_numpy(X).to(device)
    out = torch.zeros(13, dtype=torch.float16, device=device)
    squares[(4,)](x, out, 13, N=4)
    return {"out": out}


def oracle():
    x = np.full(16, 1000, np.float32)
    x[:13] = X
    y = x * x
    return {
        "stats": {"y = x * x": y},
        "live": {"y = x * x": np.arange(16) < 13},
        "out": {"out": y[:13].astype(np.float16)},
    }
