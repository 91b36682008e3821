"""Hand-written kernels inside a compiled module: one behind a `triton_op`, one behind an
`autograd.Function` with a backward kernel. Rows name the module, forward and backward.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import nn
from torch.library import triton_op, wrap_triton

import flagprism_torch


@triton.jit
def scale_kernel(x_ptr, out_ptr, n, factor, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    x = tl.load(x_ptr + offsets, mask=mask)
    tl.store(out_ptr + offsets, x * factor, mask=mask)


@triton.jit
def square_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    x = tl.load(x_ptr + offsets, mask=mask)
    tl.store(out_ptr + offsets, x * x, mask=mask)


@triton.jit
def square_backward_kernel(x_ptr, grad_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    x = tl.load(x_ptr + offsets, mask=mask)
    grad = tl.load(grad_ptr + offsets, mask=mask)
    tl.store(out_ptr + offsets, 2 * x * grad, mask=mask)


@triton_op("flagprism_examples::scale", mutates_args={})
def scale(x: torch.Tensor, factor: float) -> torch.Tensor:
    out = torch.empty_like(x)
    n = x.numel()
    wrap_triton(scale_kernel)[(triton.cdiv(n, 256),)](x, out, n, factor, BLOCK=256)
    return out


scale.register_autograd(
    lambda ctx, grad: (scale(grad.contiguous(), ctx.factor), None),
    setup_context=lambda ctx, inputs, output: setattr(ctx, "factor", inputs[1]),
)


class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        out, n = torch.empty_like(x), x.numel()
        square_kernel[(triton.cdiv(n, 256),)](x, out, n, BLOCK=256)
        return out

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        (x,) = ctx.saved_tensors
        grad = grad.contiguous()
        out, n = torch.empty_like(x), x.numel()
        square_backward_kernel[(triton.cdiv(n, 256),)](x, grad, out, n, BLOCK=256)
        return out


class Scaled(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return scale(x.sin(), 0.5)


class Squared(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return Square.apply(x)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.scaled, self.squared = Scaled(), Squared()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.squared(self.scaled(self.linear(x))).sum()


def main(device: str) -> None:
    flagprism_torch.enable_cpu()  # without an accelerator: Triton kernels on the CPU
    torch.manual_seed(0)
    net = Net().to(device)
    x = torch.randn(100, 8, device=device)
    with flagprism_torch.debug(model=net, logdir=False) as session:
        torch.compile(net)(x).backward()

    for row in session.table().where(role="store"):
        print(f"{row.module:8} {row.phase:8} {row.kernel}: {row.statement}")
        print(f"{'':17} {row.live} lanes from {row.min:.3g} to {row.max:.3g}, l2 {row.l2:.3g}")
    print(session.coverage)


if __name__ == "__main__":
    main("cuda" if torch.cuda.is_available() else "cpu")
