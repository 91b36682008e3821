"""The TTIR view: every construct that Triton prints is read, with uses, types and lines."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

import ir_kernels
import pytest
from triton._C.libtriton import ir
from triton.compiler.compiler import make_backend
from ttir_text import CUDA, named, ops, ttir

from flagprism_torch.instrument.codegen import parse_module
from flagprism_torch.ir.module import Block, Module, Op
from flagprism_torch.ir.text import split_top
from flagprism_torch.ir.types import parse_type, parse_types

POINTERS = {
    "x_ptr": "*fp32",
    "y_ptr": "*fp32",
    "o_ptr": "*fp32",
    "a_ptr": "*fp16",
    "b_ptr": "*fp16",
}
TYPES = {**POINTERS, "n": "i32", "m": "i32", "k": "i32", "scale": "fp32"}
SIZES = {
    "masked": {"BLOCK": 64},
    "two_masks": {"BLOCK": 64},
    "shapes": {"ROWS": 8, "COLUMNS": 16},
    "product": {"SIZE": 32},
    "loops": {"BLOCK": 16},
    "branches": {"BLOCK": 16},
    "early_return": {"BLOCK": 16},
    "regions": {"BLOCK": 16},
    "descriptors": {"ROWS": 8, "COLUMNS": 16},
    "atomics": {"BLOCK": 16},
    "nested": {"BLOCK": 16},
    "pieces": {"BLOCK": 32},
}


@cache
def module_of(name: str) -> Module:
    types = {**TYPES, "x_ptr": "*i32", "o_ptr": "*i32"} if name == "atomics" else TYPES
    return Module(ttir(getattr(ir_kernels, name), types, SIZES[name]))


def _described(op: Op) -> tuple[str, list[str], list[str]]:
    return op.name, [v.type.text for v in op.operands], [v.type.text for v in op.results]


def _inner_first(blocks: list[Block]) -> Iterator[Op]:
    for block in blocks:
        for op in block.ops:
            for region in op.regions:
                yield from _inner_first(region)
            yield op


@pytest.mark.parametrize("name", SIZES)
def test_same_as_mlir(name: str) -> None:
    """Names, operand types and result types of every operation, against MLIR's own reading."""
    module = module_of(name)
    context = ir.context()
    ir.load_dialects(context)
    backend = make_backend(CUDA)
    backend.load_dialects(context)
    expected: list[tuple[str, list[str], list[str]]] = []

    def note(op: Any) -> None:
        implied = op.get_name() == "scf.yield" and not op.get_num_operands()  # not printed
        if op.get_name() not in ("builtin.module", "tt.func") and not implied:
            operands = [str(op.get_operand(i).get_type()) for i in range(op.get_num_operands())]
            results = [str(op.get_result(i).get_type()) for i in range(op.get_num_results())]
            expected.append((op.get_name(), operands, results))

    parse_module("\n".join(module.lines), context).walk(note)
    found = [_described(op) for f in module.functions.values() for op in _inner_first(f.blocks)]
    assert len(found) == len(expected)
    for ours, theirs in zip(found, expected, strict=True):
        assert ours == theirs


@pytest.mark.parametrize("name", SIZES)
def test_lines_and_uses(name: str) -> None:
    module = module_of(name)
    for op in module.entry.walk():
        assert op.name in module.lines[op.line]
        assert op.end >= op.line and (op.end > op.line) == bool(op.regions)
        for index, operand in enumerate(op.operands):
            assert (op, index) in operand.uses
        for index, value in enumerate(op.results):
            assert (value.op, value.index, value.block) == (op, index, op.block)


def test_arguments_and_types() -> None:
    entry = module_of("nested").entry
    assert [(a.name, a.type.text) for a in entry.arguments] == [
        ("%x_ptr", "!tt.ptr<f32>"),
        ("%o_ptr", "!tt.ptr<f32>"),
        ("%scale", "f32"),
    ]
    assert (entry.name, entry.public) == ("nested", True)
    (load,) = ops(module_of("nested"), "tt.load")
    assert load.results[0].type == parse_type("tensor<16xf32>")
    assert load.operands[0].type.is_pointer


def test_noinline_function_is_a_function_of_its_own() -> None:
    module = module_of("nested")
    (other,) = [f for f in module.functions.values() if not f.public]
    assert "separate" in other.name
    assert [op.name for op in other.walk()][-1] == "tt.return"
    (call,) = ops(module, "tt.call")
    assert [v.name for v in call.operands] == ["%scale", "%scale"]
    assert call.results[0].type.text == "f32"


