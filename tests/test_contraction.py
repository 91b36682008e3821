"""Twins contract products and sums where their kernels do (instrument.contraction).

Kernels and twins are compiled for sm_90 on any machine; what they compute is read from their PTX
(ptx_flow.py), and what ptxas fuses beyond it is counted in the machine code.
"""

from __future__ import annotations

import re
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import triton
import triton.language as tl
from ptx_flow import Flow, spelled
from triton import knobs
from triton.compiler import ASTSource
from triton.language.extra import libdevice
from ttir_text import CUDA, ttir

from benchmarks.kernels import layer_norm
from flagprism_torch.backends.profile import profile_of
from flagprism_torch.instrument.apart import Apart
from flagprism_torch.instrument.contraction import Contraction
from flagprism_torch.instrument.twin import Recipe, TwinSource
from flagprism_torch.ir.module import Module, Op


@triton.jit
def multiply_add(a_ptr, b_ptr, c_ptr, o_ptr, N: tl.constexpr):
    i = tl.program_id(0) * N + tl.arange(0, N)
    product = tl.load(a_ptr + i) * tl.load(b_ptr + i)
    c = tl.load(c_ptr + i)
    tl.store(o_ptr + i, product + c)


@triton.jit
def gelu_backward(x_ptr, dy_ptr, o_ptr, N: tl.constexpr):
    i = tl.program_id(0) * N + tl.arange(0, N)
    x = tl.load(x_ptr + i)
    dy = tl.load(dy_ptr + i)
    square = x * x
    cubic = 0.044715 * square * x
    inner = 0.7978845608 * (x + cubic)
    e = tl.exp(2 * inner)
    t = 1 - 2 / (e + 1)
    slope = 0.7978845608 * (1 + 3 * 0.044715 * square)
    left = 0.5 * (1 + t)
    right = 0.5 * x * (1 - t * t) * slope
    tl.store(o_ptr + i, dy * (left + right))


@triton.jit
def sum_of_squares(x_ptr, o_ptr, N: tl.constexpr):
    i = tl.arange(0, N)
    x = tl.load(x_ptr + tl.program_id(0) * N + i)
    shifted = x - 1
    square = shifted * shifted
    tl.store(o_ptr + tl.program_id(0), tl.sum(square))


@triton.jit
def two_sums(a_ptr, b_ptr, c_ptr, o_ptr, p_ptr, N: tl.constexpr):
    i = tl.program_id(0) * N + tl.arange(0, N)
    product = tl.load(a_ptr + i) * tl.load(b_ptr + i)
    c = tl.load(c_ptr + i)
    first = product + c
    second = c - product
    tl.store(o_ptr + i, first)
    tl.store(p_ptr + i, second)


@triton.jit
def sum_and_store(a_ptr, b_ptr, c_ptr, o_ptr, p_ptr, N: tl.constexpr):
    i = tl.program_id(0) * N + tl.arange(0, N)
    product = tl.load(a_ptr + i) * tl.load(b_ptr + i)
    tl.store(p_ptr + i, product)
    c = tl.load(c_ptr + i)
    tl.store(o_ptr + i, product + c)


@triton.jit
def sum_of_products(a_ptr, b_ptr, c_ptr, o_ptr, N: tl.constexpr):
    """Which of two products is fused depends on how often they are used; one alone has a record."""
    i = tl.program_id(0) * N + tl.arange(0, N)
    a = tl.load(a_ptr + i)
    b = tl.load(b_ptr + i)
    c = tl.load(c_ptr + i)
    left = a * b
    right = b * c
    total = left + right
    tl.store(o_ptr + i, total)


@triton.jit
def quotient(a_ptr, b_ptr, c_ptr, o_ptr, N: tl.constexpr):
    """ptxas fuses the last step of a division with the sum."""
    i = tl.program_id(0) * N + tl.arange(0, N)
    share = tl.load(a_ptr + i) / tl.load(b_ptr + i)
    c = tl.load(c_ptr + i)
    tl.store(o_ptr + i, share + c)


@triton.jit
def doubled(a_ptr, b_ptr, o_ptr, N: tl.constexpr):
    i = tl.program_id(0) * N + tl.arange(0, N)
    product = tl.load(a_ptr + i) * tl.load(b_ptr + i)
    twice = product * 2
    tl.store(o_ptr + i, twice)


@triton.jit
def squares_later(x_ptr, y_ptr, o_ptr, N: tl.constexpr):
    """The kernel squares, behind a branch of the twin, what a probe has squared before it."""
    i = tl.program_id(0) * N + tl.arange(0, N)
    x = tl.load(x_ptr + i)
    y = tl.load(y_ptr + i)
    difference = x - y
    larger = tl.maximum(difference, y)
    tl.store(o_ptr + i, larger + x * x)


