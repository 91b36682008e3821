"""row * stride is computed in int32 and wraps negative (the load is guarded, so it is safe)."""

import numpy as np
import torch
import triton
import triton.language as tl

KIND = "oob_int32_overflow"
SOURCE = "fla-org/flash-linear-attention#1080"
CAUSE = "int32 index times int32 stride exceeds 2**31-1"
MODE = "triton"
EXPECT = {
    "verdict": "anomaly",
    "anomaly": "int_overflow",
    "kernel": "gather_rows",
    "statement": "off = idx * stride",
    "op": "arith.muli",
    "first": {"program": (0, 0, 0), "lane": 2},
    "wrapped_lanes": 2,
    "lanes": [2, 3],
    "wrapped_values": [-2147483648, -2147352576],
    "true_values": [2147483648, 2147614720],
    "min": -2147483648,
    "max": 2147352576,
    "out": {"out": {"zero": 3}},
}


@triton.jit
def gather_rows(x_ptr, idx_ptr, out_ptr, stride, n, K: tl.constexpr):
    i = tl.arange(0, K)
    idx = tl.load(idx_ptr + i)
    off = idx * stride
    val = tl.load(x_ptr + off, mask=(off >= 0) & (off < n), other=0.0)
    tl.store(out_ptr + i, val)


IDX = np.array([0, 16383, 16384, 16385], np.int32)


def run(device="cuda"):
    x = torch.ones(64, device=device)
    idx = torch.from_numpy(IDX).to(device)
    out = torch.zeros(4, device=device)
    gather_rows[(1,)](x, idx, out, 131072, 64, K=4)
    return {"out": out}


def oracle():
    with np.errstate(all="ignore"):
        off = IDX * np.int32(131072)
    true = IDX.astype(np.int64) * 131072
    assert (
        off[2:].tolist() == EXPECT["wrapped_values"] and true[2:].tolist() == EXPECT["true_values"]
    )
    return {
        "stats": {"off = idx * stride": off},
        "out": {"out": np.array([1, 0, 0, 0], np.float32)},
    }


# of oracle()["stats"], over all lanes of all programs and iterations; min and max of finite values
STATS = {
    "off = idx * stride": {"count": 4, "zero": 1, "min": -2147483648.0, "max": 2147352576.0},
}
