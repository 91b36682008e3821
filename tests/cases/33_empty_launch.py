"""A zero-sized grid and a launch whose lanes are all masked: nothing to report, no 0/0."""

import numpy as np
import torch
import triton
import triton.language as tl

KIND = "empty_launch"
SOURCE = "triton-lang/triton-ascend#984"
CAUSE = (
    "an empty batch gives grid (0,); some drivers reject it. A debugger must neither launch nor "
    "divide by a zero count"
)
MODE = "triton"
EXPECT = {
    "verdict": "info",
    "anomaly": "empty_launch",
    "kernel": "scale",
    "statement": "y = x * 3.0",
    "op": "arith.mulf",
    "launches": [
        {"grid": (1, 1, 1), "n": 8, "programs": 1, "active_lanes": 8},
        {"grid": (0, 1, 1), "n": 0, "programs": 0, "active_lanes": 0},
        {"grid": (1, 1, 1), "n": 0, "programs": 1, "active_lanes": 0},
    ],
    "mean_of_empty": None,  # must be absent or null, never NaN counted as an anomaly
    "out": {"a": {"nan": 0}},
}


@triton.jit
def scale(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offs, mask=offs < n, other=0.0)
    y = x * 3.0
    tl.store(out_ptr + offs, y, mask=offs < n)


def run(device="cuda"):
    x = torch.ones(8, device=device)
    a = torch.zeros(8, device=device)
    scale[(1,)](x, a, 8, BLOCK=16)
    e = torch.empty(0, device=device)
    scale[(triton.cdiv(e.numel(), 16),)](e, torch.empty_like(e), e.numel(), BLOCK=16)
    b = torch.zeros(8, device=device)
    scale[(1,)](x, b, 0, BLOCK=16)
    return {"a": a, "b": b}


def oracle():
    y = np.zeros((2, 16), np.float32)
    y[0, :8] = 3
    return {
        "stats": {"y = x * 3.0": y},
        "out": {"a": np.full(8, 3, np.float32), "b": np.zeros(8, np.float32)},
    }


# of oracle()["stats"], over all lanes of all programs and iterations; min and max of finite values
STATS = {
    "y = x * 3.0": {
        "count": 32,
        "nan": 0,
        "posinf": 0,
        "neginf": 0,
        "zero": 24,
        "min": 0.0,
        "max": 3.0,
    },
}
