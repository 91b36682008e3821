"""Three operations stand on one line; the first two are innocent."""

import numpy as np
import torch
import triton
import triton.language as tl

KIND = "nan_domain"
CAUSE = "sqrt(x) - 1 is negative for x < 1 and zero for x = 1; log makes NaN and -inf of that"
MODE = "triton"
EXPECT = {
    "verdict": "anomaly",
    "anomaly": "nan",
    "kernel": "shrink",
    "statement": "y = tl.log(tl.sqrt(x) - 1.0)",
    "op": "math.log",
    "cause": "log of a negative value",
    "inf_cause": "log of 0",
    "inf_statement": "y = tl.log(tl.sqrt(x) - 1.0)",
    "inf_op": "math.log",
    "first": {"program": (0, 0, 0), "lane": 1},
    "nan_count": 3,
    "out": {"out": {"nan": 3, "inf": 2, "rows": [1, 2, 4, 5, 6]}},
}


@triton.jit
def shrink(x_ptr, out_ptr, N: tl.constexpr):
    i = tl.arange(0, N)
    x = tl.load(x_ptr + i)
    y = tl.log(tl.sqrt(x) - 1.0)
    tl.store(out_ptr + i, y)


X = np.array([4, 0.25, 1, 9, 0, 1, 0.5, 16], np.float32)


def run(device="cuda"):
    x = torch.from_numpy(X).to(device)
    out = torch.zeros_like(x)
    shrink[(1,)](x, out, N=8)
    return {"out": out}


def oracle():
    y = np.log(np.sqrt(X) - 1)
    return {"stats": {EXPECT["statement"]: y}, "out": {"out": y}}
