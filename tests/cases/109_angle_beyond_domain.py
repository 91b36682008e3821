"""A cosine that rounding pushed beyond 1: acos gives NaN."""

import numpy as np
import torch
import triton
import triton.language as tl
from triton.language.extra import libdevice

KIND = "nan_domain"
CAUSE = "the dot product of two nearly equal unit vectors is 1 + 2**-23 and is not clamped"
MODE = "triton"
EXPECT = {
    "verdict": "anomaly",
    "anomaly": "nan",
    "kernel": "angles",
    "statement": "angle = libdevice.acos(c)",
    "op": "tt.extern_elementwise",
    "first": {"program": (1, 0, 0), "lane": 1},
    "nan_count": 2,
    "out": {"out": {"nan": 2, "rows": [5, 7]}},
}


@triton.jit
def angles(c_ptr, out_ptr, N: tl.constexpr):
    i = tl.program_id(0) * N + tl.arange(0, N)
    c = tl.load(c_ptr + i)
    angle = libdevice.acos(c)
    tl.store(out_ptr + i, angle)


C = np.array([0, 0.5, 1, -1, -0.5, 1 + 2.0**-23, 0.25, -1 - 2.0**-22], np.float32)


def run(device="cuda"):
    c = torch.from_numpy(C).to(device)
    out = torch.zeros_like(c)
    angles[(2,)](c, out, N=4)
    return {"out": out}


def oracle():
    angle = np.arccos(C)
    return {"stats": {EXPECT["statement"]: angle}, "out": {"out": angle}}
