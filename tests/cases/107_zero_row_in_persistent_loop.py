"""Programs loop over rows; the first row that sums to zero comes in iteration 3 of program 5."""

import numpy as np
import torch
import triton
import triton.language as tl

KIND = "nan_div_zero"
CAUSE = "rows 23 and 25 are zero and are divided by their sum"
MODE = "triton"
EXPECT = {
    "verdict": "anomaly",
    "anomaly": "nan",
    "kernel": "normalise_rows",
    "statement": "y = x / tl.sum(x, axis=0)",
    "op": "arith.divf",
    "cause": "0 / 0",
    "first": {"program": (5, 0, 0), "iteration": 3, "lane": 0},
    "nan_count": 32,
    "out": {"out": {"nan": 32, "rows": [23, 25]}},
}


@triton.jit
def normalise_rows(x_ptr, out_ptr, ROWS: tl.constexpr, N: tl.constexpr):
    i = tl.arange(0, N)
    for k in range(ROWS):
        at = (tl.program_id(0) * ROWS + k) * N + i
        x = tl.load(x_ptr + at)
        y = x / tl.sum(x, axis=0)
        tl.store(out_ptr + at, y)


def arrays():
    x = (1 + np.arange(32 * 16) % 5).astype(np.float32).reshape(32, 16)
    x[23] = x[25] = 0
    return x


def run(device="cuda"):
    x = torch.from_numpy(arrays()).to(device)
    out = torch.zeros_like(x)
    normalise_rows[(8,)](x, out, ROWS=4, N=16)
    return {"out": out}


def oracle():
    x = arrays()
    y = x / x.sum(1, keepdims=True)
    return {"stats": {EXPECT["statement"]: y}, "out": {"out": y}}
