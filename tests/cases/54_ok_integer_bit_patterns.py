"""Healthy: integers whose bits would be NaN or inf as floats; integers have neither."""

import numpy as np
import torch
import triton
import triton.language as tl

KIND = "healthy"
SOURCE = "flagos-ai/FlagGems#6244"
CAUSE = "none: int32 data"
MODE = "triton"
EXPECT = {
    "verdict": "healthy",
    "kernel": "bit_mix",
    "nan_count": 0,
    "inf_count": 0,
    "note": "0x7fc00000, 0x7f800000, 0xff800000 are plain integers here",
    "out": {"out": {"nan": 0}},
}


@triton.jit
def bit_mix(x_ptr, out_ptr, N: tl.constexpr):
    i = tl.arange(0, N)
    x = tl.load(x_ptr + i)
    y = x | 0x400000
    z = y ^ i
    tl.store(out_ptr + i, z)


X = np.array([0x7FC00000, 0x7F800000, -0x800000, 0, 1, -1, 2**31 - 1, -(2**31)], np.int64).astype(
    np.int32
)


def run(device="cuda"):
    x = torch.from_numpy(X).to(device)
    out = torch.zeros_like(x)
    bit_mix[(1,)](x, out, N=8)
    return {"out": out.to(torch.float64) if device == "cpu" else out}


def oracle():
    y = X | np.int32(0x400000)
    z = y ^ np.arange(8, dtype=np.int32)
    return {"stats": {"x = tl.load(x_ptr + i)": X, "y = x | 0x400000": y, "z = y ^ i": z}}


def verify(out):
    assert np.array_equal(
        out["out"].cpu().numpy().astype(np.int64), oracle()["stats"]["z = y ^ i"].astype(np.int64)
    )


# of oracle()["stats"], over all lanes of all programs and iterations; min and max of finite values
STATS = {
    "x = tl.load(x_ptr + i)": {"count": 8, "zero": 1, "min": -2147483648.0, "max": 2147483647.0},
    "y = x | 0x400000": {"count": 8, "zero": 0, "min": -2143289344.0, "max": 2147483647.0},
    "z = y ^ i": {"count": 8, "zero": 0, "min": -2143289337.0, "max": 2147483641.0},
}
