"""A sum kept in fp16 passes 65504 in a late iteration."""

import numpy as np
import torch
import triton
import triton.language as tl

KIND = "overflow_half"
CAUSE = "the accumulator is fp16 and is not widened for the loop"
MODE = "triton"
EXPECT = {
    "verdict": "anomaly",
    "anomaly": "inf",
    "kernel": "column_sums",
    "statement": "acc = acc + x",
    "op": "arith.addf",
    "first": {"program": (0, 0, 0), "iteration": 3, "lane": 5},
    "inf_count": 3,
    "out": {"out": {"nan": 0, "inf": 3, "rows": [1, 5, 9]}},
}


@triton.jit
def column_sums(x_ptr, out_ptr, n, ROWS: tl.constexpr, N: tl.constexpr):
    i = tl.program_id(0) * N + tl.arange(0, N)
    acc = tl.zeros((N,), tl.float16)
    for row in range(ROWS):
        x = tl.load(x_ptr + row * n + i, mask=i < n, other=60000.0)
        acc = acc + x
    tl.store(out_ptr + i, acc, mask=i < n)


def arrays():
    x = np.ones((8, 11), np.float16)
    x[:, 1] = 8192  # 65536 in iteration 7
    x[:, 5] = 16384  # iteration 3
    x[2:, 9] = -20000  # iteration 5
    return x


def run(device="cuda"):
    x = torch.from_numpy(arrays()).to(device)
    out = torch.zeros(11, dtype=torch.float16, device=device)
    column_sums[(2,)](x, out, 11, ROWS=8, N=8)
    return {"out": out}


def oracle():
    acc, sums = np.zeros(11, np.float16), []
    for row in arrays():
        acc = (acc.astype(np.float32) + row).astype(np.float16)
        sums.append(acc)
    infinite = np.isinf(np.stack(sums))
    assert [int(infinite[:, c].argmax()) for c in (1, 5, 9)] == [7, 3, 5]
    tiles = np.full((8, 16), np.inf, np.float16)
    tiles[:, :11] = sums
    live = np.broadcast_to(np.arange(16) < 11, (8, 16))
    name = EXPECT["statement"]
    return {"stats": {name: tiles}, "live": {name: live}, "out": {"out": acc}}
