"""Healthy: streaming softmax over 19 keys in blocks of 8; the tail is masked with -inf."""

import numpy as np
import torch
import triton
import triton.language as tl

KIND = "healthy"
CAUSE = "none: every row has keys in its first block, and exp(-inf) is 0"
MODE = "triton"
EXPECT = {"verdict": "healthy", "kernel": "attend", "out": {"out": {"nan": 0, "inf": 0}}}


@triton.jit
def attend(s_ptr, v_ptr, out_ptr, m, n, M: tl.constexpr, BN: tl.constexpr, BLOCKS: tl.constexpr):
    r = tl.program_id(0) * M + tl.arange(0, M)
    m_i = tl.full((M,), float("-inf"), tl.float32)
    l_i = tl.zeros((M,), tl.float32)
    acc = tl.zeros((M,), tl.float32)
    for block in range(BLOCKS):
        c = block * BN + tl.arange(0, BN)
        keep = (r[:, None] < m) & (c[None, :] < n)
        s = tl.load(s_ptr + r[:, None] * n + c[None, :], mask=keep, other=float("-inf"))
        v = tl.load(v_ptr + c, mask=c < n, other=0.0)
        m_new = tl.maximum(m_i, tl.max(s, axis=1))
        alpha = tl.exp(m_i - m_new)
        p = tl.exp(s - m_new[:, None])
        l_i = l_i * alpha + tl.sum(p, axis=1)
        acc = acc * alpha + tl.sum(p * v[None, :], axis=1)
        m_i = m_new
    tl.store(out_ptr + r, acc / l_i, mask=r < m)


def arrays():
    s = ((np.arange(6 * 19) * 7 % 11) - 5).astype(np.float32).reshape(6, 19)
    return s, np.arange(19, dtype=np.float32) / 4


def run(device="cuda"):
    s, v = (torch.from_numpy(a).to(device) for a in arrays())
    out = torch.zeros(6, device=device)
    attend[(2,)](s, v, out, 6, 19, M=4, BN=8, BLOCKS=3)
    return {"out": out}


def oracle():
    s, v = (a.astype(np.float64) for a in arrays())
    p = np.exp(s - s.max(1, keepdims=True))
    return {"stats": {}, "out": {"out": (p / p.sum(1, keepdims=True)) @ v}}
