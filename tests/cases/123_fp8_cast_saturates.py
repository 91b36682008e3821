"""Values beyond 448 are cast to fp8 e4m3, which has no inf: they are cut off without a trace."""

import numpy as np
import torch
import triton
import triton.language as tl

KIND = "overflow_fp8"
CAUSE = "the scale was taken from another tensor, so 6 values are beyond the largest fp8 number"
MODE = "triton"
EXPECT = {
    "verdict": "anomaly",
    "anomaly": "saturation",
    "kernel": "quantise",
    "statement": "q = x.to(tl.float8e4nv)",
    "op": "tt.fp_to_fp",
    "first": {"program": (1, 0, 0), "lane": 3},
    "saturated_lanes": 6,
    "silent": True,
}


@triton.jit
def quantise(x_ptr, out_ptr, n, N: tl.constexpr):
    i = tl.program_id(0) * N + tl.arange(0, N)
    x = tl.load(x_ptr + i, mask=i < n, other=9999.0)
    q = x.to(tl.float8e4nv)
    tl.store(out_ptr + i, q.to(tl.float32), mask=i < n)


X = np.array([1, 2, 448, -448, 0, 16, 32, 600, -1000, 5e4, 3, 512, -512, 480], np.float32)


def run(device="cuda"):
    x = torch.from_numpy(X).to(device)
    out = torch.zeros(14, device=device)
    quantise[(4,)](x, out, 14, N=4)
    return {"out": out}


def oracle():
    x = np.full(16, 9999, np.float32)
    x[:14] = X
    q = np.clip(x, -448, 448)  # all other values are fp8 numbers
    live = np.arange(16) < 14
    assert ((np.abs(x) > 448) & live).sum() == EXPECT["saturated_lanes"]
    return {
        "stats": {EXPECT["statement"]: q},
        "live": {EXPECT["statement"]: live},
        "out": {"out": q[:14]},
    }
