"""A row of a masked 2-D tile sums to zero; lanes beyond the matrix do the same and do not count."""

import numpy as np
import torch
import triton
import triton.language as tl

KIND = "nan_div_zero"
CAUSE = "row 4 is all zero and is divided by its sum"
MODE = "triton"
EXPECT = {
    "verdict": "anomaly",
    "anomaly": "nan",
    "kernel": "row_shares",
    "statement": "share = x / total[:, None]",
    "op": "arith.divf",
    "cause": "0 / 0",
    "first": {"program": (0, 1, 0), "lane": (0, 0)},
    "nan_count": 13,
    "padding_count": 0,
    "out": {"out": {"nan": 13, "rows": [4]}},
}


@triton.jit
def row_shares(x_ptr, out_ptr, rows, columns, M: tl.constexpr, N: tl.constexpr):
    r = tl.program_id(1) * M + tl.arange(0, M)[:, None]
    c = tl.arange(0, N)[None, :]
    keep = (r < rows) & (c < columns)
    x = tl.load(x_ptr + r * columns + c, mask=keep, other=0.0)
    total = tl.sum(x, axis=1)
    share = x / total[:, None]
    tl.store(out_ptr + r * columns + c, share, mask=keep)


def arrays():
    x = (1 + np.arange(6 * 13) % 4).astype(np.float32).reshape(6, 13)
    x[4] = 0
    return x


def run(device="cuda"):
    x = torch.from_numpy(arrays()).to(device)
    out = torch.zeros_like(x)
    row_shares[(1, 2)](x, out, 6, 13, M=4, N=16)
    return {"out": out}


def oracle():
    x = np.zeros((8, 16), np.float32)
    x[:6, :13] = arrays()
    share = x / x.sum(1, keepdims=True)
    keep = np.zeros((8, 16), bool)
    keep[:6, :13] = True
    return {
        "stats": {EXPECT["statement"]: share},
        "live": {EXPECT["statement"]: keep},
        "out": {"out": share[:6, :13]},
    }
