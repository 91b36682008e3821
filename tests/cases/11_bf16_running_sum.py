"""A bf16 accumulator stops growing once the addend is below half an ulp."""

import numpy as np
import torch
import triton
import triton.language as tl

KIND = "precision_accumulate"
SOURCE = "pytorch/executorch#20089"
CAUSE = "loop-carried sum kept in bf16; it saturates at 256 ulp-wise and later additions are lost"
MODE = "triton"
EXPECT = {
    "verdict": "anomaly",
    "anomaly": "stagnation",
    "kernel": "bf16_sum",
    "statement": "acc = (acc.to(tl.float32) + x).to(tl.bfloat16)",
    "op": "arith.truncf",
    "silent": True,
    # adding a non-zero x leaves acc unchanged from this iteration on (per lane)
    "first_lost_iteration": [256, 256, 256, 256],
    "first": {"program": (0, 0, 0), "iteration": 256, "lane": 0},
    "lost_additions": 1024,
    "out": {"out": {"wrong": [256.0, 256.0, 512.0, 128.0], "right": [512.0, 512.0, 1024.0, 256.0]}},
}


@triton.jit
def bf16_sum(x_ptr, out_ptr, N: tl.constexpr, W: tl.constexpr):
    lane = tl.arange(0, W)
    acc = tl.zeros((W,), tl.bfloat16)
    for i in range(0, N):
        x = tl.load(x_ptr + i * W + lane).to(tl.float32)
        acc = (acc.to(tl.float32) + x).to(tl.bfloat16)
    tl.store(out_ptr + lane, acc)


def run(device="cuda"):
    x = torch.tensor([1.0, 1.0, 2.0, 0.5]).repeat(512, 1).to(torch.bfloat16).to(device)
    out = torch.zeros(4, dtype=torch.bfloat16, device=device)
    bf16_sum[(1,)](x, out, N=512, W=4)
    return {"out": out}


def _bf16(a):  # round to nearest even, by hand
    u = np.asarray(a, np.float32).view(np.uint32).astype(np.uint64)
    return ((u + 0x7FFF + ((u >> 16) & 1)) & 0xFFFF0000).astype(np.uint32).view(np.float32)


def oracle():
    x = np.array([1, 1, 2, 0.5], np.float32)
    acc = np.zeros(4, np.float32)
    hist = []
    lost = np.zeros((512, 4), bool)
    for i in range(512):
        new = _bf16(acc + x)
        lost[i] = new == acc
        acc = new
        hist.append(acc)
    assert (
        lost.argmax(0).tolist() == EXPECT["first_lost_iteration"]
        and int(lost.sum()) == EXPECT["lost_additions"]
    )
    assert acc.tolist() == EXPECT["out"]["out"]["wrong"]
    return {
        "stats": {"acc = (acc.to(tl.float32) + x).to(tl.bfloat16)": np.stack(hist)},
        "out": {"out": acc},
    }


# of oracle()["stats"], over all lanes of all programs and iterations; min and max of finite values
STATS = {
    "acc = (acc.to(tl.float32) + x).to(tl.bfloat16)": {
        "count": 2048,
        "nan": 0,
        "posinf": 0,
        "neginf": 0,
        "zero": 0,
        "min": 0.5,
        "max": 512.0,
    },
}
