"""Unused cache slots contain NaN; their weight is exactly zero, and 0 * NaN poisons the sum."""

import numpy as np
import torch
import triton
import triton.language as tl

KIND = "nan_from_memory"
SOURCE = "pytorch/pytorch#101967"
CAUSE = "values are loaded for masked-out positions too (no mask) and multiplied by a zero weight"
MODE = "triton"
EXPECT = {
    "verdict": "anomaly",
    "anomaly": "nan",
    "kernel": "weighted_cache",
    "statement": "v = tl.load(v_ptr + slot[:, None] * D + d[None, :])",
    "op": "tt.load",  # not computed: it came from memory
    "nan_statement": "pv = w[:, None] * v",
    "argument": "v_ptr",
    "first": {"program": (0, 0, 0), "lane": (5, 0)},
    "nan_count": 12,
    "out": {"out": {"nan": 4}},
}


@triton.jit
def weighted_cache(w_ptr, v_ptr, out_ptr, S: tl.constexpr, D: tl.constexpr):
    slot = tl.arange(0, S)
    d = tl.arange(0, D)
    w = tl.load(w_ptr + slot)
    v = tl.load(v_ptr + slot[:, None] * D + d[None, :])
    pv = w[:, None] * v
    o = tl.sum(pv, axis=0)
    tl.store(out_ptr + d, o)


def arrays():
    w = np.array([0.25, 0.25, 0.25, 0.125, 0.125, 0, 0, 0], np.float32)
    v = np.arange(32, dtype=np.float32).reshape(8, 4)
    v[5:] = np.nan
    return w, v


def run(device="cuda"):
    w, v = (torch.from_numpy(a).to(device) for a in arrays())
    out = torch.zeros(4, device=device)
    weighted_cache[(1,)](w, v, out, S=8, D=4)
    return {"out": out}


def oracle():
    w, v = arrays()
    prod = v * w[:, None]
    return {
        "stats": {
            "v = tl.load(v_ptr + slot[:, None] * D + d[None, :])": v,
            "pv = w[:, None] * v": prod,
            "o = tl.sum(pv, axis=0)": prod.sum(0),
        },
        "out": {"out": prod.sum(0)},
    }


# of oracle()["stats"], over all lanes of all programs and iterations; min and max of finite values
STATS = {
    "v = tl.load(v_ptr + slot[:, None] * D + d[None, :])": {
        "count": 32,
        "nan": 12,
        "posinf": 0,
        "neginf": 0,
        "zero": 1,
        "min": 0.0,
        "max": 19.0,
    },
    "pv = w[:, None] * v": {
        "count": 32,
        "nan": 12,
        "posinf": 0,
        "neginf": 0,
        "zero": 1,
        "min": 0.0,
        "max": 2.75,
    },
    "o = tl.sum(pv, axis=0)": {
        "count": 4,
        "nan": 4,
        "posinf": 0,
        "neginf": 0,
        "zero": 0,
        "min": None,
        "max": None,
    },
}
