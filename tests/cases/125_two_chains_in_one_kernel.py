"""Two outputs of one kernel go wrong for reasons of their own: two findings, in program order."""

import numpy as np
import torch
import triton
import triton.language as tl

KIND = "chain"
CAUSE = "the log of a negative value reaches the first output, 0 / 0 the second"
MODE = "triton"
EXPECT = {
    "verdict": "anomaly",
    "anomaly": "nan",
    "kernel": "two_outputs",
    "statement": "logs = tl.log(x)",
    "op": "math.log",
    "cause": "log of a negative value",
    "also": "ratio = x / y",
    "first": {"program": (0, 0, 0), "lane": 3},
    "nan_count": 1,
    "out": {"logs": {"nan": 1, "rows": [3]}, "ratio": {"nan": 1, "rows": [5]}},
}


@triton.jit
def two_outputs(x_ptr, y_ptr, logs_ptr, ratio_ptr, N: tl.constexpr):
    i = tl.arange(0, N)
    x = tl.load(x_ptr + i)
    y = tl.load(y_ptr + i)
    logs = tl.log(x)
    ratio = x / y
    tl.store(logs_ptr + i, tl.where(x != 0, logs, 0.0))
    tl.store(ratio_ptr + i, ratio)


X = np.array([1, 2, 3, -4, 5, 0, 7, 8], np.float32)
Y = np.array([1, 2, 3, 4, 5, 0, 7, 8], np.float32)


def run(device="cuda"):
    x, y = (torch.from_numpy(a).to(device) for a in (X, Y))
    logs, ratio = torch.zeros_like(x), torch.zeros_like(x)
    two_outputs[(1,)](x, y, logs, ratio, N=8)
    return {"logs": logs, "ratio": ratio}


def oracle():
    return {
        "stats": {"ratio = x / y": X / Y},
        "out": {"logs": np.where(X != 0, np.log(X), 0), "ratio": X / Y},
    }
