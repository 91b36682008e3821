"""The first kernel leaves one partial sum unwritten; the second adds up what memory held."""

import numpy as np
import torch
import triton
import triton.language as tl

KIND = "nan_from_memory"
CAUSE = "the grid of the first kernel is one short; the last cell of torch.empty is loaded as it is"
MODE = "triton"
# the buffer is filled with NaN to stand for torch.empty; the kernel that wrote the other cells
# made no NaN and must not be blamed
EXPECT = {
    "verdict": "anomaly",
    "anomaly": "nan",
    "kernel": "total",
    "statement": "part = tl.load(part_ptr + i)",
    "op": "tt.load",
    "argument": "part_ptr",
    "first": {"program": (0, 0, 0), "lane": 7},
    "nan_count": 1,
    "out": {"out": {"nan": 1}, "parts": {"nan": 1}},
}


@triton.jit
def partial_sums(x_ptr, part_ptr, N: tl.constexpr):
    block = tl.program_id(0)
    x = tl.load(x_ptr + block * N + tl.arange(0, N))
    tl.store(part_ptr + block, tl.sum(x, axis=0))


@triton.jit
def total(part_ptr, out_ptr, B: tl.constexpr):
    i = tl.arange(0, B)
    part = tl.load(part_ptr + i)
    tl.store(out_ptr, tl.sum(part, axis=0))


def run(device="cuda"):
    x = torch.ones(64, device=device)
    parts = torch.full((8,), float("nan"), device=device)
    out = torch.zeros(1, device=device)
    partial_sums[(7,)](x, parts, N=8)
    total[(1,)](parts, out, B=8)
    return {"out": out, "parts": parts}


def oracle():
    parts = np.full(8, 8, np.float32)
    parts[7] = np.nan
    return {
        "stats": {EXPECT["statement"]: parts},
        "out": {"out": parts.sum(keepdims=True), "parts": parts},
    }
