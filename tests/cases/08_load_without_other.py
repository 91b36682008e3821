"""A masked load without other= feeds a max reduction: the padding lanes are undefined."""

import numpy as np
import torch
import triton
import triton.language as tl

KIND = "uninit_masked_load"
SOURCE = "flagos-ai/FlagGems#3716"
CAUSE = "padding lanes of the load have no defined value and take part in tl.max"
MODE = "triton"
EXPECT = {
    "verdict": "anomaly",
    "anomaly": "undefined_lanes",
    "kernel": "row_max",
    "statement": "x = tl.load(x_ptr + row * n + cols, mask=cols < n)",
    "op": "tt.load",
    "consumer": "top = tl.max(x, axis=0)",
    "consumer_op": "tt.reduce",
    "first": {"program": (0, 0, 0), "lane": 13},
    "undefined_lanes": 12,
    "per_program": 3,
    # where the padding reads as zero (NVIDIA in practice) the answer is 0 and not the row maximum
    "out": {"out": {"zero_fill": [0.0, 0.0, 0.0, 0.0], "right": [-1.0, -2.0, -3.0, -4.0]}},
    "silent": True,
}


@triton.jit
def row_max(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    cols = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * n + cols, mask=cols < n)
    top = tl.max(x, axis=0)
    tl.store(out_ptr + row, top)


def arrays():
    return (-(np.arange(4)[:, None] + 1.0) - np.arange(13)[None] % 5).astype(np.float32)


def run(device="cuda"):
    x = torch.from_numpy(arrays()).to(device)
    out = torch.zeros(4, device=device)
    row_max[(4,)](x, out, 13, BLOCK=16)
    return {"out": out}


def oracle():
    x = arrays()
    pad = np.zeros((4, 16), np.float32)
    pad[:, :13] = x
    assert x.max(1).tolist() == EXPECT["out"]["out"]["right"]
    return {"stats": {"top = tl.max(x, axis=0)": pad.max(1)}, "out": {"out": pad.max(1)}}


# of oracle()["stats"], over all lanes of all programs and iterations; min and max of finite values
STATS = {
    "top = tl.max(x, axis=0)": {
        "count": 4,
        "nan": 0,
        "posinf": 0,
        "neginf": 0,
        "zero": 4,
        "min": 0.0,
        "max": 0.0,
    },
}
