"""A NaN term is added to a shared sum by an atomic; later programs only see it there."""

import numpy as np
import torch
import triton
import triton.language as tl

KIND = "nan_div_zero"
CAUSE = "the weight of token 2 is zero and so is its loss: 0 / 0 reaches the sum"
MODE = "triton"
EXPECT = {
    "verdict": "anomaly",
    "anomaly": "nan",
    "kernel": "weighted_loss",
    "statement": "term = loss / weight",
    "op": "arith.divf",
    "cause": "0 / 0",
    "first": {"program": (2, 0, 0), "lane": 0},
    "nan_count": 1,
    "out": {"out": {"nan": 1}},
}


@triton.jit
def weighted_loss(loss_ptr, weight_ptr, out_ptr):
    token = tl.program_id(0)
    loss = tl.load(loss_ptr + token)
    weight = tl.load(weight_ptr + token)
    term = loss / weight
    tl.atomic_add(out_ptr, term)


LOSS = np.array([1, 2, 0, 3, 4], np.float32)
WEIGHT = np.array([1, 2, 0, 3, 4], np.float32)


def run(device="cuda"):
    loss, weight = (torch.from_numpy(a).to(device) for a in (LOSS, WEIGHT))
    out = torch.zeros(1, device=device)
    weighted_loss[(5,)](loss, weight, out)
    return {"out": out}


def oracle():
    term = LOSS / WEIGHT
    return {"stats": {EXPECT["statement"]: term}, "out": {"out": term.sum(keepdims=True)}}
