"""Where descriptions can be written, what is shared and what is computed again; every kind lowers
for GPUs. What the text computes is compared with NumPy in test_ir_valid and test_ir_needed."""

from __future__ import annotations

from typing import Any

import lane_kernels
import numpy as np
import pytest
import torch
from lane_oracle import described, floats, probes
from triton._C.libtriton import ir
from triton.backends.compiler import GPUTarget, Language
from triton.compiler.compiler import make_backend
from ttir_text import CUDA, ops, ttir

from flagprism_torch.instrument.codegen import parse_module
from flagprism_torch.instrument.insertions import Insertions
from flagprism_torch.instrument.mask_text import MaskText, position
from flagprism_torch.ir.masks import ALL, CONSTANTS, NONE, UNKNOWN, Mask, both, leaf, negated
from flagprism_torch.ir.module import Module, Op, Value
from flagprism_torch.ir.needed import NeededLanes
from flagprism_torch.ir.recipes import LONGEST
from flagprism_torch.ir.types import Type
from flagprism_torch.ir.valid import ValidLanes

TYPES = {
    **dict.fromkeys(("x_ptr", "y_ptr", "o_ptr", "a_ptr", "b_ptr", "c_ptr"), "*fp32"),
    **dict.fromkeys(("n", "m", "k", "i", "j"), "i32"),
}
HIP = GPUTarget("hip", "gfx942", 64)

TEXT = """module {
tt.func public @k(%p: tensor<8x!tt.ptr<i32>>, %x: tensor<8xi32>, %n: i32, %a: tensor<8xi1>) {
%c0 = arith.constant 0 : i32
%c1 = arith.constant 1 : i32
%first = arith.addi %x, %x : tensor<8xi32>
%b = arith.cmpi slt, %x, %first : tensor<8xi32>
%flag = arith.cmpi slt, %c0, %n : i32
scf.for %i = %c0 to %n step %c1 : i32 {
%inner = arith.muli %first, %x : tensor<8xi32>
%wide = tt.splat %i : i32 -> tensor<8xi32>
%here = arith.cmpi slt, %x, %wide : tensor<8xi32>
scf.if %flag {
%deep = arith.subi %inner, %x : tensor<8xi32>
%same = arith.cmpi eq, %deep, %inner : tensor<8xi32>
tt.store %p, %deep, %same : tensor<8x!tt.ptr<i32>>
} else {
%other = arith.subi %inner, %first : tensor<8xi32>
tt.store %p, %other : tensor<8x!tt.ptr<i32>>
}
}
%limit = tt.splat %n : i32 -> tensor<8xi32>
%late = arith.cmpi slt, %first, %limit : tensor<8xi32>
%loaded = tt.load %p : tensor<8x!tt.ptr<i32>>
%told = arith.cmpi slt, %loaded, %limit : tensor<8xi32>
%share = arith.divsi %first, %limit : tensor<8xi32>
%risky = arith.cmpi slt, %share, %limit : tensor<8xi32>
%half = arith.divsi %first, %two : tensor<8xi32>
%halved = arith.cmpi slt, %half, %limit : tensor<8xi32>
%moved = tt.reshape %late allow_reorder : tensor<8xi1> -> tensor<8xi1>
tt.store %p, %first, %late : tensor<8x!tt.ptr<i32>>
tt.return
}
}""".replace("%c0 = ", "%two = arith.constant dense<2> : tensor<8xi32>\n%c0 = ", 1)


