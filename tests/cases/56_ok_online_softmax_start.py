"""Healthy: streaming softmax starts at m = -inf; every row has a key in its first block."""

import numpy as np
import torch
import triton
import triton.language as tl

KIND = "healthy"
SOURCE = "triton-lang/triton#1273"
CAUSE = "none: exp(-inf - finite) = 0 in the first iteration"
MODE = "triton"
EXPECT = {
    "verdict": "healthy",
    "kernel": "stream_max_sum",
    "naive_inf": {"m_i initial value": 8},
    "out": {"out": {"nan": 0, "inf": 0}},
}


@triton.jit
def stream_max_sum(s_ptr, out_ptr, N: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr):
    rows = tl.arange(0, BM)
    m_i = tl.full((BM,), float("-inf"), tl.float32)
    l_i = tl.zeros((BM,), tl.float32)
    for start in range(0, N, BN):
        cols = start + tl.arange(0, BN)
        s = tl.load(s_ptr + rows[:, None] * N + cols[None, :])
        m_new = tl.maximum(m_i, tl.max(s, axis=1))
        alpha = tl.exp(m_i - m_new)
        l_i = l_i * alpha + tl.sum(tl.exp(s - m_new[:, None]), axis=1)
        m_i = m_new
    lse = m_i + tl.log(l_i)
    tl.store(out_ptr + rows, lse)


def arrays():
    return (((np.arange(8 * 32) * 7) % 11) - 5).astype(np.float32).reshape(8, 32)


def run(device="cuda"):
    s = torch.from_numpy(arrays()).to(device)
    out = torch.zeros(8, device=device)
    stream_max_sum[(1,)](s, out, N=32, BM=8, BN=8)
    return {"out": out}


def oracle():
    s = arrays()
    f = np.float32
    m = np.full(8, -np.inf, f)
    total = np.zeros(8, f)
    al = []
    for st in range(0, 32, 8):
        b = s[:, st : st + 8]
        mn = np.maximum(m, b.max(1))
        a = np.exp(m - mn)
        al.append(a)
        total = total * a + np.exp(b - mn[:, None]).sum(1)
        m = mn
    lse = m + np.log(total)
    return {
        "stats": {"alpha = tl.exp(m_i - m_new)": np.stack(al), "lse = m_i + tl.log(l_i)": lse},
        "out": {"out": lse},
    }


# of oracle()["stats"], over all lanes of all programs and iterations; min and max of finite values
STATS = {
    "alpha = tl.exp(m_i - m_new)": {
        "count": 32,
        "nan": 0,
        "posinf": 0,
        "neginf": 0,
        "zero": 8,
        "min": 0.0,
        "max": 1.0,
    },
    "lse = m_i + tl.log(l_i)": {
        "count": 8,
        "nan": 0,
        "posinf": 0,
        "neginf": 0,
        "zero": 0,
        "min": 6.320648670196533,
        "max": 6.557244777679443,
    },
}
