"""exp of an accumulated positive log-gate overflows; a zero key then gives 0*inf."""

import numpy as np
import torch
import triton
import triton.language as tl

KIND = "nan_exp_overflow"
SOURCE = "fla-org/flash-linear-attention#215"
CAUSE = "log-gate should be <= 0 but an input of +176 reaches exp; inf times a zero key is NaN"
MODE = "triton"
EXPECT = {
    "verdict": "anomaly",
    "anomaly": "inf",
    "kernel": "gated_keys",
    "statement": "eg = tl.exp(c)",
    "op": "math.exp",
    "cause": "exp overflows fp32",
    "nan_cause": "0 * inf",
    "nan_statement": "kg = k * eg",
    "nan_op": "arith.mulf",
    "first": {"program": (0, 0, 0), "lane": (0, 0)},
    "inf_count": 12,
    "nan_count": 1,
    "out": {"out": {"nan": 1, "inf": 11}},
}


@triton.jit
def gated_keys(k_ptr, g_ptr, out_ptr, T: tl.constexpr, D: tl.constexpr):
    t = tl.arange(0, T)[:, None]
    d = tl.arange(0, D)[None, :]
    k = tl.load(k_ptr + t * D + d)
    g = tl.load(g_ptr + t * D + d)
    c = tl.cumsum(g, axis=0)
    eg = tl.exp(c)
    kg = k * eg
    tl.store(out_ptr + t * D + d, kg)


def arrays():
    g = np.zeros((4, 4), np.float32)
    g[0, :3] = 176.0
    k = (np.arange(16).reshape(4, 4) - 9).astype(np.float32)  # k[2, 1] == 0
    return k, g


def run(device="cuda"):
    k, g = (torch.from_numpy(a).to(device) for a in arrays())
    out = torch.zeros_like(k)
    gated_keys[(1,)](k, g, out, T=4, D=4)
    return {"out": out}


def oracle():
    k, g = arrays()
    with np.errstate(all="ignore"):
        c = np.cumsum(g, 0, dtype=np.float32)
        eg = np.exp(c)
        kg = k * eg
    return {
        "stats": {"c = tl.cumsum(g, axis=0)": c, "eg = tl.exp(c)": eg, "kg = k * eg": kg},
        "out": {"out": kg},
    }


# of oracle()["stats"], over all lanes of all programs and iterations; min and max of finite values
STATS = {
    "c = tl.cumsum(g, axis=0)": {
        "count": 16,
        "nan": 0,
        "posinf": 0,
        "neginf": 0,
        "zero": 4,
        "min": 0.0,
        "max": 176.0,
    },
    "eg = tl.exp(c)": {
        "count": 16,
        "nan": 0,
        "posinf": 12,
        "neginf": 0,
        "zero": 0,
        "min": 1.0,
        "max": 1.0,
    },
    "kg = k * eg": {
        "count": 16,
        "nan": 1,
        "posinf": 4,
        "neginf": 7,
        "zero": 0,
        "min": -6.0,
        "max": 6.0,
    },
}
