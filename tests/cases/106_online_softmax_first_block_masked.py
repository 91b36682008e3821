"""Streaming softmax of a sliding window: rows without a key in their first block start with NaN."""

import numpy as np
import torch
import triton
import triton.language as tl

KIND = "nan_masked_softmax"
# W = 5: rows 12 to 15 see keys 8 to 15 only
CAUSE = "the running maximum is still -inf after a block that the window masks, so -inf - -inf"
MODE = "triton"
EXPECT = {
    "verdict": "anomaly",
    "anomaly": "nan",
    "kernel": "window_sums",
    "statement": "alpha = tl.exp(m_i - m_new)",
    "op": "arith.subf",
    "cause": "inf - inf",
    # the scores are shifted by the same -inf: no data flows from one to the other
    "also": "l_i = l_i * alpha + tl.sum(tl.exp(s - m_new[:, None]), axis=1)",
    "first": {"program": (0, 0, 0), "lane": 12, "iteration": 0},
    "nan_count": 4,
    "out": {"out": {"nan": 4, "rows": [12, 13, 14, 15]}},
}


@triton.jit
def window_sums(s_ptr, out_ptr, W: tl.constexpr, N: tl.constexpr, BN: tl.constexpr):
    rows = tl.arange(0, N)
    m_i = tl.full((N,), float("-inf"), tl.float32)
    l_i = tl.zeros((N,), tl.float32)
    for start in range(0, N, BN):
        cols = start + tl.arange(0, BN)
        distance = rows[:, None] - cols[None, :]
        s = tl.load(s_ptr + rows[:, None] * N + cols[None, :])
        s = tl.where((distance >= 0) & (distance < W), s, float("-inf"))
        m_new = tl.maximum(m_i, tl.max(s, axis=1))
        alpha = tl.exp(m_i - m_new)
        l_i = l_i * alpha + tl.sum(tl.exp(s - m_new[:, None]), axis=1)
        m_i = m_new
    lse = m_i + tl.log(l_i)
    tl.store(out_ptr + rows, lse)


def arrays():
    return ((np.arange(256) * 7 % 11) - 5).astype(np.float32).reshape(16, 16)


def run(device="cuda"):
    s = torch.from_numpy(arrays()).to(device)
    out = torch.zeros(16, device=device)
    window_sums[(1,)](s, out, W=5, N=16, BN=8)
    return {"out": out}


def oracle():
    distance = np.arange(16)[:, None] - np.arange(16)
    s = np.where((distance >= 0) & (distance < 5), arrays(), np.float32(-np.inf))
    m, total, alphas = np.full(16, -np.inf, np.float32), np.zeros(16, np.float32), []
    for start in (0, 8):
        block = s[:, start : start + 8]
        new = np.maximum(m, block.max(1))
        alphas.append(np.exp(m - new))
        total = total * alphas[-1] + np.exp(block - new[:, None]).sum(1)
        m = new
    lse = m + np.log(total)
    assert np.isnan(alphas[0]).sum() == EXPECT["nan_count"] and not np.isnan(alphas[1]).any()
    return {
        "stats": {EXPECT["statement"]: np.stack(alphas), "lse = m_i + tl.log(l_i)": lse},
        "out": {"out": lse},
    }
