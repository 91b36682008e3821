"""A transposed view is read with flat offsets: no fault, permuted data."""

import numpy as np
import torch
import triton
import triton.language as tl

KIND = "layout_noncontiguous"
SOURCE = "pytorch/executorch#22192"
CAUSE = "argument x has strides (1, 8) but the kernel takes no strides"
MODE = "triton"
EXPECT = {
    "verdict": "anomaly",
    "anomaly": "noncontiguous_argument",
    "kernel": "scale_rows",
    "statement": "x = tl.load(x_ptr + row * N + cols)",
    "op": "tt.load",
    "argument": "x_ptr",
    "shape": (8, 8),
    "strides": (1, 8),
    "silent": True,
    "address_clean": True,
    "out": {"out": {"wrong_elements": 56}},
}


@triton.jit
def scale_rows(x_ptr, out_ptr, N: tl.constexpr):
    row = tl.program_id(0)
    cols = tl.arange(0, N)
    x = tl.load(x_ptr + row * N + cols)
    y = x * (row + 1)
    tl.store(out_ptr + row * N + cols, y)


def run(device="cuda"):
    x = torch.arange(64.0, device=device).reshape(8, 8).t()
    out = torch.zeros(8, 8, device=device)
    scale_rows[(8,)](x, out, N=8)
    return {"out": out, "right": x * torch.arange(1.0, 9.0, device=device)[:, None]}


def oracle():
    a = np.arange(64, dtype=np.float32).reshape(8, 8)
    y = a * np.arange(1, 9, dtype=np.float32)[:, None]
    assert int((y != a.T * np.arange(1, 9)[:, None]).sum()) == 56
    return {"stats": {"y = x * (row + 1)": y}, "out": {"out": y}}


# of oracle()["stats"], over all lanes of all programs and iterations; min and max of finite values
STATS = {
    "y = x * (row + 1)": {
        "count": 64,
        "nan": 0,
        "posinf": 0,
        "neginf": 0,
        "zero": 1,
        "min": 0.0,
        "max": 504.0,
    },
}
