"""Scores are rounded to fp16 before they are scaled: one overflows, the softmax makes NaN of it."""

import numpy as np
import torch
import triton
import triton.language as tl

KIND = "overflow_half"
CAUSE = "q * k reaches 131072, more than fp16 holds; the scale is applied too late"
MODE = "triton"
EXPECT = {
    "verdict": "anomaly",
    "anomaly": "inf",
    "kernel": "scores",
    "statement": "s = tl.dot(q, k).to(tl.float16)",
    "op": "arith.truncf",
    "cause": "cast overflows fp16",
    "nan_cause": "inf - inf",
    "nan_statement": "z = scaled - tl.max(scaled, axis=1)[:, None]",
    "nan_op": "arith.subf",
    "first": {"program": (0, 0, 0), "lane": (3, 5)},
    "inf_count": 1,
    "nan_count": 1,
    "out": {"out": {"nan": 16, "rows": [3]}},
}


@triton.jit
def scores(q_ptr, k_ptr, out_ptr, N: tl.constexpr):
    i = tl.arange(0, N)[:, None]
    j = tl.arange(0, N)[None, :]
    q = tl.load(q_ptr + i * N + j)
    k = tl.load(k_ptr + i * N + j)
    s = tl.dot(q, k).to(tl.float16)
    scaled = s.to(tl.float32) * 0.125
    z = scaled - tl.max(scaled, axis=1)[:, None]
    e = tl.exp(z)
    p = e / tl.sum(e, axis=1)[:, None]
    tl.store(out_ptr + i * N + j, p)


def arrays():
    q = np.ones((16, 16), np.float16)
    k = np.ones((16, 16), np.float16)
    q[3] = 64
    k[:, 5] = 128
    return q, k


def run(device="cuda"):
    q, k = (torch.from_numpy(a).to(device) for a in arrays())
    out = torch.zeros(16, 16, device=device)
    scores[(1,)](q, k, out, N=16)
    return {"out": out}


def oracle():
    q, k = (a.astype(np.float32) for a in arrays())
    s = (q @ k).astype(np.float16)
    scaled = s.astype(np.float32) * np.float32(0.125)
    z = scaled - scaled.max(1, keepdims=True)
    e = np.exp(z)
    return {
        "stats": {EXPECT["statement"]: s, EXPECT["nan_statement"]: z},
        "out": {"out": e / e.sum(1, keepdims=True)},
    }
