"""An infinity that does no harm: 1 / (1 + exp(x)) is 0 where exp(x) overflows.

It is born in the kernel, but nothing that is stored is infinite or NaN. So it is no anomaly:
`session.hidden` has it, and the report counts it in one line.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

import flagprism_torch


@triton.jit
def falling_sigmoid(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    x = tl.load(x_ptr + offsets, mask=mask, other=0.0)
    # beyond 88.7 this is inf in fp32
    e = tl.exp(x)
    y = 1 / (1 + e)
    tl.store(out_ptr + offsets, y, mask=mask)


def main(device: str) -> None:
    x = torch.linspace(-100, 100, 1000, device=device)
    out = torch.empty_like(x)
    with flagprism_torch.debug(logdir=False) as session:
        falling_sigmoid[(triton.cdiv(x.numel(), 256),)](x, out, x.numel(), BLOCK=256)

    print(session.report())
    for birth in session.hidden:
        print(f"{birth}; cause: {birth.cause}")
    print("lanes by torch:", x.exp().isinf().sum().item())


if __name__ == "__main__":
    main("cuda" if torch.cuda.is_available() else "cpu")
