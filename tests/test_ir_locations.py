"""From `loc(...)` to source frames: the grammar, and the statements of real kernels."""

from __future__ import annotations

import ir_kernels
import pytest
from ttir_text import line_of, ops, ttir

from flagprism_torch.ir.locations import Frame, Locations, source_line
from flagprism_torch.ir.module import Module

ALIASES = [
    "#loc = loc(unknown)",
    '#loc1 = loc("k.py":10:4)',
    '#loc2 = loc("lib.py":3:7)',
    '#loc3 = loc("x"(#loc1))',
    '#loc4 = loc("t"(#loc2))',
    "#loc5 = loc(callsite(#loc4 at #loc3))",
    "#loc6 = loc(callsite(#loc2 at #loc5))",
    "#loc7 = loc(fused[#loc3, #loc2])",
    "#loc8 = loc(callsite(#loc7 at #loc1))",
]
X, T = Frame("k.py", 10, "x"), Frame("lib.py", 3, "t")


@pytest.mark.parametrize(
    ("text", "frames"),
    [
        ("unknown", ()),
        ("#loc", ()),
        ("#loc99", ()),
        ("#loc1", (Frame("k.py", 10),)),
        ('"k.py":10:4', (Frame("k.py", 10),)),
        ('"k.py":10:4 to 12:8', (Frame("k.py", 10),)),
        ('"k.py":10:4 to :8', (Frame("k.py", 10),)),
        ('"/a b/k(1).py":10:4', (Frame("/a b/k(1).py", 10),)),
        ("#loc3", (X,)),
        ("#loc5", (X, T)),
        ("#loc6", (X, T, Frame("lib.py", 3))),
        ("#loc7", (X,)),
        ("#loc8", (Frame("k.py", 10), X)),
        ('fused<"note">["a.py":1:1, "b.py":2:2]', (Frame("a.py", 1),)),
        ('"acc"("b"("k.py":7:0))', (Frame("k.py", 7, "acc"),)),
        ('"acc"(callsite("lib.py":3:7 at "k.py":7:0))',
         (Frame("k.py", 7), Frame("lib.py", 3, "acc"))),
        ('callsite("lib.py":3:7 at callsite("mid.py":2:1 at "k.py":7:0))',
         (Frame("k.py", 7), Frame("mid.py", 2), Frame("lib.py", 3))),
        ('"alone"', ()),
        ('"x"(unknown)', ()),
    ],
)  # fmt: skip
def test_grammar(text: str, frames: tuple[Frame, ...]) -> None:
    assert Locations(ALIASES).frames(text) == frames


def test_statements_of_a_kernel() -> None:
    fn = ir_kernels.nested
    module = Module(ttir(fn, {"x_ptr": "*fp32", "o_ptr": "*fp32", "scale": "fp32"}, {"BLOCK": 16}))
    file = ir_kernels.__file__
    (load,) = ops(module, "tt.load")
    assert load.frames == (Frame(file, line_of(fn, "tl.load"), "x"),)
    products = ops(module, "arith.mulf")
    y, inside = line_of(fn, "y = helper"), ir_kernels.helper
    assert [(f.file, f.line) for f in products[0].frames] == [
        (file, y),
        (file, line_of(inside, "half = x")),
    ]
    assert [(f.file, f.line) for f in products[1].frames] == [
        (file, y),
        (file, line_of(inside, "return half")),
    ]
    assert products[0].frames[0].name == "y" and products[0].frames[1].name == "half"
    assert products[2].frames[0] == Frame(file, line_of(fn, "z = y"), "z")
    (store,) = ops(module, "tt.store")
    assert [(f.file, f.line) for f in store.frames] == [(file, line_of(fn, "tl.store"))]


def test_statements_with_regions() -> None:
    fn = ir_kernels.regions
    module = Module(ttir(fn, {"x_ptr": "*fp32", "o_ptr": "*fp32"}, {"BLOCK": 16}))
    lines = [op.frames[0].line for op in module.entry.walk() if op.name in ("tt.reduce", "tt.scan")]
    wanted = ["tl.reduce(", "tl.associative_scan(", "tl.argmax("]
    assert lines == [line_of(fn, code) for code in wanted]


def test_source_line() -> None:
    line = line_of(ir_kernels.nested, "z = y")
    assert source_line(ir_kernels.__file__, line) == "z = y * separate(scale, scale)"
    assert source_line("/nowhere/at/all.py", 3) == ""
