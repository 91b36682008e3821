"""The mean of a segment without elements: 0 / 0 in a scalar."""

import itertools

import numpy as np
import torch
import triton
import triton.language as tl

KIND = "nan_div_zero"
CAUSE = "two segments have equal start and end, so sum and count are both zero"
MODE = "triton"
EXPECT = {
    "verdict": "anomaly",
    "anomaly": "nan",
    "kernel": "segment_mean",
    "statement": "mean = total / count",
    "op": "arith.divf",
    "cause": "0 / 0",
    "first": {"program": (1, 0, 0), "lane": 0},
    "nan_count": 2,
    "out": {"out": {"nan": 2, "rows": [1, 4]}},
}


@triton.jit
def segment_mean(x_ptr, starts_ptr, out_ptr, B: tl.constexpr):
    segment = tl.program_id(0)
    start = tl.load(starts_ptr + segment)
    end = tl.load(starts_ptr + segment + 1)
    i = start + tl.arange(0, B)
    x = tl.load(x_ptr + i, mask=i < end, other=0.0)
    total = tl.sum(x, axis=0)
    count = (end - start).to(tl.float32)
    mean = total / count
    tl.store(out_ptr + segment, mean)


STARTS = np.array([0, 3, 3, 7, 8, 8], np.int32)


def run(device="cuda"):
    x = torch.arange(8.0, device=device)
    starts = torch.from_numpy(STARTS).to(device)
    out = torch.zeros(5, device=device)
    segment_mean[(5,)](x, starts, out, B=4)
    return {"out": out}


def oracle():
    x = np.arange(8, dtype=np.float32)
    total = np.array([x[a:b].sum() for a, b in itertools.pairwise(STARTS)])
    mean = total / np.diff(STARTS).astype(np.float32)
    return {
        "stats": {"total = tl.sum(x, axis=0)": total, "mean = total / count": mean},
        "out": {"out": mean},
    }
