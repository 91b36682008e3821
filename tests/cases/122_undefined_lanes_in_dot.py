"""A masked load without other= feeds the inner dimension of a dot."""

import numpy as np
import torch
import triton
import triton.language as tl

KIND = "uninit_masked_load"
CAUSE = "columns 13 to 15 of a are undefined and are multiplied by zeros, which NaN would survive"
MODE = "triton"
EXPECT = {
    "verdict": "anomaly",
    "anomaly": "undefined_lanes",
    "kernel": "tail_dot",
    "statement": "a = tl.load(a_ptr + i * k + j, mask=j < k)",
    "op": "tt.load",
    "consumer": "c = tl.dot(a, b)",
    "first": {"program": (0, 0, 0), "lane": (0, 13)},
    "undefined_lanes": 48,
    "silent": True,
}


@triton.jit
def tail_dot(a_ptr, b_ptr, c_ptr, k, N: tl.constexpr):
    i = tl.arange(0, N)[:, None]
    j = tl.arange(0, N)[None, :]
    a = tl.load(a_ptr + i * k + j, mask=j < k)
    b = tl.load(b_ptr + i * N + j, mask=i < k, other=0.0)
    c = tl.dot(a, b)
    tl.store(c_ptr + i * N + j, c)


def arrays():
    a = (np.arange(16 * 13) % 5).astype(np.float16).reshape(16, 13)
    b = (np.arange(13 * 16) % 3).astype(np.float16).reshape(13, 16)
    return a, b


def run(device="cuda"):
    a, b = (torch.from_numpy(x).to(device) for x in arrays())
    c = torch.zeros(16, 16, device=device)
    tail_dot[(1,)](a, b, c, 13, N=16)
    return {"c": c}


def oracle():
    a, b = (x.astype(np.float32) for x in arrays())
    return {"stats": {"c = tl.dot(a, b)": a @ b}, "out": {"c": a @ b}}
