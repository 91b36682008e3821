"""Healthy: values are clamped to the range of fp8 e4m3 before the cast, as they should be."""

import numpy as np
import torch
import triton
import triton.language as tl

KIND = "healthy"
CAUSE = "none: the clamp is explicit, the cast itself loses no magnitude"
MODE = "triton"
EXPECT = {"verdict": "healthy", "kernel": "quantise", "out": {"out": {"nan": 0, "inf": 0}}}


@triton.jit
def quantise(x_ptr, scale_ptr, out_ptr, N: tl.constexpr):
    i = tl.program_id(0) * N + tl.arange(0, N)
    x = tl.load(x_ptr + i)
    inverse = 1.0 / tl.load(scale_ptr)
    y = tl.clamp(x * inverse, -448.0, 448.0)
    tl.store(out_ptr + i, y.to(tl.float8e4nv).to(tl.float32))


X = np.array([1, 2, 448, -448, 0, 16, 32, 600, -1000, 5e4, 3, 512, -512, 480, 4, 8], np.float32)


def run(device="cuda"):
    x = torch.from_numpy(X).to(device)
    scale = torch.full((1,), 0.5, device=device)
    out = torch.zeros(16, device=device)
    quantise[(2,)](x, scale, out, N=8)
    return {"out": out}


def oracle():
    y = np.clip(X * 2, -448, 448)  # all of them are fp8 numbers
    name = "y = tl.clamp(x * inverse, -448.0, 448.0)"
    return {"stats": {name: y}, "out": {"out": y}}
