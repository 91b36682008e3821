"""Backward attention recomputes p without the key mask: padded rows give inf, times 0 in a dot."""

import numpy as np
import torch
import triton
import triton.language as tl

KIND = "nan_masked_softmax"
SOURCE = "Dao-AILab/flash-attention#1947"
CAUSE = (
    "p = exp(s - lse) in lanes beyond the sequence: lse is padded with -inf there, exp gives inf, "
    "and inf*0 inside tl.dot is NaN"
)
MODE = "triton"
EXPECT = {
    "verdict": "anomaly",
    "anomaly": "inf",
    "kernel": "bwd_dv",
    "statement": "p = tl.exp(s - lse[:, None])",
    "op": "arith.subf",
    "cause": "a constant -inf changed sign",
    "nan_statement": "dv = tl.dot(tl.trans(p), do)",
    "nan_op": "tt.dot",
    "first": {"program": (0, 0, 0), "lane": (10, 0)},
    "inf_count": 96,
    "padding_count": 96,
    "nan_count": 256,
    "out": {"dv": {"nan": 256}},
}


@triton.jit
def bwd_dv(s_ptr, lse_ptr, do_ptr, dv_ptr, m, N: tl.constexpr):
    r = tl.arange(0, N)
    live = r < m
    s = tl.load(s_ptr + r[:, None] * N + r[None, :], mask=live[:, None], other=0.0)
    lse = tl.load(lse_ptr + r, mask=live, other=float("-inf"))
    do = tl.load(do_ptr + r[:, None] * N + r[None, :], mask=live[:, None], other=0.0)
    p = tl.exp(s - lse[:, None])
    dv = tl.dot(tl.trans(p), do)
    tl.store(dv_ptr + r[:, None] * N + r[None, :], dv)


def arrays():
    i = np.arange(100 + 60).reshape(10, 16)
    s = ((i * 7) % 5).astype(np.float32)
    return s, np.log(np.exp(s).sum(1)).astype(np.float32), ((i % 3) - 1).astype(np.float32)


def run(device="cuda"):
    s, lse, do = (torch.from_numpy(a).to(device) for a in arrays())
    dv = torch.zeros(16, 16, device=device)
    bwd_dv[(1,)](s, lse, do, dv, 10, N=16)
    return {"dv": dv}


def oracle():
    s, lse, do = arrays()
    f = np.float32
    S = np.zeros((16, 16), f)
    S[:10] = s
    L = np.full(16, -np.inf, f)
    L[:10] = lse
    D = np.zeros((16, 16), f)
    D[:10] = do
    with np.errstate(all="ignore"):
        p = np.exp(S - L[:, None])
        dv = (p.T[:, :, None] * D[None]).sum(1)
    return {
        "stats": {"p = tl.exp(s - lse[:, None])": p, "dv = tl.dot(tl.trans(p), do)": dv},
        "out": {"dv": dv},
    }


RTOL = 1e-5

# of oracle()["stats"], over all lanes of all programs and iterations; min and max of finite values
STATS = {
    "p = tl.exp(s - lse[:, None])": {
        "count": 256,
        "nan": 0,
        "posinf": 96,
        "neginf": 0,
        "zero": 0,
        "min": 0.0032054241746664047,
        "max": 0.21131522953510284,
    },
    "dv = tl.dot(tl.trans(p), do)": {
        "count": 256,
        "nan": 256,
        "posinf": 0,
        "neginf": 0,
        "zero": 0,
        "min": None,
        "max": None,
    },
}
