"""A pipelined loop that stores and re-loads one address; num_stages must not change the result."""

import numpy as np
import torch
import triton
import triton.language as tl

KIND = "miscompile_pipelining"
SOURCE = "triton-lang/triton#8259"
CAUSE = "the load may be hoisted above the store of the same address by software pipelining"
MODE = "triton"
EXPECT = {
    "verdict": "anomaly",
    "anomaly": "config_dependent",
    "kernel": "store_then_load",
    "statement": "back = tl.load(p)",
    "op": "tt.load",
    "writer": "tl.store(p, val)",
    "variants": [1, 2, 3],
    "right": {"diff_max_abs": 0.0},
    "symptom": "depends on Triton and the device; the static part always applies: store and load "
    "of one pointer in a pipelined loop",
}


@triton.jit
def store_then_load(buf_ptr, diff_ptr, W: tl.constexpr, STAGES: tl.constexpr):
    pid = tl.program_id(0)
    for off in tl.range(0, W, 128, num_stages=STAGES):
        i = off + tl.arange(0, 128)
        p = buf_ptr + pid * W + i
        val = (i + pid).to(tl.float32)
        tl.store(p, val)
        back = tl.load(p)
        d = back - val
        tl.store(diff_ptr + pid * W + i, d)


def run(device="cuda"):
    res = {}
    for st in EXPECT["variants"]:
        buf = torch.zeros(8 * 1024, device=device)
        diff = torch.full((8 * 1024,), -1.0, device=device)
        store_then_load[(8,)](buf, diff, W=1024, STAGES=st)
        res[f"diff{st}"] = diff
    return res


def oracle():
    return {
        "stats": {"d = back - val": np.zeros(3 * 8 * 1024, np.float32)},
        "out": {f"diff{s}": np.zeros(8 * 1024, np.float32) for s in (1, 2, 3)},
    }


# of oracle()["stats"], over all lanes of all programs and iterations; min and max of finite values
STATS = {
    "d = back - val": {
        "count": 24576,
        "nan": 0,
        "posinf": 0,
        "neginf": 0,
        "zero": 24576,
        "min": 0.0,
        "max": 0.0,
    },
}
