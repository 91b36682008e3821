"""Kernels that are compiled for GPUs in test_cuda_compile.py, one per feature of the language.

`KERNELS`: name -> Case. They are only compiled, so a signature takes the place of arguments.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import triton
import triton.language as tl


@triton.jit
def vadd(x, y, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    keep = at < n
    total = tl.load(x + at, keep) + tl.load(y + at, keep)
    tl.store(out + at, total, keep)


@triton.jit
def softmax(x, out, stride, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    keep = at < columns
    value = tl.load(x + row * stride + at, keep, other=-float("inf"))
    power = tl.exp(value - tl.max(value, 0))
    share = power / tl.sum(power, 0)
    tl.store(out + row * stride + at, share, keep)


@triton.jit
def layernorm(x, weight, bias, out, columns, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * columns
    sums = tl.zeros([BLOCK], tl.float32)
    squares = tl.zeros([BLOCK], tl.float32)
    for start in range(0, columns, BLOCK):
        at = start + tl.arange(0, BLOCK)
        value = tl.load(x + row + at, at < columns, other=0.0).to(tl.float32)
        sums += value
        squares += value * value
    mean = tl.sum(sums, 0) / columns
    scale = 1 / tl.sqrt(tl.sum(squares, 0) / columns - mean * mean + eps)
    for start in range(0, columns, BLOCK):
        at = start + tl.arange(0, BLOCK)
        keep = at < columns
        value = tl.load(x + row + at, keep, other=0.0).to(tl.float32)
        normal = (value - mean) * scale * tl.load(weight + at, keep) + tl.load(bias + at, keep)
        tl.store(out + row + at, normal, keep)


@triton.jit
def matmul(a, b, c, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    columns = tl.program_id(1) * BN + tl.arange(0, BN)
    inner = tl.arange(0, BK)
    left = a + rows[:, None] * K + inner[None, :]
    right = b + inner[:, None] * N + columns[None, :]
    total = tl.zeros((BM, BN), tl.float32)
    for k in range(0, tl.cdiv(K, BK)):
        tile = tl.load(left, inner[None, :] < K - k * BK, other=0.0)
        other = tl.load(right, inner[:, None] < K - k * BK, other=0.0)
        total = tl.dot(tile, other, total)
        left += BK
        right += BK * N
    keep = (rows[:, None] < M) & (columns[None, :] < N)
    tl.store(c + rows[:, None] * N + columns[None, :], total.to(tl.float16), keep)


@triton.jit
def branches(x, out, flag, n, BLOCK: tl.constexpr):
    """A value from an if, a loop without a known end, and a loop inside an if."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + at, at < n, other=0.0).to(tl.float32)
    if flag > 0:
        value = tl.exp(value * 2)
        for _ in range(flag):
            value = value * 0.5
    else:
        value = value + 1
    largest = tl.max(value, 0)
    while largest > 1:
        value = value / largest
        largest = tl.max(value, 0) - 0.5
    tl.store(out + at, value, at < n)


@triton.jit
def atomics(x, total, highest, turn, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + at, at < n)
    tl.atomic_add(total + at % 32, value, at < n)
    before = tl.atomic_max(highest, tl.max(value, 0).to(tl.int32))
    tl.atomic_cas(turn, before, 1)


@triton.jit
def integers(x, y, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + at, at < n, other=0).to(tl.int32)
    hashed = (tl.load(y + at, at < n, other=0) >> 3) ^ value.to(tl.uint64)
    tl.store(out + at, hashed % 7, at < n)


@triton.jit
def quantise(x, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    small = tl.load(x + at, at < n)
    tl.store(out + at, (small.to(tl.float32) * 2).to(tl.float8e4nv), at < n)


@triton.jit
def scan(x, out, columns, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    row = tl.program_id(0) * columns
    value = tl.load(x + row + at, at < columns, other=0.0)
    running = tl.cumsum(value, 0)
    tl.store(out + row + at, running, at < columns)


@dataclass(frozen=True)
class Case:
    """What to compile. `flat`: all tiles have one dimension. `recipe`: fields of a Recipe."""

    fn: Any
    types: str  # of the arguments before the constexprs
    constants: dict[str, int]
    warps: int = 4
    flat: bool = True
    recipe: dict[str, Any] = field(default_factory=dict)

    def arguments(self) -> tuple[dict[str, str], dict[str, int], dict[Any, Any]]:
        """Signature, constants and attributes as Triton's `ASTSource` takes them.

        Pointers and sizes are divisible by 16, as they usually are.
        """
        names = self.fn.arg_names
        types = self.types.split()
        signature = dict(zip(names, types, strict=False))
        signature.update(dict.fromkeys(self.constants, "constexpr"))
        assert list(signature) == names, (signature, names)
        aligned = [i for i, t in enumerate(types) if t[0] == "*" or t == "i32"]
        return signature, self.constants, {(i,): [["tt.divisibility", 16]] for i in aligned}


_VADD = "*fp32 *fp32 *fp32 i32"
KERNELS = {
    "vadd": Case(vadd, _VADD, {"BLOCK": 512}),
    "vadd, shared slots": Case(vadd, _VADD, {"BLOCK": 512}, recipe={"slots": 64}),
    "vadd, histograms": Case(vadd, _VADD, {"BLOCK": 512}, recipe={"histograms": True}),
    "softmax": Case(softmax, "*fp32 *fp32 i32 i32", {"BLOCK": 512}),
    "layernorm": Case(layernorm, "*bf16 *fp32 *fp32 *bf16 i32 fp32", {"BLOCK": 512}),
    "matmul": Case(
        matmul, "*fp16 *fp16 *fp16 i32 i32 i32", {"BM": 64, "BN": 32, "BK": 32}, flat=False
    ),
    "branches": Case(branches, "*fp16 *fp32 i32 i32", {"BLOCK": 256}),
    "branches, shared slots": Case(  # and one element per thread
        branches, "*fp16 *fp32 i32 i32", {"BLOCK": 128}, recipe={"slots": 64}
    ),
    "atomics": Case(atomics, "*fp32 *fp32 *i32 *i32 i32", {"BLOCK": 256}),
    "integers": Case(integers, "*i16 *u64 *u64 i32", {"BLOCK": 256}, warps=2),
    "quantise": Case(quantise, "*fp8e5 *fp8e4nv i32", {"BLOCK": 512}),
    "scan": Case(scan, "*fp64 *fp64 i32", {"BLOCK": 256}, warps=1),
}
