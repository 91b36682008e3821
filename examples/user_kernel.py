"""Hand-written kernels: a plain `@triton.jit` kernel and an autotuned one.

The first kernel divides by an element that is zero; the second computes the softmax of each row.
Launches that the autotuner makes to measure configurations are not recorded.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

import flagprism_torch


@triton.jit
def divide(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    x = tl.load(x_ptr + offsets, mask=mask)
    y = tl.load(y_ptr + offsets, mask=mask)
    ratio = x / y
    tl.store(out_ptr + offsets, ratio, mask=mask)


@triton.autotune(
    [triton.Config({}, num_warps=1), triton.Config({}, num_warps=4)],
    key=["columns"],
)
@triton.jit
def softmax(x_ptr, out_ptr, columns, BLOCK: tl.constexpr):
    column = tl.arange(0, BLOCK)
    mask = column < columns
    at = tl.program_id(0) * columns + column
    x = tl.load(x_ptr + at, mask=mask, other=float("-inf"))
    e = tl.exp(x - tl.max(x, axis=0))
    p = e / tl.sum(e, axis=0)
    tl.store(out_ptr + at, p, mask=mask)


def main(device: str) -> None:
    torch.manual_seed(0)
    n, rows, columns = 1000, 64, 100
    x, y = torch.randn(n, device=device), torch.randn(n, device=device)
    x[7] = y[7] = 0.0
    scores = torch.randn(rows, columns, device=device)
    ratio, p = torch.empty_like(x), torch.empty_like(scores)

    with flagprism_torch.debug(logdir=False) as session:
        divide[(triton.cdiv(n, 256),)](x, y, ratio, n, BLOCK=256)
        softmax[(rows,)](scores, p, columns, BLOCK=triton.next_power_of_2(columns))

    print(session.report("statement"))
    (row,) = session.table().where(kernel="softmax", variable="p")
    print(f"p: {row.live} live of {row.lanes} lanes, from {row.min:.3g} to {row.max:.3g}")
    print(f"p by torch: {p.numel()} elements, from {p.min():.3g} to {p.max():.3g}")


if __name__ == "__main__":
    main("cuda" if torch.cuda.is_available() else "cpu")
