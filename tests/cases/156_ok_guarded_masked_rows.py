"""Healthy: rows without any key, guarded as in flash attention: shift by 0, divide by 1."""

import numpy as np
import torch
import triton
import triton.language as tl

KIND = "healthy"
CAUSE = "none: where() replaces the maximum -inf and the sum 0 before they are used"
MODE = "triton"
EXPECT = {
    "verdict": "healthy",
    "kernel": "guarded_rows",
    "out": {"out": {"nan": 0, "inf": 0}, "top": {"nan": 0, "inf": 2}},
}


@triton.jit
def guarded_rows(s_ptr, lengths_ptr, out_ptr, top_ptr, M: tl.constexpr, BN: tl.constexpr,
                 BLOCKS: tl.constexpr):  # fmt: skip
    r = tl.arange(0, M)
    length = tl.load(lengths_ptr + r)
    m_i = tl.full((M,), float("-inf"), tl.float32)
    l_i = tl.zeros((M,), tl.float32)
    for block in range(BLOCKS):
        c = block * BN + tl.arange(0, BN)
        s = tl.load(s_ptr + r[:, None] * BN * BLOCKS + c[None, :])
        s = tl.where(c[None, :] < length[:, None], s, float("-inf"))
        m_new = tl.maximum(m_i, tl.max(s, axis=1))
        shift = tl.where(m_new == float("-inf"), 0.0, m_new)
        l_i = l_i * tl.exp(m_i - shift) + tl.sum(tl.exp(s - shift[:, None]), axis=1)
        m_i = m_new
    out = 1.0 / tl.where(l_i == 0, 1.0, l_i)
    tl.store(out_ptr + r, out)
    tl.store(top_ptr + r, m_i)


LENGTHS = np.array([8, 0, 3, 5, 0, 1, 8, 4], np.int32)


def arrays():
    return ((np.arange(64) * 5 % 7) - 3).astype(np.float32).reshape(8, 8), LENGTHS


def run(device="cuda"):
    s, lengths = (torch.from_numpy(a).to(device) for a in arrays())
    out, top = torch.zeros(8, device=device), torch.zeros(8, device=device)
    guarded_rows[(1,)](s, lengths, out, top, M=8, BN=4, BLOCKS=2)
    return {"out": out, "top": top}


def oracle():
    s, lengths = arrays()
    s = np.where(np.arange(8) < lengths[:, None], s, -np.inf)
    top = s.max(1)
    total = np.exp(s - np.where(lengths == 0, 0, top)[:, None]).sum(1)
    return {"stats": {}, "out": {"out": 1 / np.where(lengths == 0, 1, total), "top": top}}