@triton.jit
def doubled_functions(a_ptr, b_ptr, c_ptr, o_ptr, p_ptr, N: tl.constexpr):
    i = tl.program_id(0) * N + tl.arange(0, N)
    a = tl.load(a_ptr + i)
    b = tl.load(b_ptr + i)
    c = tl.load(c_ptr + i)
    grown = tl.exp(a) * 2.0
    root = 2.0 * tl.sqrt(b)
    tl.store(o_ptr + i, grown + root)
    tl.store(p_ptr + i, tl.fma(a, b, c) * 2.0)
    bent = libdevice.tanh(c) * 2.0
    tl.store(p_ptr + i + N, bent)


@dataclass(frozen=True)
class Kernel:
    """`types` of the arguments before the constexpr, and which of them are `outputs`;
    `values`: how many may have a record."""

    fn: Any
    types: str
    outputs: tuple[int, ...]
    lanes: int = 512
    values: int = 64


FIVE = "*fp32 *fp32 *fp32 *fp32 *fp32"
KERNELS = {
    "layer_norm": Kernel(layer_norm, "*bf16 *fp32 *fp32 *bf16 i32 fp32", (3,), 1024),
    "a * b + c": Kernel(multiply_add, "*fp32 *fp32 *fp32 *fp32", (3,)),
    "a * b + c, fp16": Kernel(multiply_add, "*fp16 *fp16 *fp16 *fp16", (3,)),
    "a * b + c, fp64": Kernel(multiply_add, "*fp64 *fp64 *fp64 *fp64", (3,)),
    "gelu backward": Kernel(gelu_backward, "*fp32 *fp32 *fp32", (2,)),
    "sum of squares": Kernel(sum_of_squares, "*fp32 *fp32", (1,)),
    "two sums": Kernel(two_sums, FIVE, (3, 4)),
    "doubled functions": Kernel(doubled_functions, FIVE, (3, 4)),
    "sum and store": Kernel(sum_and_store, FIVE, (3, 4)),
    "a * b + b * c": Kernel(sum_of_products, "*fp32 *fp32 *fp32 *fp32", (3,), values=5),
    "a / b + c": Kernel(quotient, "*fp32 *fp32 *fp32 *fp32", (3,)),
    "a * b * 2": Kernel(doubled, "*fp32 *fp32 *fp32", (2,)),
    "squares later": Kernel(squares_later, "*fp32 *fp32 *fp32", (2,), 4096),
}


def compiled(case: Kernel, recipe: Recipe | None) -> Any:
    names, types = case.fn.arg_names, case.types.split()
    signature = dict(zip(names, [*types, "constexpr"], strict=True))
    aligned = [at for at, kind in enumerate(types) if kind[0] == "*" or kind == "i32"]
    attrs = {(at,): [["tt.divisibility", 16]] for at in aligned}
    constants = {names[-1]: case.lanes}
    source: Any = ASTSource(case.fn, signature, constants, attrs)
    if recipe is not None:
        source = TwinSource(case.fn, signature, constants, attrs, recipe)
    return triton.compile(source, target=CUDA, options={"num_warps": 4})


def fused_by_ptxas(kernel: Any, folder: Path) -> int:
    """Multiply-adds of float32 in the machine code that are none in the PTX."""
    file = folder / "kernel.cubin"
    file.write_bytes(kernel.asm["cubin"])
    tool = knobs.nvidia.cuobjdump.path
    code = subprocess.run([tool, "-sass", file], check=True, capture_output=True, text=True).stdout
    written = len(
        re.findall(r"^\s*(?:@!?%p\d+ )?fma\.rn\.(?:ftz\.)?f32\s", kernel.asm["ptx"], re.M)
    )
    return len(re.findall(r"\sFFMA\b", code)) - written


@pytest.mark.slow
@pytest.mark.parametrize("slots", [0, 64])
@pytest.mark.parametrize("name", KERNELS)
def test_twins_compute_the_same(name: str, slots: int, tmp_path: Path) -> None:
    case = KERNELS[name]
    plain = compiled(case, None)
    twin = compiled(case, Recipe(1, case.values, slots > 0, slots))
    one, other = Flow(plain.asm["ptx"]), Flow(twin.asm["ptx"])
    for output in case.outputs:
        wanted, found = one.stored(output), other.stored(output)
        assert wanted
        assert wanted == found, [*map(spelled, wanted - found), *map(spelled, found - wanted)]
    missing = one.handed_on() - other.handed_on()
    assert not missing, [spelled(tree) for tree in missing]
    if name == "a / b + c":  # 128 threads
        assert fused_by_ptxas(plain, tmp_path) == case.lanes // 128
        assert fused_by_ptxas(twin, tmp_path) >= case.lanes // 128


# -- where branches may stand


