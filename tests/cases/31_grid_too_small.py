"""The grid covers half of the elements; the rest of torch.empty output is never written."""

import numpy as np
import torch
import triton
import triton.language as tl

KIND = "grid_mistake"
SOURCE = "pytorch/pytorch#195546"
CAUSE = (
    "grid (4,) with BLOCK 16 for 128 elements; the mask bounds lanes but cannot enlarge the grid"
)
MODE = "triton"
EXPECT = {
    "verdict": "anomaly",
    "anomaly": "unwritten_output",
    "kernel": "vec_add",
    "statement": "tl.store(out_ptr + offs, z, mask=offs < n)",
    "op": "tt.store",
    "grid": (4, 1, 1),
    "written": 64,
    "elements": 128,
    "unwritten_range": [64, 127],
    "out": {"out": {"nan": 64}},  # output is pre-filled with NaN to stand for torch.empty
}


@triton.jit
def vec_add(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offs, mask=offs < n, other=0.0)
    y = tl.load(y_ptr + offs, mask=offs < n, other=0.0)
    z = x + y
    tl.store(out_ptr + offs, z, mask=offs < n)


def run(device="cuda"):
    x = torch.arange(128.0, device=device)
    out = torch.full((128,), float("nan"), device=device)
    vec_add[(4,)](x, x, out, 128, BLOCK=16)
    return {"out": out}


def oracle():
    o = np.full(128, np.nan, np.float32)
    o[:64] = np.arange(64) * 2
    return {"stats": {"z = x + y": o[:64]}, "out": {"out": o}}


# of oracle()["stats"], over all lanes of all programs and iterations; min and max of finite values
STATS = {
    "z = x + y": {
        "count": 64,
        "nan": 0,
        "posinf": 0,
        "neginf": 0,
        "zero": 1,
        "min": 0.0,
        "max": 126.0,
    },
}
