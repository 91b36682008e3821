"""Per-block scale of an all-zero block is zero; 0/0."""

import numpy as np
import torch
import triton
import triton.language as tl

KIND = "nan_div_zero"
SOURCE = "huggingface/kernels-community#681"
CAUSE = "scale = amax / 448 has no floor, so a block of zeros divides zero by zero"
MODE = "triton"
EXPECT = {
    "verdict": "anomaly",
    "anomaly": "nan",
    "kernel": "block_scale",
    "statement": "q = x / s",
    "op": "arith.divf",
    "cause": "0 / 0",
    "cause_statement": "s = tl.max(tl.abs(x), axis=0) / 448.0",  # the zero divisor is made here
    "first": {"program": (2, 0, 0), "lane": 0},
    "nan_count": 32,
    "out": {"out": {"nan": 32}},
}


@triton.jit
def block_scale(x_ptr, out_ptr, s_ptr, BLOCK: tl.constexpr):
    pid = tl.program_id(0)
    offs = pid * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offs)
    s = tl.max(tl.abs(x), axis=0) / 448.0
    q = x / s
    tl.store(out_ptr + offs, q)
    tl.store(s_ptr + pid, s)


def arrays():
    x = ((np.arange(128) % 9) - 4).astype(np.float32)
    x[64:96] = 0
    return x


def run(device="cuda"):
    x = torch.from_numpy(arrays()).to(device)
    out = torch.zeros_like(x)
    s = torch.zeros(4, device=device)
    block_scale[(4,)](x, out, s, BLOCK=32)
    return {"out": out, "s": s}


def oracle():
    x = arrays().reshape(4, 32)
    with np.errstate(all="ignore"):
        s = (np.abs(x).max(1) / np.float32(448)).astype(np.float32)
        q = x / s[:, None]
    return {
        "stats": {"s = tl.max(tl.abs(x), axis=0) / 448.0": s, "q = x / s": q},
        "out": {"out": q.ravel(), "s": s},
    }


# of oracle()["stats"], over all lanes of all programs and iterations; min and max of finite values
STATS = {
    "s = tl.max(tl.abs(x), axis=0) / 448.0": {
        "count": 4,
        "nan": 0,
        "posinf": 0,
        "neginf": 0,
        "zero": 1,
        "min": 0.0,
        "max": 0.008928571827709675,
    },
    "q = x / s": {
        "count": 128,
        "nan": 32,
        "posinf": 0,
        "neginf": 0,
        "zero": 10,
        "min": -447.9999694824219,
        "max": 447.9999694824219,
    },
}
