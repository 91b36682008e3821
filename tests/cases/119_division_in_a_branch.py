"""Only programs that take the branch divide; one of them by zero."""

import numpy as np
import torch
import triton
import triton.language as tl

KIND = "nan_div_zero"
CAUSE = "group 3 asks for normalisation and has the sum zero"
MODE = "triton"
EXPECT = {
    "verdict": "anomaly",
    "anomaly": "nan",
    "kernel": "maybe_normalise",
    "statement": "x = x / total",
    "op": "arith.divf",
    "cause": "0 / 0",
    "inf_op": "arith.divf",
    "inf_statement": "x = x / total",
    "first": {"program": (3, 0, 0), "lane": 1},
    "nan_count": 2,
    "out": {"out": {"nan": 2, "inf": 6}},
}


@triton.jit
def maybe_normalise(x_ptr, flag_ptr, out_ptr, N: tl.constexpr):
    group = tl.program_id(0)
    i = group * N + tl.arange(0, N)
    x = tl.load(x_ptr + i)
    flag = tl.load(flag_ptr + group)
    if flag != 0:
        total = tl.sum(x, axis=0)
        x = x / total
    tl.store(out_ptr + i, x)


def arrays():
    x = (1 + np.arange(40) % 7).astype(np.float32).reshape(5, 8)
    x[1] = [1, 0, -1, 2, -2, 0, 3, -3]  # sums to zero too, but is not divided
    x[3] = x[1]
    return x, np.array([1, 0, 0, 1, 1], np.int32)


def run(device="cuda"):
    x, flag = (torch.from_numpy(a).to(device) for a in arrays())
    out = torch.zeros_like(x)
    maybe_normalise[(5,)](x, flag, out, N=8)
    return {"out": out}


def oracle():
    x, flag = arrays()
    y = x / x.sum(1, keepdims=True)
    return {
        "stats": {EXPECT["statement"]: y[flag != 0]},
        "out": {"out": np.where(flag[:, None] != 0, y, x)},
    }