@triton.jit
def spans(x_ptr, y_ptr, o_ptr, n, N: tl.constexpr):
    i = tl.arange(0, N)
    x = tl.load(x_ptr + i)
    early = x * 3
    y = tl.load(y_ptr + i)
    late = y * 5
    first = early + 1
    second = late - first
    for k in range(n):
        square = x * x
        moved = tl.load(x_ptr + i + k)
        second += tl.sum(square) * moved
    lone = second * 7
    tl.store(o_ptr + i, lone)


@pytest.fixture(scope="module")
def spanned() -> Module:
    signature = {"x_ptr": "*fp32", "y_ptr": "*fp32", "o_ptr": "*fp32", "n": "i32"}
    return Module(ttir(spans, signature, {"N": 64}))


@pytest.mark.parametrize(
    ("after", "settled"),
    [
        ("x", "x"),
        ("early", "second"),  # late is computed before early is added
        ("y", "second"),
        ("late", "second"),
        ("first", "second"),
        ("second", "second"),
        ("lone", "lone"),  # nothing adds it
    ],
)
def test_branches_wait_for_sums(spanned: Module, after: str, settled: str) -> None:
    (block,) = spanned.entry.blocks
    ops: dict[str, Op] = {}  # the last operation of each statement
    for op in block.ops:
        if op.name != "scf.for" and op.frames and op.frames[0].name:
            ops[op.frames[0].name] = op
    contraction = Contraction(spanned.entry)
    assert contraction.settled(block, ops[after].end) == ops[settled].end


def test_branches_in_a_loop_stand_before_its_end(spanned: Module) -> None:
    contraction = Contraction(spanned.entry)
    (loop,) = [op for op in spanned.entry.walk() if op.name == "scf.for"]
    (block,) = loop.regions[0]
    for op in block.ops[:-1]:
        assert op.end <= contraction.settled(block, op.end) < block.ops[-1].line
    (square, reduce) = [op for op in block.ops if op.name in ("arith.mulf", "tt.reduce")][:2]
    assert contraction.settled(block, square.end) == reduce.end


# -- copies


@triton.jit
def copied(a_ptr, b_ptr, o_ptr, N: tl.constexpr):
    i = tl.arange(0, N)
    a = tl.load(a_ptr + i)
    b = tl.load(b_ptr + i)
    share = a / b
    tl.store(o_ptr + i, share + b)


def _copies(backend: str, kind: str) -> tuple[list[str], list[str]]:
    """(names given to a, b, the quotient and the sum; the text behind them)."""
    module = Module(ttir(copied, dict.fromkeys(("a_ptr", "b_ptr", "o_ptr"), f"*{kind}"), {"N": 64}))
    text: dict[int, list[str]] = {}
    names = (f"%copy{number}" for number in range(9))
    apart = Apart(
        profile_of(backend).moves,
        Contraction(module.entry).fragile,
        module.lines,
        lambda line: text.setdefault(line, []),
        lambda: next(names),
    )
    wanted = ("tt.load", "arith.divf", "arith.addf")
    values = [op.results[0] for op in module.entry.walk() if op.name in wanted]
    given = [apart.of(value) for value in (*reversed(values), *values)]
    assert given[4:] == given[3::-1]  # made once
    return given[4:], [re.sub(r"%\w+_\d+", "%x", line) for at in sorted(text) for line in text[at]]


def test_copies_are_opaque_to_llvm() -> None:
    names, text = _copies("cuda", "fp32")
    assert names == ["%copy1", "%copy3", "%copy2", "%copy0"]
    move = (
        'tt.elementwise_inline_asm "mov.b32 $0, $1;" {constraints = "=f,f", packed_element = 1 : '
        "i32, pure = true} %x : tensor<64xf32> -> tensor<64xf32> loc(unknown)"
    )
    assert text[0] == f"%copy1 = {move}"
    assert text[2] == "%copy2 = arith.divf %copy1, %x : tensor<64xf32> loc(unknown)"
    assert len(text) == 4 and "arith" not in text[1] + text[3]


@pytest.mark.parametrize(
    ("backend", "kind", "code"),
    [
        ("cuda", "fp64", '"mov.b64 $0, $1;" {constraints = "=d,d"'),
        ("cuda", "bf16", '"mov.b16 $0, $1;" {constraints = "=h,h"'),
        ("hip", "fp32", '"v_mov_b32 $0, $1" {constraints = "=v,v"'),
    ],
)
def test_copies_by_width(backend: str, kind: str, code: str) -> None:
    _, text = _copies(backend, kind)
    assert code in text[0]


@pytest.mark.parametrize(("backend", "kind"), [("cpu", "fp32"), ("hip", "fp64")])
def test_no_copies(backend: str, kind: str) -> None:
    names, text = _copies(backend, kind)
    assert not text and not any(name.startswith("%copy") for name in names)
