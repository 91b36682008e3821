"""An embedding table is read one row too far, and its gradient is written there: nothing faults,
because the table is a view of a larger buffer. Bounds are those of the tensor, so it is found; with
a guard the rows beyond stay as they are.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

import flagprism_torch


@triton.jit
def embed(table_ptr, token_ptr, out_ptr, WIDTH: tl.constexpr):
    i, column = tl.program_id(0), tl.arange(0, WIDTH)
    token = tl.load(token_ptr + i)
    row = tl.load(table_ptr + token * WIDTH + column)
    tl.store(out_ptr + i * WIDTH + column, row)


@triton.jit
def add_gradient(grad_ptr, token_ptr, table_ptr, WIDTH: tl.constexpr):
    i, column = tl.program_id(0), tl.arange(0, WIDTH)
    token = tl.load(token_ptr + i)
    grad = tl.load(grad_ptr + i * WIDTH + column)
    tl.atomic_add(table_ptr + token * WIDTH + column, grad)


def main(device: str) -> None:
    tokens = torch.tensor([3, 99, 100, 7], device=device)  # 100 is one too many
    out, grad = torch.empty(4, 16, device=device), torch.ones(4, 16, device=device)
    for guard in (False, True):
        buffer = torch.zeros(128, 16, device=device)
        table = buffer[:100]
        with flagprism_torch.debug(addr_level=1, guard=guard, logdir=False) as session:
            embed[(4,)](table, tokens, out, WIDTH=16)
            add_gradient[(4,)](grad, tokens, table, WIDTH=16)
        if not guard:
            print(session.report("module"))
        changed = int((buffer[100:] != 0).sum())
        print(f"guard={guard}: {len(session.anomalies)} findings, {changed} elements overwritten")
    for row in session.addresses().where(kernel="embed"):
        print(f"{row.role} {row.argument} {row.shape}: bytes {row.min} to {row.max}, {row.pattern}")


if __name__ == "__main__":
    main("cuda" if torch.cuda.is_available() else "cpu")
