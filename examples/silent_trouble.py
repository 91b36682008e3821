"""Wrong results without any NaN: an offset that wraps, a load without `other`, a bf16 sum.

Each kernel computes finite numbers, and each is wrong. The verdict of such trouble is `found`.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

import flagprism_torch


@triton.jit
def gather(table_ptr, row_ptr, out_ptr, stride, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    row = tl.load(row_ptr + i)
    # int32: what is 2**31 or more wraps
    offset = row * stride
    value = tl.load(table_ptr + offset, mask=(offset >= 0) & (offset < n), other=0.0)
    tl.store(out_ptr + i, value)


@triton.jit
def row_max(x_ptr, out_ptr, columns, BLOCK: tl.constexpr):
    row, column = tl.program_id(0), tl.arange(0, BLOCK)
    # without other=float("-inf") the lanes beyond the row hold anything
    x = tl.load(x_ptr + row * columns + column, mask=column < columns)
    top = tl.max(x, axis=0)
    tl.store(out_ptr + row, top)


@triton.jit
def column_sum(x_ptr, out_ptr, rows, BLOCK: tl.constexpr):
    column = tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), tl.bfloat16)
    for row in range(rows):
        x = tl.load(x_ptr + row * BLOCK + column)
        # 256 + 1 is 256 in bf16
        total += x.to(tl.bfloat16)
    tl.store(out_ptr + column, total)


def main(device: str) -> None:
    table = torch.ones(64, device=device)
    row = torch.tensor([0, 16383, 16384, 16385], dtype=torch.int32, device=device)
    negative = -1 - torch.rand(4, 13, device=device)
    ones = torch.ones(400, 16, device=device)
    sums = torch.empty(16, dtype=torch.bfloat16, device=device)

    with flagprism_torch.debug(logdir=False) as session:
        gather[(1,)](table, row, torch.empty(4, device=device), 2**17, 64, BLOCK=4)
        row_max[(4,)](negative, torch.empty(4, device=device), 13, BLOCK=16)
        column_sum[(1,)](ones, sums, 400, BLOCK=16)

    print(session.report("module"))
    for anomaly in session.anomalies:
        print(f"{anomaly.kind} in {anomaly.kernel}: {dict(anomaly.details)}")
    print(f"a sum of 400 ones: {sums[0].item():.0f}")


if __name__ == "__main__":
    main("cuda" if torch.cuda.is_available() else "cpu")
