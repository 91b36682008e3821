"""Kernels for the silent checks; as a script: what they find, as JSON."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import torch
import triton
import triton.language as tl

import flagprism_torch
from flagprism_torch.records.model import CheckEntry, Found


def checks_of(launch: Callable[[], Any]) -> list[tuple[CheckEntry, Found | None]]:
    """Every silent check of the kernels that a function launches, with what it found.

    The kernels must have been instrumented as asked.
    """
    with flagprism_torch.debug(logdir=False, max_values=256) as session:
        launch()
    coverage = session.coverage.to_dict()
    assert coverage["instrumented"] == coverage["launches"] > 0, coverage
    assert not coverage["stepped_down"], coverage
    return [
        (check, block.found.get(number))
        for block in session._collector.ledger.blocks()
        for number, check in enumerate(block.table.checks)
        if check.kind != "birth"
    ]


def found_by(launch: Callable[[], Any], kind: str) -> dict[str, Found]:
    """Variable, or rule -> what the checks of a kind found."""
    return {
        check.variable or check.rule: found
        for check, found in checks_of(launch)
        if check.kind == kind and found is not None
    }


@triton.jit
def row_max(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    cols = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * n + cols, mask=cols < n)
    tl.store(out_ptr + row, tl.max(x, axis=0))


@triton.jit
def product_tail(a_ptr, b_ptr, c_ptr, n, K: tl.constexpr, N: tl.constexpr):
    """c = a @ b over chunks of K, whose tail is loaded without `other`."""
    i = tl.arange(0, N)
    k = tl.arange(0, K)
    acc = tl.zeros((N, N), tl.float32)
    for start in range(0, n, K):
        inside = k + start < n
        a = tl.load(a_ptr + i[:, None] * n + start + k[None, :], mask=inside[None, :])
        b = tl.load(b_ptr + (start + k[:, None]) * N + i[None, :], mask=inside[:, None], other=0.0)
        acc += tl.dot(a, b, input_precision="ieee")
    tl.store(c_ptr + i[:, None] * N + i[None, :], acc)


@triton.jit
def guarded(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):
    """Loads without `other` of which no undefined lane matters."""
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = i < n
    x = tl.load(x_ptr + i, mask=inside)
    y = tl.load(y_ptr + i, mask=inside)
    z = tl.where(inside, tl.exp(y), 0.0)
    tl.store(out_ptr + i, x / tl.sum(z, axis=0), mask=inside)


@triton.jit
def offsets(x_ptr, a_ptr, b_ptr, out_ptr, scale, K: tl.constexpr):
    """Gathers from offsets that are compared before they are used."""
    program = tl.program_id(0)
    i = program * K + tl.arange(0, K)
    a = tl.load(a_ptr + i)
    b = tl.load(b_ptr + i)
    product = a * b
    total = a + b
    difference = a - b
    shifted = a << 5
    scaled = a * scale
    value = tl.load(x_ptr + product, mask=product == 0, other=0.0)
    value += tl.load(x_ptr + total, mask=total == 0, other=0.0)
    value += tl.load(x_ptr + difference, mask=difference == 0, other=0.0)
    value += tl.load(x_ptr + shifted, mask=shifted == 0, other=0.0)
    value += tl.load(x_ptr + scaled, mask=scaled == 0, other=0.0)
    tl.store(out_ptr + i, value)


@triton.jit
def strided(x_ptr, out_ptr, rows, stride, first, M: tl.constexpr, N: tl.constexpr):
    """A tile of rows far apart; every access is masked off but those of row 0."""
    for step in range(0, rows, M):
        row = first + step + tl.arange(0, M)
        far = row[:, None] * stride
        at = far + tl.arange(0, N)[None, :]
        x = tl.load(x_ptr + at, mask=at == 0, other=0.0)
        tl.store(out_ptr + step * N + tl.arange(0, M)[:, None] * N + tl.arange(0, N)[None, :], x)


@triton.jit
def masked_offsets(x_ptr, out_ptr, n, stride, BLOCK: tl.constexpr):
    """Offsets that wrap only in lanes that are masked off."""
    i = tl.arange(0, BLOCK)
    off = i * stride
    x = tl.load(x_ptr + off, mask=i < n, other=0.0)
    tl.store(out_ptr + i, x)


@triton.jit
def harmless(x_ptr, key_ptr, out_ptr, n, BLOCK: tl.constexpr, COLUMNS: tl.constexpr):
    """64-bit offsets, static ranges, remainders, hashes, random numbers."""
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    key = tl.load(key_ptr + i)
    bucket = (key * -1640531535) & 63
    bits = (key * 1103515245 + 12345) ^ key
    pick = tl.randint(7, tl.arange(0, BLOCK)) & 63
    x = tl.load(x_ptr + i * n, mask=i * n < 64, other=0.0)
    x += tl.load(x_ptr + bucket) + tl.load(x_ptr + (bits & 63)) + tl.load(x_ptr + pick)
    rows = tl.arange(0, BLOCK) // COLUMNS * COLUMNS + tl.arange(0, BLOCK) % COLUMNS
    tl.store(out_ptr + rows, x)


@triton.jit
def running_sum(x_ptr, out_ptr, n, W: tl.constexpr, DTYPE: tl.constexpr):
    lane = tl.program_id(0) * W + tl.arange(0, W)
    width = tl.num_programs(0) * W
    acc = tl.zeros((W,), DTYPE)
    for i in range(0, n):
        x = tl.load(x_ptr + i * width + lane)
        acc = (acc.to(tl.float32) + x).to(DTYPE)
    tl.store(out_ptr + lane, acc)


@triton.jit
def chosen_sum(x_ptr, out_ptr, n, W: tl.constexpr):
    """Adds in bf16 itself, in nested loops, to lanes that a mask chooses."""
    lane = tl.arange(0, W)
    acc = tl.zeros((W,), tl.bfloat16)
    for i in range(0, n):
        for j in range(0, 2):
            x = tl.load(x_ptr + (i * 2 + j) * W + lane)
            acc = tl.where(lane % 2 == j, acc - x, acc)
    tl.store(out_ptr + lane, acc)


@triton.jit
def to_fp8(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + i, mask=i < n, other=1e6)
    narrow = x.to(out_ptr.dtype.element_ty)
    tl.store(out_ptr + i, narrow, mask=i < n)


@triton.jit
def product(a_ptr, b_ptr, c_ptr, n, K: tl.constexpr, N: tl.constexpr, HOW: tl.constexpr):
    i = tl.arange(0, N)
    k = tl.arange(0, K)
    acc = tl.zeros((N, N), tl.float32)
    for start in range(0, n, K):
        a = tl.load(a_ptr + i[:, None] * n + start + k[None, :]).to(tl.float32)
        b = tl.load(b_ptr + (start + k[:, None]) * N + i[None, :]).to(tl.float32)
        acc = tl.dot(a, b, acc, input_precision=HOW)
    tl.store(c_ptr + i[:, None] * N + i[None, :], acc)


@triton.jit
def cumulative(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    """A running total, fp32 and short bf16 sums, loads without `other` that a mask guards."""
    i = tl.arange(0, BLOCK)
    total = 0.0
    top = tl.zeros((BLOCK,), tl.bfloat16)
    for start in range(0, n, BLOCK):
        x = tl.load(x_ptr + start + i, mask=start + i < n)
        x = tl.where(start + i < n, x, 0.0)
        tl.store(out_ptr + start + i, tl.cumsum(x, axis=0) + total, mask=start + i < n)
        total += tl.sum(x, axis=0)
        top += x.to(tl.bfloat16)
    tl.store(out_ptr + n + i, top.to(tl.float32))


def everything() -> dict[str, Any]:
    """What a launch of several kernels finds."""
    results: dict[str, Any] = {}
    x = torch.arange(52.0).reshape(4, 13)
    results["undefined"] = found_by(lambda: row_max[(4,)](x, torch.zeros(4), 13, BLOCK=16),
                                    "undefined")  # fmt: skip
    a = torch.tensor([0, 3, 2**30, -(2**31)], dtype=torch.int32)
    b = torch.tensor([5, -7, 2, 1], dtype=torch.int32)
    results["wrap"] = found_by(
        lambda: offsets[(1,)](torch.zeros(8), a, b, torch.zeros(4), 4, K=4), "wrap"
    )
    ones = torch.ones(300, 8)
    out = torch.zeros(8, dtype=torch.bfloat16)
    results["stagnation"] = found_by(
        lambda: running_sum[(2,)](ones, out, 300, W=4, DTYPE=tl.bfloat16), "stagnation"
    )
    big = torch.tensor([1.0, 448.0, 464.0, 465.0, -1e4, float("inf"), float("nan"), 0.0])
    narrow = torch.zeros(8, dtype=torch.float8_e4m3fn)
    results["saturation"] = found_by(lambda: to_fp8[(1,)](big, narrow, 8, BLOCK=16), "saturation")
    third = torch.full((16, 32), 1 / 3)
    results["tf32"] = found_by(
        lambda: product[(1,)](third, third.T.contiguous(), torch.zeros(16, 16), 32, K=16, N=16,
                              HOW="tf32"), "tf32"
    )  # fmt: skip
    return {kind: {name: vars(one) for name, one in found.items()}
            for kind, found in results.items()}  # fmt: skip


if __name__ == "__main__":
    print(json.dumps(everything()))
