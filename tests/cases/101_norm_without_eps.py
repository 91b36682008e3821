"""A layer norm without eps: the fp16 variance underflows to 0, rsqrt gives inf, 0 * inf is NaN."""

import numpy as np
import torch
import triton
import triton.language as tl

KIND = "nan_div_zero"
CAUSE = "the variance is rounded to fp16, where 1e-8 is zero, and nothing is added before rsqrt"
MODE = "triton"
EXPECT = {
    "verdict": "anomaly",
    "anomaly": "nan",
    "kernel": "norm_rows",
    "statement": "y = d * rstd",
    "op": "arith.mulf",
    "cause": "0 * inf",
    "inf_cause": "rsqrt of 0",
    "inf_statement": "rstd = tl.rsqrt(var.to(tl.float32))",
    "inf_op": "math.rsqrt",
    "first": {"program": (1, 0, 0), "lane": 2},
    "nan_count": 10,  # two zeros in row 1, all of row 3
    "out": {"out": {"nan": 10, "inf": 6, "rows": [1, 3]}},
}


@triton.jit
def norm_rows(x_ptr, out_ptr, N: tl.constexpr):
    row = tl.program_id(0)
    i = tl.arange(0, N)
    x = tl.load(x_ptr + row * N + i)
    d = x - tl.sum(x, axis=0) / N
    var = (tl.sum(d * d, axis=0) / N).to(tl.float16)
    rstd = tl.rsqrt(var.to(tl.float32))
    y = d * rstd
    tl.store(out_ptr + row * N + i, y)


def arrays():
    x = np.zeros((4, 8), np.float32)
    x[0] = np.arange(8)
    x[1] = np.array([1, -1, 0, 1, -1, 1, -1, 0]) / np.float32(2**13)
    x[2] = np.arange(8)[::-1] * 3
    x[3] = 7
    return x


def run(device="cuda"):
    x = torch.from_numpy(arrays()).to(device)
    out = torch.zeros_like(x)
    norm_rows[(4,)](x, out, N=8)
    return {"out": out}


def oracle():
    x = arrays()
    d = x - x.sum(1, keepdims=True) / np.float32(8)
    var = ((d * d).sum(1, keepdims=True) / np.float32(8)).astype(np.float16)
    rstd = 1 / np.sqrt(var.astype(np.float32))
    y = d * rstd
    assert np.isnan(y).sum() == EXPECT["nan_count"] and np.isinf(rstd).sum() == 2
    return {
        "stats": {EXPECT["inf_statement"]: rstd, EXPECT["statement"]: y},
        "out": {"out": y},
    }
