"""A NaN is born in one kernel and shows in the next: softmax over a row that is masked entirely.

Every score of that row is -inf, and so is their maximum: -inf - -inf is NaN. The second kernel
loads it and stores it on. All of this is one anomaly, which points at the subtraction.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

import flagprism_torch


@triton.jit
def softmax(score_ptr, visible_ptr, weight_ptr, columns, BLOCK: tl.constexpr):
    column = tl.arange(0, BLOCK)
    inside = column < columns
    at = tl.program_id(0) * columns + column
    visible = tl.load(visible_ptr + at, mask=inside, other=0)
    score = tl.load(score_ptr + at, mask=inside, other=0.0)
    score = tl.where(visible != 0, score, float("-inf"))
    top = tl.max(score, axis=0)
    # the fault: a row may have nothing visible
    e = tl.exp(score - top)
    weight = e / tl.sum(e, axis=0)
    tl.store(weight_ptr + at, weight, mask=inside)


@triton.jit
def weighted_sum(weight_ptr, value_ptr, out_ptr, columns, BLOCK: tl.constexpr):
    row, column = tl.program_id(0), tl.arange(0, BLOCK)
    inside = column < columns
    weight = tl.load(weight_ptr + row * columns + column, mask=inside, other=0.0)
    value = tl.load(value_ptr + column, mask=inside, other=0.0)
    tl.store(out_ptr + row, tl.sum(weight * value, axis=0))


def main(device: str) -> None:
    torch.manual_seed(0)
    rows, columns, block = 8, 100, 128
    score = torch.randn(rows, columns, device=device)
    visible = torch.ones(rows, columns, dtype=torch.int8, device=device)
    visible[:, 90:] = 0  # healthy: the row has other columns
    visible[5] = 0
    value = torch.randn(columns, device=device)
    weight, out = torch.empty_like(score), torch.empty(rows, device=device)

    with flagprism_torch.debug(logdir=False) as session:
        softmax[(rows,)](score, visible, weight, columns, BLOCK=block)
        weighted_sum[(rows,)](weight, value, out, columns, BLOCK=block)

    print(session.report())
    print("rows of out that are NaN:", out.isnan().nonzero().flatten().tolist())


if __name__ == "__main__":
    main("cuda" if torch.cuda.is_available() else "cpu")
