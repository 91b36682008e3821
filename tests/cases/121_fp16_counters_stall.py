"""fp16 counters that are raised by one stop at 2048."""

import numpy as np
import torch
import triton
import triton.language as tl

KIND = "precision_accumulate"
CAUSE = "2048 + 1 is not an fp16 number and rounds to 2048"
MODE = "triton"
EXPECT = {
    "verdict": "anomaly",
    "anomaly": "stagnation",
    "kernel": "count_up",
    "statement": "count = count + one",
    "op": "arith.addf",
    "first": {"program": (0, 0, 0), "iteration": 0, "lane": 2},
    "lost_additions": 51,
    "silent": True,
}


@triton.jit
def count_up(start_ptr, one_ptr, out_ptr, STEPS: tl.constexpr, N: tl.constexpr):
    i = tl.arange(0, N)
    count = tl.load(start_ptr + i)
    for step in range(STEPS):
        one = tl.load(one_ptr + step)
        count = count + one
    tl.store(out_ptr + i, count)


START = np.array([2040, 2044, 2048, 2047], np.float16)


def run(device="cuda"):
    start = torch.from_numpy(START).to(device)
    one = torch.ones(16, dtype=torch.float16, device=device)
    out = torch.zeros_like(start)
    count_up[(1,)](start, one, out, STEPS=16, N=4)
    return {"out": out}


def oracle():
    count, counts, lost = START, [], 0
    for _ in range(16):
        new = (count.astype(np.float32) + 1).astype(np.float16)
        lost += (new == count).sum()
        count = new
        counts.append(count)
    assert lost == EXPECT["lost_additions"]
    return {"stats": {EXPECT["statement"]: np.stack(counts)}, "out": {"out": count}}
