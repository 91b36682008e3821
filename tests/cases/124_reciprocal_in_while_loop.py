"""A while loop counts a scalar down and divides by it once too often."""

import numpy as np
import torch
import triton
import triton.language as tl

KIND = "div_zero"
CAUSE = "the loop runs while k >= 0, so the last term is 1 / 0"
MODE = "triton"
EXPECT = {
    "verdict": "anomaly",
    "anomaly": "inf",
    "kernel": "harmonic",
    "statement": "term = 1.0 / k",
    "op": "arith.divf",
    "cause": "x / 0",
    "first": {"program": (0, 0, 0), "iteration": 2, "lane": 0},
    "inf_count": 3,
    "out": {"out": {"nan": 0, "inf": 3}},
}


@triton.jit
def harmonic(start_ptr, out_ptr):
    program = tl.program_id(0)
    k = tl.load(start_ptr + program)
    total = 0.0
    while k >= 0:
        term = 1.0 / k
        total += term
        k -= 1.0
    tl.store(out_ptr + program, total)


START = np.array([2, 0, 3, -1], np.float32)


def run(device="cuda"):
    start = torch.from_numpy(START).to(device)
    out = torch.zeros_like(start)
    harmonic[(4,)](start, out)
    return {"out": out}


def oracle():
    terms = [1 / np.arange(k, -1, -1, dtype=np.float32) for k in START]
    return {
        "stats": {EXPECT["statement"]: np.concatenate(terms)},
        "out": {"out": np.array([t.sum() for t in terms])},
    }