class Text:
    """The module above, its values by name, and a writer of masks whose probes are only noted."""

    def __init__(self, text: str = TEXT) -> None:
        self.module = Module(text)
        ops = list(self.module.entry.walk())
        self.op = {value.name[1:]: op for op in ops for value in op.results}
        self.value: dict[str, Value] = {v.name[1:]: v for v in self.module.entry.arguments}
        self.value |= {v.name[1:]: v for op in ops for v in op.results}
        self.made = 0
        self.constants: dict[tuple[str, str], str] = {}
        self.writer = MaskText(self.module, self._probe, self._name, self._constant)

    def mask(self, name: str) -> Mask:
        return leaf(self.value[name])

    def write(self, mask: Mask, at: str, line: int | None = None) -> tuple[str, list[str]]:
        """(name, lines) of a mask behind the operation that makes the value `at`."""
        op, out = self.op[at], []
        found = position(mask, op) if line is None else line
        assert found is not None
        name = self.writer.emit(mask, op.block, found, out)
        return name, [line.removesuffix(" loc(unknown)") for line in out]

    def _name(self) -> str:
        self.made += 1
        return f"%new{self.made}"

    def _probe(self, probe: Any, operands: Any, constants: dict[str, Any], out: list[str]) -> str:
        name = self._name()
        shown = ", ".join(operand[0] for operand in operands)
        out.append(f"{name} = {probe.__name__}({shown}) {constants}")
        return name

    def _constant(self, kind: str, literal: str) -> str:
        return self.constants.setdefault((kind, literal), f"%constant{len(self.constants)}")


@pytest.mark.parametrize(
    ("name", "at", "expected"),
    [
        ("b", "inner", "inner"),  # known before
        ("b", "first", "b"),  # the place moves down
        ("late", "first", "late"),
        ("here", "inner", "here"),
        ("same", "deep", "same"),
        ("b", "deep", "deep"),
        ("late", "inner", "inner"),  # computed again
        ("late", "deep", "deep"),
        ("here", "deep", "deep"),
        ("told", "first", "told"),
        ("told", "inner", None),  # takes a load
        ("same", "inner", "inner"),  # pure, though it stands in a branch
        ("here", "first", None),  # depends on the iteration
        ("here", "limit", None),
        ("risky", "inner", None),  # might divide by zero
        ("halved", "inner", "inner"),
        ("moved", "inner", None),  # another reshape may order lanes in another way
        ("a", "first", "first"),
    ],
)
def test_position(name: str, at: str, expected: str | None) -> None:
    text = Text()
    line = position(text.mask(name), text.op[at])
    assert line == (None if expected is None else text.op[expected].end)


def test_position_is_that_of_the_last_leaf() -> None:
    text = Text()
    mask = both(text.mask("b"), negated(text.mask("told")))
    assert position(mask, text.op["first"]) == text.op["told"].end
    assert position(mask, text.op["inner"]) is None
    assert position(ALL, text.op["inner"]) == text.op["inner"].end


def test_a_leaf_that_can_be_used_is_used() -> None:
    text = Text()
    assert text.write(text.mask("b"), "first") == ("%b", [])
    assert text.write(text.mask("here"), "deep") == ("%here", [])
    assert text.write(text.mask("a"), "deep") == ("%a", [])


def test_leaves_that_are_computed_again() -> None:
    """With what can be used there; only once in a block."""
    text = Text()
    name, lines = text.write(text.mask("late"), "inner")
    assert lines == [
        "%new1 = tt.splat %n : i32 -> tensor<8xi32>",
        "%new2 = arith.cmpi slt, %first, %new1 : tensor<8xi32>",
    ]
    assert name == "%new2"
    assert text.write(text.mask("late"), "here") == ("%new2", [])
    assert text.write(text.mask("late"), "deep") == ("%new2", [])  # in a block inside
    _, lines = text.write(text.mask("halved"), "deep")  # from what was made, and the rest
    assert lines == [
        "%new3 = arith.divsi %first, %two : tensor<8xi32>",
        "%new4 = arith.cmpi slt, %new3, %new1 : tensor<8xi32>",
    ]


def test_what_is_made_in_one_branch_is_not_known_in_the_other() -> None:
    text = Text()
    for at in ("deep", "other"):
        _, lines = text.write(text.mask("late"), at)
        assert len(lines) == 2
    assert text.made == 4


