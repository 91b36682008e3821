"""E[x*x] - mean*mean of sums that were rounded is negative: sqrt gives NaN."""

import numpy as np
import torch
import triton
import triton.language as tl

KIND = "nan_domain"
CAUSE = "the sum of squares was kept in low precision and is too small in two channels"
MODE = "triton"
EXPECT = {
    "verdict": "anomaly",
    "anomaly": "nan",
    "kernel": "channel_std",
    "statement": "std = tl.sqrt(var)",
    "op": "math.sqrt",
    "cause": "sqrt of a negative value",
    "first": {"program": (0, 0, 0), "lane": 3},
    "nan_count": 2,
    "out": {"out": {"nan": 2, "rows": [3, 6]}},
}


@triton.jit
def channel_std(sum_ptr, square_ptr, out_ptr, n, channels, C: tl.constexpr):
    c = tl.arange(0, C)
    keep = c < channels
    mean = tl.load(sum_ptr + c, mask=keep, other=0.0) / n
    var = tl.load(square_ptr + c, mask=keep, other=0.0) / n - mean * mean
    std = tl.sqrt(var)
    tl.store(out_ptr + c, std, mask=keep)


SUM = np.array([8, 16, 0, 24, 4, 32, 48], np.float32)
SQUARE = np.array([40, 64, 8, 71, 6, 136, 284], np.float32)


def run(device="cuda"):
    total, square = (torch.from_numpy(a).to(device) for a in (SUM, SQUARE))
    out = torch.zeros(7, device=device)
    channel_std[(1,)](total, square, out, 8.0, 7, C=8)
    return {"out": out}


def oracle():
    std = np.zeros(8, np.float32)
    std[:7] = np.sqrt(SQUARE / 8 - (SUM / 8) ** 2)
    assert np.isnan(std).sum() == EXPECT["nan_count"]
    return {
        "stats": {"std = tl.sqrt(var)": std},
        "live": {"std = tl.sqrt(var)": np.arange(8) < 7},
        "out": {"out": std[:7]},
    }
