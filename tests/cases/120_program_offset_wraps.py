"""A scalar program id times a row stride leaves int32; the access is guarded, so it is safe."""

import numpy as np
import torch
import triton
import triton.language as tl

KIND = "oob_int32_overflow"
CAUSE = "row * stride is 2**31 in program 2; a cast of the id to int64 is missing"
MODE = "triton"
EXPECT = {
    "verdict": "anomaly",
    "anomaly": "int_overflow",
    "kernel": "copy_row",
    "statement": "base = row * stride",
    "op": "arith.muli",
    "first": {"program": (2, 0, 0), "lane": 0},
    "wrapped_lanes": 2,
    "silent": True,
    "out": {"out": {"zero": 12}},
}


@triton.jit
def copy_row(x_ptr, out_ptr, stride, n, N: tl.constexpr):
    row = tl.program_id(0)
    base = row * stride
    at = base.to(tl.int64) + tl.arange(0, N)
    x = tl.load(x_ptr + at, mask=(at >= 0) & (at < n), other=0.0)
    tl.store(out_ptr + row * N + tl.arange(0, N), x)


def run(device="cuda"):
    x = torch.ones(64, device=device)
    out = torch.zeros(16, device=device)
    copy_row[(4,)](x, out, 2**30, 64, N=4)
    return {"out": out}


def oracle():
    base = (np.arange(4, dtype=np.int64) * 2**30).astype(np.int32)
    wrapped = base != np.arange(4) * 2**30
    assert wrapped.sum() == EXPECT["wrapped_lanes"] and wrapped.argmax() == 2
    out = np.zeros(16, np.float32)
    out[:4] = 1
    return {"stats": {"base = row * stride": base}, "out": {"out": out}}
