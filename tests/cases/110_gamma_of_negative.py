"""Gamma correction of a slightly negative pixel: a negative base to a fractional power."""

import numpy as np
import torch
import triton
import triton.language as tl
from triton.language.extra import libdevice

KIND = "nan_domain"
CAUSE = "an earlier filter undershoots below 0; pow of a negative base is NaN"
MODE = "triton"
EXPECT = {
    "verdict": "anomaly",
    "anomaly": "nan",
    "kernel": "gamma",
    "statement": "y = libdevice.pow(x, 0.4545)",
    "op": "tt.extern_elementwise",
    "cause": "pow of a negative value with a fractional exponent",
    "first": {"program": (0, 0, 0), "lane": 2},
    "nan_count": 2,
    "out": {"out": {"nan": 2, "rows": [2, 9]}},
}


@triton.jit
def gamma(x_ptr, out_ptr, n, N: tl.constexpr):
    i = tl.arange(0, N)
    x = tl.load(x_ptr + i, mask=i < n, other=-1.0)
    y = libdevice.pow(x, 0.4545)
    tl.store(out_ptr + i, y, mask=i < n)


X = np.array([0.5, 1, -0.01, 0, 0.25, 0.75, 0.125, 0.0625, 1, -0.5, 0.3, 0.9], np.float32)


def run(device="cuda"):
    x = torch.from_numpy(X).to(device)
    out = torch.zeros_like(x)
    gamma[(1,)](x, out, 12, N=16)
    return {"out": out}


def oracle():
    x = np.full(16, -1, np.float32)
    x[:12] = X
    y = np.power(x, np.float32(0.4545))
    return {
        "stats": {EXPECT["statement"]: y},
        "live": {EXPECT["statement"]: np.arange(16) < 12},
        "out": {"out": y[:12]},
    }