def test_operations_are_shared_from_their_line_on() -> None:
    text = Text()
    mask = both(text.mask("a"), negated(text.mask("b")))
    name, lines = text.write(mask, "late")
    assert [line.split(" = ")[1].split()[0] for line in lines] == ["arith.xori", "arith.andi"]
    assert text.constants == {("tensor<8xi1>", "dense<true>"): "%constant0"}
    assert text.write(mask, "told") == (name, [])
    earlier, lines = text.write(mask, "flag")  # stands before the other
    assert lines and earlier != name
    assert text.write(mask, "told") == (earlier, [])
    assert text.write(mask, "inner") == (earlier, [])


def test_inner_scopes_are_forgotten() -> None:
    text = Text()
    mask = both(text.mask("a"), text.mask("b"))
    with text.writer.inner():
        inside, lines = text.write(mask, "late")
        assert lines and text.write(mask, "late") == (inside, [])
    behind, lines = text.write(mask, "late")
    assert lines and behind != inside


def test_constants_have_names() -> None:
    text = Text()
    assert text.write(ALL, "first") == ("%constant0", [])
    assert text.write(NONE, "first") == ("%constant1", [])
    assert list(text.constants) == [("i1", "true"), ("i1", "false")]


def test_what_cannot_be_written() -> None:
    text = Text()
    op = text.op["inner"]
    with pytest.raises(ValueError, match="unknown"):
        text.writer.emit(UNKNOWN, op.block, op.end, [])
    with pytest.raises(ValueError, match="%told cannot be had"):
        text.writer.emit(text.mask("told"), op.block, op.end, [])


@pytest.mark.parametrize(("steps", "possible"), [(LONGEST - 2, True), (LONGEST - 1, False)])
def test_long_recipes_are_not_followed(steps: int, possible: bool) -> None:
    chain = "".join(f"%s{k + 1} = arith.addi %s{k}, %first : tensor<8xi32>\n" for k in range(steps))
    start = "%s0 = arith.addi %first, %x : tensor<8xi32>\n"
    end = f"%long = arith.cmpi slt, %s{steps}, %first : tensor<8xi32>\n"
    text = Text(TEXT.replace("%loaded", f"{start}{chain}{end}%loaded", 1))
    assert (position(text.mask("long"), text.op["inner"]) is not None) == possible


BLOCKS = """module {
tt.func public @k(%p: tensor<8x!tt.ptr<i32>>, %x: tensor<8xi32>, %f: i1) {
%first = arith.addi %x, %x : tensor<8xi32>
cf.cond_br %f, ^bb1, ^bb2
^bb1:
%y = arith.addi %first, %x : tensor<8xi32>
%pure = arith.cmpi slt, %y, %x : tensor<8xi32>
tt.store %p, %first, %pure : tensor<8x!tt.ptr<i32>>
tt.return
^bb2:
%z = tt.load %p : tensor<8x!tt.ptr<i32>>
%told = arith.cmpi slt, %z, %x : tensor<8xi32>
tt.return
}
}"""


def test_blocks_of_a_function() -> None:
    """Only the first block's values are known in the others."""
    text = Text(BLOCKS)
    assert position(text.mask("pure"), text.op["first"]) == text.op["first"].end
    assert position(text.mask("told"), text.op["first"]) is None
    assert position(text.mask("told"), text.op["y"]) is None
    _, lines = text.write(text.mask("pure"), "z")
    assert lines == [
        "%new1 = arith.addi %first, %x : tensor<8xi32>",
        "%new2 = arith.cmpi slt, %new1, %x : tensor<8xi32>",
    ]


