"""Log-softmax of a 2-D tile: one row has no allowed token; rows beyond the batch are not stored."""

import numpy as np
import torch
import triton
import triton.language as tl

KIND = "nan_masked_softmax"
CAUSE = "no token of row 2 is allowed, so its maximum is -inf and the shift is inf - inf"
MODE = "triton"
# the two rows beyond the batch are all -inf too, but nothing that is stored needs them
EXPECT = {
    "verdict": "anomaly",
    "anomaly": "nan",
    "kernel": "log_softmax",
    "statement": "z = s - top[:, None]",
    "op": "arith.subf",
    "cause": "inf - inf",
    "first": {"program": (0, 0, 0), "lane": (2, 0)},
    "nan_count": 8,
    "padding_count": 0,
    "out": {"out": {"nan": 8, "rows": [2]}},
}


@triton.jit
def log_softmax(x_ptr, allow_ptr, out_ptr, m, M: tl.constexpr, N: tl.constexpr):
    r = tl.arange(0, M)[:, None]
    c = tl.arange(0, N)[None, :]
    inside = r < m
    x = tl.load(x_ptr + r * N + c, mask=inside, other=0.0)
    allow = tl.load(allow_ptr + r * N + c, mask=inside, other=0)
    s = tl.where(allow != 0, x, float("-inf"))
    top = tl.max(s, axis=1)
    z = s - top[:, None]
    lse = tl.log(tl.sum(tl.exp(z), axis=1))
    y = z - lse[:, None]
    tl.store(out_ptr + r * N + c, y, mask=inside)


def arrays():
    i = np.arange(48).reshape(6, 8)
    allow = np.ones((6, 8), np.int32)
    allow[2] = 0
    return (i * 5 % 7).astype(np.float32), allow


def run(device="cuda"):
    x, allow = (torch.from_numpy(a).to(device) for a in arrays())
    out = torch.zeros_like(x)
    log_softmax[(1,)](x, allow, out, 6, M=8, N=8)
    return {"out": out}


def oracle():
    x, allow = arrays()
    s = np.full((8, 8), -np.inf, np.float32)
    s[:6] = np.where(allow, x, -np.inf)
    z = s - s.max(1, keepdims=True)
    y = z - np.log(np.exp(z).sum(1, keepdims=True))
    inside = np.arange(64).reshape(8, 8) < 48
    return {
        "stats": {"z = s - top[:, None]": z, "y = z - lse[:, None]": y},
        "live": {"z = s - top[:, None]": inside, "y = z - lse[:, None]": inside},
        "out": {"out": y[:6]},
    }
