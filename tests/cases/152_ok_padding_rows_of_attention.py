"""Healthy: queries beyond the sequence see no key at all; their NaN rows are not stored."""

import numpy as np
import torch
import triton
import triton.language as tl

KIND = "healthy"
CAUSE = "none: rows 11 to 15 are 0 / 0 and -inf - -inf, and the store leaves them out"
MODE = "triton"
EXPECT = {
    "verdict": "healthy",
    "kernel": "causal",
    "naive_nan": {"z = s - tl.max(s, axis=1)[:, None]": 80},
    "out": {"out": {"nan": 0, "inf": 0}},
}


@triton.jit
def causal(q_ptr, k_ptr, v_ptr, out_ptr, n, N: tl.constexpr, D: tl.constexpr):
    i = tl.arange(0, N)
    d = tl.arange(0, D)
    inside = i[:, None] < n
    q = tl.load(q_ptr + i[:, None] * D + d[None, :], mask=inside, other=0.0)
    k = tl.load(k_ptr + i[:, None] * D + d[None, :], mask=inside, other=0.0)
    v = tl.load(v_ptr + i[:, None] * D + d[None, :], mask=inside, other=0.0)
    seen = (i[:, None] >= i[None, :]) & (i[None, :] < n) & inside
    s = tl.where(seen, tl.dot(q, tl.trans(k)) * 0.25, float("-inf"))
    z = s - tl.max(s, axis=1)[:, None]
    e = tl.exp(z)
    p = e / tl.sum(e, axis=1)[:, None]
    out = tl.dot(p.to(tl.float16), v)
    tl.store(out_ptr + i[:, None] * D + d[None, :], out, mask=inside)


def arrays():
    i = np.arange(11 * 16).reshape(11, 16)
    return tuple((i * step % 7 - 3).astype(np.float16) for step in (3, 5, 4))


def run(device="cuda"):
    q, k, v = (torch.from_numpy(a).to(device) for a in arrays())
    out = torch.zeros(11, 16, device=device)
    causal[(1,)](q, k, v, out, 11, N=16, D=16)
    return {"out": out}


def oracle():
    q, k, v = (a.astype(np.float32) for a in arrays())
    s = np.full((16, 16), -np.inf, np.float32)
    s[:11, :11] = np.where(np.tri(11, dtype=bool), q @ k.T * np.float32(0.25), -np.inf)
    z = s - s.max(1, keepdims=True)
    p = np.exp(z) / np.exp(z).sum(1, keepdims=True)
    live = (np.arange(16)[:, None] < 11) & (np.arange(16) < 11)
    name = "z = s - tl.max(s, axis=1)[:, None]"
    out = p[:11, :11].astype(np.float16).astype(np.float32) @ v
    return {"stats": {name: z}, "live": {name: live}, "out": {"out": out}}


RTOL = 1e-5
