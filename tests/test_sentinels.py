"""Sentinels and the way of values, on TTIR of small kernels."""

from __future__ import annotations

import triton
import triton.language as tl
from ttir_text import named, ttir

from flagprism_torch.ir.flow import Downstream, members
from flagprism_torch.ir.module import Module, Value
from flagprism_torch.ir.sentinels import MINUS, PLUS, Sentinels, is_extremum, is_negation


def value(module: Module, variable: str) -> Value:
    """What a variable's statement finally produces."""
    return [v for v in named(module, variable) if not v.type.element.startswith("i")][-1]


TYPES = {"x_ptr": "*fp32", "o_ptr": "*fp32", "n": "i32"}


@triton.jit
def masked_scores(x_ptr, o_ptr, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    plain = tl.load(x_ptr + i)
    padded = tl.load(x_ptr + i, mask=i < n, other=float("-inf"))
    chosen = tl.where(plain > 0, plain, float("inf"))
    scaled = padded * 2.0
    shifted = plain - padded
    turned = -chosen
    both = tl.maximum(padded, chosen)
    top = tl.max(padded, axis=0)
    small = tl.exp(padded)
    grown = tl.exp(chosen)
    half = padded.to(tl.float16)
    low = tl.minimum(turned, 0.0)  # a sum with -x would become a difference
    tl.store(o_ptr + i, shifted + low + both + top + small + grown + half + scaled)


@triton.jit
def running(x_ptr, o_ptr, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    top = tl.full([BLOCK], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK], tl.float32)
    for k in range(n):
        x = tl.load(x_ptr + k * BLOCK + i)
        newer = tl.maximum(top, x)
        total = total * tl.exp(top - newer) + tl.exp(x - newer)
        top = newer
    logsum = top + tl.log(total)
    tl.store(o_ptr + i, logsum)


def test_signs() -> None:
    module = Module(ttir(masked_scores, TYPES, {"BLOCK": 64}))
    signs = Sentinels(module.entry)
    expected = {
        "plain": 0,
        "padded": MINUS,
        "chosen": PLUS,
        "scaled": MINUS,
        "shifted": 0,
        "turned": MINUS,
        "both": PLUS | MINUS,
        "top": MINUS,
        "small": 0,
        "grown": PLUS,
        "half": MINUS,
    }
    assert {name: signs.of(value(module, name)) for name in expected} == expected


def test_signs_go_around_loops() -> None:
    module = Module(ttir(running, TYPES, {"BLOCK": 64}))
    signs = Sentinels(module.entry)
    loop = next(op for op in module.entry.walk() if op.name == "scf.for")
    carried = [signs.of(argument) for argument in loop.regions[0][0].arguments[1:]]
    assert sorted(carried) == [0, MINUS]
    assert signs.of(value(module, "newer")) == MINUS
    assert signs.of(value(module, "logsum")) == MINUS
    assert signs.of(value(module, "x")) == 0


def test_kinds_of_operations() -> None:
    module = Module(ttir(masked_scores, TYPES, {"BLOCK": 64}))
    ops = list(module.entry.walk())
    assert [op.frames[0].name for op in ops if is_negation(op)] == ["turned"]
    assert [is_extremum(op) for op in ops if op.name == "tt.reduce"] == [True]


def test_downstream() -> None:
    module = Module(ttir(running, TYPES, {"BLOCK": 64}))
    ops = list(module.entry.walk())
    names = ("x", "newer", "logsum")
    marks: list[tuple[Value, int]] = [(value(module, n), bit) for bit, n in enumerate(names)]
    reach = Downstream(ops, marks)
    assert members(reach.of(value(module, "x"))) == (0, 1, 2)
    assert members(reach.of(value(module, "newer"))) == (1, 2)  # itself, the next one, the result
    assert members(reach.of(value(module, "logsum"))) == (2,)
    comparison = Module(ttir(masked_scores, TYPES, {"BLOCK": 64}))
    found = Downstream(comparison.entry.walk(), [(value(comparison, "grown"), 0)])
    assert members(found.of(value(comparison, "plain"))) == (0,)  # as the value, not the condition
    assert members(found.of(value(comparison, "padded"))) == ()
