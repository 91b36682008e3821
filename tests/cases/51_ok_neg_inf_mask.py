"""Healthy: -inf marks forbidden keys, every row keeps at least one key."""

import numpy as np
import torch
import triton
import triton.language as tl

KIND = "healthy"
SOURCE = "pytorch/pytorch#109526"
CAUSE = "none: exp(-inf) is 0 and the row maximum is finite"
MODE = "triton"
EXPECT = {
    "verdict": "healthy",
    "kernel": "causal_softmax",
    "naive_inf": {'z = tl.where(c <= row, s, float("-inf"))': 120},
    "out": {"out": {"nan": 0, "inf": 0}},
}


@triton.jit
def causal_softmax(s_ptr, out_ptr, N: tl.constexpr):
    row = tl.program_id(0)
    c = tl.arange(0, N)
    s = tl.load(s_ptr + row * N + c)
    z = tl.where(c <= row, s, float("-inf"))
    e = tl.exp(z - tl.max(z, axis=0))
    p = e / tl.sum(e, axis=0)
    tl.store(out_ptr + row * N + c, p)


def arrays():
    return (((np.arange(256) * 11) % 13) - 6).astype(np.float32).reshape(16, 16) / np.float32(3)


def run(device="cuda"):
    s = torch.from_numpy(arrays()).to(device)
    out = torch.zeros_like(s)
    causal_softmax[(16,)](s, out, N=16)
    return {"out": out}


def oracle():
    z = np.where(np.tri(16, dtype=bool), arrays(), np.float32(-np.inf)).astype(np.float32)
    e = np.exp(z - z.max(1, keepdims=True))
    p = e / e.sum(1, keepdims=True)
    return {
        "stats": {
            'z = tl.where(c <= row, s, float("-inf"))': z,
            "e = tl.exp(z - tl.max(z, axis=0))": e,
            "p = e / tl.sum(e, axis=0)": p,
        },
        "out": {"out": p},
    }


# of oracle()["stats"], over all lanes of all programs and iterations; min and max of finite values
STATS = {
    'z = tl.where(c <= row, s, float("-inf"))': {
        "count": 256,
        "nan": 0,
        "posinf": 0,
        "neginf": 120,
        "zero": 10,
        "min": -2.0,
        "max": 2.0,
    },
    "e = tl.exp(z - tl.max(z, axis=0))": {
        "count": 256,
        "nan": 0,
        "posinf": 0,
        "neginf": 0,
        "zero": 120,
        "min": 0.0,
        "max": 1.0,
    },
    "p = e / tl.sum(e, axis=0)": {
        "count": 256,
        "nan": 0,
        "posinf": 0,
        "neginf": 0,
        "zero": 120,
        "min": 0.0,
        "max": 1.0,
    },
}