def test_text_in_quotes_is_no_code() -> None:
    module = module_of("nested")
    (printed,) = ops(module, "tt.print")
    (stored,) = ops(module, "tt.store")
    assert printed.operands == [stored.operands[1]]


def test_loops() -> None:
    module = module_of("loops")
    first, outer, inner = ops(module, "scf.for")
    assert [v.type.text for v in first.results] == ["tensor<16xf32>"] * 2
    body = first.regions[0][0]
    assert [a.type.text for a in body.arguments] == ["i32", "tensor<16xf32>", "tensor<16xf32>"]
    assert body.ops[-1].name == "scf.yield" and len(body.ops[-1].operands) == 2
    assert first.operands[1] is module.entry.arguments[2]  # the upper bound is n
    assert (
        outer.operands[3] is first.results[0]
    )  # the second loop starts from the first one's total
    assert inner.block is outer.regions[0][0] and inner.block.parent is outer
    assert inner.operands[3] is outer.regions[0][0].arguments[1]
    (stored,) = ops(module, "tt.store")
    added = stored.operands[1].op
    assert added is not None and added.operands == [outer.results[0], first.results[1]]


def test_branches_and_while() -> None:
    module = module_of("branches")
    both, only = ops(module, "scf.if")
    assert [v.type.text for v in both.results] == ["tensor<16xf32>"] * 2
    assert len(both.regions) == 2 and len(only.regions) == 1 and not only.results
    taken = [region[0].ops[-1].operands for region in both.regions]
    assert [[v.op.name for v in side if v.op] for side in taken] == [
        ["arith.addf", "arith.mulf"],
        ["arith.subf", "arith.mulf"],
    ]
    (loop,) = ops(module, "scf.while")
    before, after = (region[0] for region in loop.regions)
    assert [b.ops[-1].name for b in (before, after)] == ["scf.condition", "scf.yield"]
    assert len(before.arguments) == len(after.arguments) == len(loop.results) == 2
    assert before.ops[-1].operands[1:] == before.arguments
    stored = [op.operands[1] for op in ops(module, "tt.store")]
    assert both.results[0] in stored and both.results[1] in stored and loop.results[0] in stored


def test_early_return() -> None:
    module = module_of("early_return")
    blocks = module.entry.blocks
    assert [block.label for block in blocks] == ["entry", "bb1", "bb2"]
    (jump,) = ops(module, "cf.cond_br")
    assert jump.successors == [("bb1", []), ("bb2", [])]
    assert jump.operands[0].op is not None and jump.operands[0].op.name == "arith.cmpi"
    assert [op.name for op in blocks[1].ops] == ["tt.return"]
    (stored,) = ops(module, "tt.store")
    assert stored.block is blocks[2]


def test_reduce_and_scan_regions() -> None:
    module = module_of("regions")
    pair, at = ops(module, "tt.reduce")
    (scan,) = ops(module, "tt.scan")
    assert [v.type.text for v in pair.results] == ["f32", "f32"]
    assert [v.type.text for v in at.results] == ["f32", "i32"]
    assert [v.type.text for v in scan.results] == ["tensor<16xf32>"] * 2
    assert pair.operands == scan.operands and len(pair.operands) == 2
    assert pair.int_attr("axis") == scan.int_attr("axis") == 0
    body = pair.regions[0][0]
    assert [a.type.text for a in body.arguments] == ["f32"] * 4
    assert body.ops[-1].name == "tt.reduce.return"
    assert pair.end > pair.line and module.lines[pair.end].lstrip().startswith("})")


def test_descriptors() -> None:
    module = module_of("descriptors")
    (load,) = ops(module, "tt.descriptor_load")
    (store,) = ops(module, "tt.descriptor_store")
    assert load.results[0].type.text == "tensor<8x16xf32>"
    assert store.operands[1].op is not None and store.operands[1].op.name == "arith.mulf"
    made = ops(module, "tt.make_tensor_descriptor")
    assert load.operands[0].op is made[0] and store.operands[0].op is made[1]


