"""A running sum of large fp32 values overflows and stays infinite."""

import numpy as np
import torch
import triton
import triton.language as tl

KIND = "overflow"
CAUSE = "3e38 + 3e38 is beyond fp32; every later element of the scan has it in its sum"
MODE = "triton"
EXPECT = {
    "verdict": "anomaly",
    "anomaly": "inf",
    "kernel": "running_sum",
    "statement": "c = tl.cumsum(x, axis=0)",
    "op": "tt.scan",
    "first": {"program": (0, 0, 0), "lane": (3, 1)},
    "inf_count": 5,
    "out": {"out": {"nan": 0, "inf": 5}},
}


@triton.jit
def running_sum(x_ptr, out_ptr, M: tl.constexpr, N: tl.constexpr):
    at = tl.arange(0, M)[:, None] * N + tl.arange(0, N)[None, :]
    x = tl.load(x_ptr + at)
    c = tl.cumsum(x, axis=0)
    tl.store(out_ptr + at, c)


def arrays():
    x = np.ones((8, 4), np.float32)
    x[[1, 3], 1] = 3e38
    return x


def run(device="cuda"):
    x = torch.from_numpy(arrays()).to(device)
    out = torch.zeros_like(x)
    running_sum[(1,)](x, out, M=8, N=4)
    return {"out": out}


def oracle():
    c = np.cumsum(arrays(), 0, dtype=np.float32)
    return {"stats": {EXPECT["statement"]: c}, "out": {"out": c}}
