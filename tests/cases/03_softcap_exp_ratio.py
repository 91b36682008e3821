"""tanh written as a ratio of exponentials overflows to inf/inf for large scores."""

import numpy as np
import torch
import triton
import triton.language as tl

KIND = "nan_exp_overflow"
SOURCE = "vllm-project/vllm#56578"
CAUSE = "exp(|s|/cap) overflows fp32, then inf/inf"
MODE = "triton"
EXPECT = {
    "verdict": "anomaly",
    "anomaly": "nan",
    "kernel": "softcap",
    "statement": "t = (ep - en) / (ep + en)",
    "op": "arith.divf",
    "cause": "inf / inf",
    "inf_cause": "exp overflows fp32",
    "inf_statement": "ep = tl.exp(u)",
    "inf_op": "math.exp",  # where the first non-finite value is made
    "first": {"program": (0, 0, 0), "lane": 2},
    "nan_count": 3,
    "out": {"out": {"nan": 3, "rows": [2, 3, 4]}},
}


@triton.jit
def softcap(s_ptr, out_ptr, n, cap, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    keep = offs < n
    s = tl.load(s_ptr + offs, mask=keep, other=0.0)
    u = s / cap
    ep = tl.exp(u)
    en = tl.exp(-u)
    t = (ep - en) / (ep + en)
    y = cap * t
    tl.store(out_ptr + offs, y, mask=keep)


S = np.array([1000, 3000, 5000, 10000, -10000, 4000, 0, 100], np.float32)


def run(device="cuda"):
    s = torch.from_numpy(S).to(device)
    out = torch.zeros_like(s)
    softcap[(1,)](s, out, 8, 50.0, BLOCK=16)
    return {"out": out}


def oracle():
    f = np.float32
    with np.errstate(all="ignore"):
        s = np.concatenate([S, np.zeros(8, f)])
        u = s / f(50)
        ep = np.exp(u)
        en = np.exp(-u)
        t = (ep - en) / (ep + en)
        y = f(50) * t
    return {
        "stats": {
            "u = s / cap": u,
            "ep = tl.exp(u)": ep,
            "en = tl.exp(-u)": en,
            "t = (ep - en) / (ep + en)": t,
            "y = cap * t": y,
        },
        "out": {"out": y[:8]},
    }


# of oracle()["stats"], over all lanes of all programs and iterations; min and max of finite values
STATS = {
    "u = s / cap": {
        "count": 16,
        "nan": 0,
        "posinf": 0,
        "neginf": 0,
        "zero": 9,
        "min": -200.0,
        "max": 200.0,
    },
    "ep = tl.exp(u)": {
        "count": 16,
        "nan": 0,
        "posinf": 2,
        "neginf": 0,
        "zero": 1,
        "min": 0.0,
        "max": 5.540622484676759e34,
    },
    "en = tl.exp(-u)": {
        "count": 16,
        "nan": 0,
        "posinf": 1,
        "neginf": 0,
        "zero": 1,
        "min": 0.0,
        "max": 1.0,
    },
    "t = (ep - en) / (ep + en)": {
        "count": 16,
        "nan": 3,
        "posinf": 0,
        "neginf": 0,
        "zero": 9,
        "min": 0.0,
        "max": 1.0,
    },
    "y = cap * t": {
        "count": 16,
        "nan": 3,
        "posinf": 0,
        "neginf": 0,
        "zero": 9,
        "min": 0.0,
        "max": 50.0,
    },
}