def test_atomics() -> None:
    module = module_of("atomics")
    (add,) = ops(module, "tt.atomic_rmw")
    (swap,) = ops(module, "tt.atomic_cas")
    assert [len(add.operands), len(swap.operands)] == [3, 3]
    assert add.results[0].type.text == swap.results[0].type.text == "tensor<16xi32>"
    assert swap.operands[2] is add.results[0]


def test_variables_are_named() -> None:
    module = module_of("masked")
    assert [v.op.name for v in named(module, "square") if v.op] == ["arith.mulf"]
    assert [v.type.text for v in named(module, "narrow")] == ["tensor<64xf16>"]


@pytest.mark.parametrize(
    ("text", "element", "shape"),
    [
        ("f32", "f32", None),
        ("!tt.ptr<f32, 3>", "!tt.ptr<f32, 3>", None),
        ("tensor<bf16>", "bf16", ()),
        ("tensor<8x16xf8E4M3FN>", "f8E4M3FN", (8, 16)),
        ("tensor<4x!tt.ptr<i1>>", "!tt.ptr<i1>", (4,)),
        ("tensor<4x2xf16, #ttg.blocked<{a = [1, 2]}>>", "f16", (4, 2)),
    ],
)
def test_types(text: str, element: str, shape: tuple[int, ...] | None) -> None:
    parsed = parse_type(text)
    assert (parsed.element, parsed.shape) == (element, shape)
    assert parsed.is_pointer == element.startswith("!tt.ptr")


def test_splitting() -> None:
    assert split_top('a, "b, (c", d<e, f>, (g, h) -> i', ", ") == [
        "a",
        '"b, (c"',
        "d<e, f>",
        "(g, h) -> i",
    ]
    texts = [t.text for t in parse_types("(tensor<4xf32>, !tt.tensordesc<tensor<8x16xf32>>)")]
    assert texts == ["tensor<4xf32>", "!tt.tensordesc<tensor<8x16xf32>>"]


def test_quoted_names() -> None:
    """MLIR quotes symbols with unusual characters, such as lambdas; quotes may hold anything."""
    module = Module(
        'module {\n  tt.func public @"k<lambda>(x"(%a: f32 {note = "a) {"}) attributes {} {\n'
        '    %b = tt.call @"f<(, {>"(%a) : (f32) -> f32 loc("x)(\\"y")\n'
        "    tt.return loc(unknown)\n"
        "  }\n}\n"
    )
    assert module.entry.name == "k<lambda>(x"
    assert [op.name for op in module.entry.walk()] == ["tt.call", "tt.return"]
    assert [a.name for a in module.entry.arguments] == ["%a"]


def test_branches_pass_values() -> None:
    module = Module(
        "module {\n  tt.func private @f(%c: i1, %a: i32) -> i32 {\n"
        '    cf.assert %c, "not ^here(%a)"\n'
        "    cf.cond_br %c, ^bb1(%a : i32), ^bb2\n"
        "  ^bb1(%b: i32):  // pred: ^bb0\n    tt.return %b : i32\n"
        "  ^bb2:  // pred: ^bb0\n    %z = arith.constant 0 : i32\n    cf.br ^bb1(%z : i32)\n"
        "  }\n}\n"
    )
    function = module.functions["f"]
    asserted, jump = function.blocks[0].ops
    zero, back = function.blocks[2].ops
    assert asserted.successors == [] and asserted.string() == "not ^here(%a)"
    assert jump.operands == [function.arguments[0]] and not function.public
    assert jump.successors == [("bb1", [function.arguments[1]]), ("bb2", [])]
    assert back.successors == [("bb1", [zero.results[0]])] and back.operands == []


def test_argument_labels() -> None:
    """Python names come from locations; members of a tuple share one, positions are no names."""
    module = Module(
        'module {\n  tt.func public @k(%arg0: i32 loc("n"(#loc1)), %p: i32 loc(#loc2), '
        '%q: i32 loc(#loc2), %r: i32 loc("file.py":3:4)) attributes {} {\n    tt.return\n  }\n}\n'
        '#loc1 = loc("file.py":1:2)\n#loc2 = loc("pair"(#loc1))\n'
    )
    assert module.entry.labels == ["n", "pair", "q", "r"]


def test_undefined_values_are_refused() -> None:
    text = "module {\n  tt.func public @k() attributes {} {\n    %b = arith.negf %a : f32\n  }\n}\n"
    with pytest.raises(ValueError, match="undefined value %a"):
        Module(text)
