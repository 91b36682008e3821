"""Healthy: inf and NaN in the branch that where() does not take."""

import numpy as np
import torch
import triton
import triton.language as tl

KIND = "healthy"
SOURCE = "flagos-ai/FlagGems#6089"
CAUSE = "none: every non-finite lane is selected away"
MODE = "triton"
EXPECT = {
    "verdict": "healthy",
    "kernel": "entr_positive",
    "naive_nan": {"lx = tl.log(x)": 3, "t = -x * lx": 4},
    "naive_inf": {"lx = tl.log(x)": 1},
    "discarded_by": "y = tl.where(x > 0, t, 0.0)",
    "out": {"out": {"nan": 0, "inf": 0}},
}


@triton.jit
def entr_positive(x_ptr, out_ptr, N: tl.constexpr):
    i = tl.arange(0, N)
    x = tl.load(x_ptr + i)
    lx = tl.log(x)
    t = -x * lx
    y = tl.where(x > 0, t, 0.0)
    tl.store(out_ptr + i, y)


X = np.array([-3, -2, -1, 0, 1, 2, 3, 4], np.float32)


def run(device="cuda"):
    x = torch.from_numpy(X).to(device)
    out = torch.zeros_like(x)
    entr_positive[(1,)](x, out, N=8)
    return {"out": out}


def oracle():
    with np.errstate(all="ignore"):
        lx = np.log(X)
        t = -X * lx
    y = np.where(X > 0, t, 0).astype(np.float32)
    return {
        "stats": {"lx = tl.log(x)": lx, "t = -x * lx": t, "y = tl.where(x > 0, t, 0.0)": y},
        "out": {"out": y},
    }


# of oracle()["stats"], over all lanes of all programs and iterations; min and max of finite values
STATS = {
    "lx = tl.log(x)": {
        "count": 8,
        "nan": 3,
        "posinf": 0,
        "neginf": 1,
        "zero": 1,
        "min": 0.0,
        "max": 1.3862943649291992,
    },
    "t = -x * lx": {
        "count": 8,
        "nan": 4,
        "posinf": 0,
        "neginf": 0,
        "zero": 1,
        "min": -5.545177459716797,
        "max": -0.0,
    },
    "y = tl.where(x > 0, t, 0.0)": {
        "count": 8,
        "nan": 0,
        "posinf": 0,
        "neginf": 0,
        "zero": 5,
        "min": -5.545177459716797,
        "max": -0.0,
    },
}