def test_masks_of_the_end_inside_of_a_loop() -> None:
    """The accumulator of a matrix product, under the mask of the store behind its loop."""
    text = ttir(lane_kernels.matmul, TYPES, {"SIZE": 16})
    module = Module(text)
    (product,) = ops(module, "tt.dot")
    mask = NeededLanes(module.entry).of(product.results[0])
    assert position(mask, product) == product.end
    arguments = [torch.randn(1024), torch.randn(1024), torch.zeros(1024), 5, 9, 20]
    lanes = described(text, mask, product, (16, 16), arguments)
    i = np.arange(16)
    assert np.array_equal(lanes, (i[:, None] < 5) & (i[None, :] < 9))


def stored(name: str, kind: Type, hidden: str, number: int) -> list[str]:
    """Lines that keep a mask from being dropped as unused."""
    words, pointers = kind.like("i32").text, kind.like("!tt.ptr<i32>").text
    lines = [
        f"%o_word{number} = arith.extui {name} : {kind.text} to {words}",
        f"%o_to{number} = tt.splat {hidden} : !tt.ptr<i32> -> {pointers}",
        f"tt.store %o_to{number}, %o_word{number} : {pointers}",
    ]
    return [f"{line} loc(unknown)" for line in lines]


def lowered(text: str, target: GPUTarget) -> str:
    """The module's LLVM IR for a GPU that need not be there."""
    backend = make_backend(target)
    options = backend.parse_options({})
    context = ir.context()
    ir.load_dialects(context)
    backend.load_dialects(context)
    stages: dict[str, Any] = {}
    backend.add_stages(stages, options, Language.TRITON)
    module = parse_module(text, context)
    metadata = {**options.__dict__, "target": target, "name": "k"}
    for stage in ("ttir", "ttgir", "llir"):
        module = stages[stage](module, metadata)
    return str(module)


KERNELS = [
    ("guards", {"BLOCK": 256}, {"and", "or", "not"}),
    ("softmax", {"ROWS": 4, "COLUMNS": 64}, {"any", "op"}),
    ("scans", {"ROWS": 4, "COLUMNS": 64}, {"reverse_any"}),
    ("pairs", {"BLOCK": 128}, {"join", "half", "op"}),
    ("tiles", {"BLOCK": 128}, {"gather", "join", "half", "any"}),
    ("described", {"ROWS": 16, "COLUMNS": 32}, {"within"}),
    ("matmul", {"SIZE": 32}, {"any"}),
]


def kinds(mask: Mask) -> set[str]:
    inner = (kinds(part) for part in mask.arguments if isinstance(part, Mask))
    return {mask.kind}.union(*inner)


# for AMD GPUs Triton makes pointers of descriptors before the TTIR that is instrumented
@pytest.mark.parametrize(
    ("kernel", "sizes", "expected", "target"),
    [
        pytest.param(*case, target, id=f"{case[0]}-{target.backend}")
        for case in KERNELS
        for target in (CUDA, HIP)
        if target is CUDA or case[0] != "described"
    ],
)
def test_gpus_lower_every_kind(
    kernel: str, sizes: dict[str, int], expected: set[str], target: GPUTarget
) -> None:
    module = Module(ttir(getattr(lane_kernels, kernel), TYPES, sizes, target))
    valid, needed = ValidLanes(module.entry), NeededLanes(module.entry)
    new = Insertions(module, probes(target))
    writer = MaskText(module, new.probe, new.name, new.constant)
    values: list[tuple[Op, Value]] = list(floats(module))
    found: set[str] = set()
    number = 0
    for op, value in values:
        for mask in (valid.of(value), needed.of(value), both(valid.of(value), needed.of(value))):
            if mask in CONSTANTS:
                continue
            found |= kinds(mask)
            line = position(mask, op)
            assert line is not None
            out = new.at(line)
            name, kind = writer.emit(mask, op.block, line, out), mask.type
            if not kind.is_tensor:
                name, kind = new.splat(name, kind, out)
            out += stored(name, kind, new.hidden, number)
            number += 1
    assert expected <= found
    assert "define" in lowered(new.text(), target)
