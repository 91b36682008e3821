"""Single kernels, as people write them."""

from __future__ import annotations

from collections.abc import Callable

import torch
import triton
import triton.language as tl


@triton.jit
def vector_add(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    x = tl.load(x_ptr + offsets, mask=mask)
    y = tl.load(y_ptr + offsets, mask=mask)
    tl.store(out_ptr + offsets, x + y, mask=mask)


@triton.jit
def row_softmax(x_ptr, out_ptr, columns, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    mask = at < columns
    x = tl.load(x_ptr + tl.program_id(0) * columns + at, mask=mask, other=-float("inf"))
    e = tl.exp(x - tl.max(x, axis=0))
    p = e / tl.sum(e, axis=0)
    tl.store(out_ptr + tl.program_id(0) * columns + at, p, mask=mask)


@triton.jit
def layer_norm(x_ptr, w_ptr, b_ptr, out_ptr, columns, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0) * columns
    total = tl.zeros([BLOCK], tl.float32)
    for start in range(0, columns, BLOCK):
        at = start + tl.arange(0, BLOCK)
        total += tl.load(x_ptr + row + at, mask=at < columns, other=0.0).to(tl.float32)
    mean = tl.sum(total, axis=0) / columns
    square = tl.zeros([BLOCK], tl.float32)
    for start in range(0, columns, BLOCK):
        at = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + row + at, mask=at < columns, other=0.0).to(tl.float32)
        centred = tl.where(at < columns, x - mean, 0.0)
        square += centred * centred
    rstd = 1 / tl.sqrt(tl.sum(square, axis=0) / columns + eps)
    for start in range(0, columns, BLOCK):
        at = start + tl.arange(0, BLOCK)
        mask = at < columns
        w = tl.load(w_ptr + at, mask=mask)
        b = tl.load(b_ptr + at, mask=mask)
        x = tl.load(x_ptr + row + at, mask=mask, other=0.0).to(tl.float32)
        tl.store(out_ptr + row + at, (x - mean) * rstd * w + b, mask=mask)


@triton.jit
def matmul(a_ptr, b_ptr, out_ptr, m, n, k, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    columns = tl.program_id(1) * BN + tl.arange(0, BN)
    acc = tl.zeros([BM, BN], tl.float32)
    for start in range(0, k, BK):
        inner = start + tl.arange(0, BK)
        a = tl.load(a_ptr + rows[:, None] * k + inner[None, :])
        b = tl.load(b_ptr + inner[:, None] * n + columns[None, :])
        acc = tl.dot(a, b, acc)
    tl.store(out_ptr + rows[:, None] * n + columns[None, :], acc.to(tl.float16))


Launch = Callable[[], None]


def launches(device: str, small: bool) -> dict[str, Launch]:
    """Name with shape -> a function that launches the kernel once."""
    n = 4096 if small else 1 << 24
    x, y = torch.randn(n, device=device), torch.randn(n, device=device)
    total = torch.empty_like(x)

    def add() -> None:
        vector_add[(triton.cdiv(n, 1024),)](x, y, total, n, BLOCK=1024)

    rows, columns = (16, 100) if small else (8192, 1000)
    scores = torch.randn(rows, columns, device=device)
    p = torch.empty_like(scores)
    width = triton.next_power_of_2(columns)

    def softmax() -> None:
        row_softmax[(rows,)](scores, p, columns, BLOCK=width)

    tokens, hidden = (16, 96) if small else (8192, 4096)
    block = 64 if small else 1024
    states = torch.randn(tokens, hidden, device=device, dtype=torch.bfloat16)
    weight, bias = torch.ones(hidden, device=device), torch.zeros(hidden, device=device)
    normal = torch.empty_like(states)

    def norm() -> None:
        layer_norm[(tokens,)](states, weight, bias, normal, hidden, 1e-5, BLOCK=block)

    size, tile, inner = (64, 32, 32) if small else (4096, 128, 64)
    a = torch.randn(size, size, device=device, dtype=torch.float16)
    b = torch.randn(size, size, device=device, dtype=torch.float16)
    product = torch.empty_like(a)
    grid = (size // tile, size // tile)

    def dot() -> None:
        matmul[grid](a, b, product, size, size, size, BM=tile, BN=tile, BK=inner, num_warps=8)

    return {
        f"vector add, {n} fp32": add,
        f"softmax, {rows} x {columns} fp32": softmax,
        f"layernorm in a loop, {tokens} x {hidden} bf16": norm,
        f"matmul, {size} cubed fp16": dot,
    }


def tiny(device: str) -> Launch:
    """A launch whose time on the device does not matter."""
    x = torch.zeros(64, device=device)

    def launch() -> None:
        vector_add[(1,)](x, x, x, 64, BLOCK=64)

    return launch
