"""No mask on the last block: 24 lanes load and store past the tensor."""

import numpy as np
import torch
import triton
import triton.language as tl

KIND = "oob_missing_mask"
SOURCE = "triton-lang/triton#1088"
CAUSE = "tensor length is not a multiple of BLOCK and neither access is masked"
MODE = "triton"
# safe to run: x and out are views of larger buffers, so the excess lanes hit a canary
EXPECT = {
    "verdict": "anomaly",
    "anomaly": "oob",
    "kernel": "add_one",
    "statement": "x = tl.load(x_ptr + offs)",
    "op": "tt.load",
    "also": "tl.store(out_ptr + offs, x + 1.0)",
    "also_op": "tt.store",
    "oob_lanes": 24,
    "program": (7, 0, 0),
    "lanes": [104, 127],
    "index_range": [1000, 1023],
    "extent": [0, 1000],
    "canary_overwritten": 24,
}


@triton.jit
def add_one(x_ptr, out_ptr, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offs)
    tl.store(out_ptr + offs, x + 1.0)


def run(device="cuda"):
    xb = torch.zeros(2048, device=device)
    ob = torch.full((2048,), -7.0, device=device)
    x, out = xb[:1000], ob[:1000]
    add_one[(8,)](x, out, BLOCK=128)
    return {"out": out, "canary": ob[1000:]}


def oracle():
    offs = np.arange(8)[:, None] * 128 + np.arange(128)[None]
    bad = offs >= 1000
    assert (
        int(bad.sum()) == EXPECT["oob_lanes"]
        and np.nonzero(bad)[1].min() == 104
        and set(np.nonzero(bad)[0]) == {7}
    )
    return {
        "stats": {"offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)": offs},
        "out": {"out": np.ones(1000, np.float32)},
    }


def verify(out):
    assert int((out["canary"] != -7).sum()) == EXPECT["canary_overwritten"]


# of oracle()["stats"], over all lanes of all programs and iterations; min and max of finite values
STATS = {
    "offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)": {
        "count": 1024,
        "zero": 1,
        "min": 0.0,
        "max": 1023.0,
    },
}
