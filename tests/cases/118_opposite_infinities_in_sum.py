"""Loaded +inf and -inf are meant; a row that holds both sums to NaN."""

import numpy as np
import torch
import triton
import triton.language as tl

KIND = "nan_from_inf"
CAUSE = "row 2 has a +inf and a -inf in one sum"
MODE = "triton"
EXPECT = {
    "verdict": "anomaly",
    "anomaly": "nan",
    "kernel": "row_sums",
    "statement": "total = tl.sum(x, axis=1)",
    "op": "tt.reduce",
    "cause": "inf - inf in a sum",
    "first": {"program": (0, 0, 0), "lane": 2},
    "nan_count": 1,
    "out": {"out": {"nan": 1, "inf": 2}},
}


@triton.jit
def row_sums(x_ptr, out_ptr, M: tl.constexpr, N: tl.constexpr):
    r = tl.arange(0, M)
    x = tl.load(x_ptr + r[:, None] * N + tl.arange(0, N)[None, :])
    total = tl.sum(x, axis=1)
    tl.store(out_ptr + r, total)


def arrays():
    x = (np.arange(32) % 5).astype(np.float32).reshape(4, 8)
    x[0, 3] = x[2, 6] = np.inf
    x[2, 1] = x[3, 7] = -np.inf
    return x


def run(device="cuda"):
    x = torch.from_numpy(arrays()).to(device)
    out = torch.zeros(4, device=device)
    row_sums[(1,)](x, out, M=4, N=8)
    return {"out": out}


def oracle():
    x = arrays()
    return {
        "stats": {EXPECT["statement"]: x.sum(1)},
        "out": {"out": x.sum(1)},
    }
