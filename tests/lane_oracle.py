"""What lanes are, found without descriptions: by changing them and looking at what a kernel writes.

Kernels are compiled to TTIR for a GPU and executed by the CPU backend, one program, so nothing here
needs a device. Values are float32.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from triton.backends.compiler import GPUTarget
from triton.compiler.compiler import make_backend
from ttir_text import CUDA, ttir

from flagprism_torch.backends.cpu.kernel import Kernel
from flagprism_torch.instrument.codegen import ProbeText
from flagprism_torch.instrument.insertions import Insertions
from flagprism_torch.instrument.mask_text import MaskText, position
from flagprism_torch.ir.masks import ALL, NONE, UNKNOWN, Mask
from flagprism_torch.ir.module import Module, Op, Value
from flagprism_torch.ir.text import header_arguments
from flagprism_torch.ir.types import Type, tensor_type

# large, small and NaN: whatever a lane is used for notices one of them
CHANGES = ("1.000000e+03", "-1.000000e+03", "0x7FC00000")
Array = np.ndarray[Any, Any]


def module_of(fn: Any, types: Mapping[str, str], constants: Mapping[str, Any]) -> Module:
    return Module(ttir(fn, types, constants))


def probes(target: GPUTarget = CUDA) -> ProbeText:
    backend = make_backend(target)
    return ProbeText(backend, backend.parse_options({}))


def run(text: str, arguments: Sequence[Any]) -> list[Array]:
    """Contents of all tensor arguments after one program ran; the given ones stay as they are."""
    copies = [a.clone() if isinstance(a, torch.Tensor) else a for a in arguments]
    Kernel(text)((1, 1, 1), copies)
    return [a.numpy().view(np.uint8).copy() for a in copies if isinstance(a, torch.Tensor)]


def floats(module: Module) -> Iterator[tuple[Op, Value]]:
    """Every f32 result of the kernel, outside of reductions' own regions."""
    for op in module.entry.walk():
        around = op.block.parent
        if around is None or not around.name.startswith("tt."):
            yield from ((op, v) for v in op.results if v.type.element == "f32")


def changeable(module: Module, value: Value) -> str:
    """The module's text with two more arguments, (lane, whether to change it): the lane of a value
    is then replaced, in every execution, by `CHANGES[change - 1]`."""
    op = value.op
    assert op is not None
    lines = list(module.lines)
    dims, kind = value.type.dims, value.type.text
    old, new = f"{value.name.replace('#', '_')}_was", value.name
    left, equals, right = lines[op.line].partition(" = ")
    if "#" in value.name:  # a pack keeps its name, its uses get another
        old, new = value.name, f"{value.name.replace('#', '_')}_now"
        for number in range(op.end + 1, len(lines)):
            lines[number] = re.sub(rf"{re.escape(value.name)}(?!\d)", new, lines[number])
    else:
        left = re.sub(rf"{re.escape(value.name)}(?![\w$.\-#])", old, left)
        lines[op.line] = left + equals + right
    if value.type.is_tensor:
        i32, flag, row = (tensor_type(dims, e).text for e in ("i32", "i1", "i32"))
        one = tensor_type((value.type.numel,), "i32").text
        text = [
            f"%o_range = tt.make_range {{end = {value.type.numel} : i32, start = 0 : i32}} : {one}",
            f"%o_lanes = tt.reshape %o_range : {one} -> {row}",
            f"%o_lane_ = tt.splat %o_lane : i32 -> {i32}",
            f"%o_at = arith.cmpi eq, %o_lanes, %o_lane_ : {i32}",
        ]
        literal = "dense<{}>"
    else:
        text = ["%o_zero = arith.constant 0 : i32", "%o_at = arith.cmpi eq, %o_lane, %o_zero : i32"]
        flag, literal = "i1", "{}"
    before = old
    for number, change in enumerate(CHANGES, 1):
        after = new if number == len(CHANGES) else f"%o_value{number}"
        text += [
            f"%o_number{number} = arith.constant {number} : i32",
            f"%o_this{number} = arith.cmpi eq, %o_change, %o_number{number} : i32",
        ]
        if value.type.is_tensor:
            text.append(f"%o_these{number} = tt.splat %o_this{number} : i1 -> {flag}")
            this, select = f"%o_these{number}", f"{flag}, {kind}"
        else:
            this, select = f"%o_this{number}", kind
        text += [
            f"%o_both{number} = arith.andi %o_at, {this} : {flag}",
            f"%o_new{number} = arith.constant {literal.format(change)} : {kind}",
            f"{after} = arith.select %o_both{number}, %o_new{number}, {before} : {select}",
        ]
        before = after
    lines[op.end : op.end + 1] = [lines[op.end], *(f"{line} loc(unknown)" for line in text)]
    header = module.entry.line
    start, end = header_arguments(lines[header])
    arguments = f"{lines[header][start:end]}, %o_lane: i32, %o_change: i32"
    lines[header] = lines[header][:start] + arguments + lines[header][end:]
    return "\n".join(lines)


def needed(
    module: Module, value: Value, arguments: Sequence[Any], lanes: Sequence[int]
) -> list[bool]:
    """Which of some lanes (row-major) of a value change something that the kernel writes."""
    text = changeable(module, value)
    base = run(text, [*arguments, 0, 0])

    def matters(lane: int, change: int) -> bool:
        after = run(text, [*arguments, lane, change])
        return any(not np.array_equal(a, b) for a, b in zip(base, after, strict=True))

    changes = range(1, len(CHANGES) + 1)
    return [any(matters(lane, change) for change in changes) for lane in lanes]


def described(
    text: str, mask: Mask, op: Op, dims: tuple[int, ...], arguments: Sequence[Any], *,
    only: bool = False,
) -> Array:  # fmt: skip
    """The lanes of a description where `position` puts it behind `op`, in any execution.

    Args:
        only: run nothing but what the description is computed from, for kernels that the CPU
            backend cannot execute; `arguments` are then those that are no pointers.
    """
    assert mask is not UNKNOWN
    if mask in (ALL, NONE):
        return np.full(dims, mask is ALL)
    line = position(mask, op)
    assert line is not None, mask
    module = Module(text)
    new = Insertions(module, probes())
    out = new.at(line)
    name = MaskText(module, new.probe, new.name, new.constant).emit(mask, op.block, line, out)
    kind = mask.type
    if not kind.is_tensor:
        name, kind = new.splat(name, kind, out)
    out += _accumulated(name, kind, new.hidden)
    made = new.text()
    if only:
        made = _sliced(made, new.hidden)
        module = Module(made)
        numbers = iter(arguments)
        arguments = [
            next(numbers) if re.fullmatch(r"i\d+", argument.type.text) else None
            for argument in module.entry.arguments[:-1]
        ]
    lanes = torch.zeros(kind.numel, dtype=torch.int32)
    copies = [a.clone() if isinstance(a, torch.Tensor) else a for a in arguments]
    Kernel(made)((1, 1, 1), [*copies, lanes])
    return lanes.numpy().astype(bool).reshape(dims)


def _accumulated(name: str, kind: Type, pointer: str) -> list[str]:
    """Lines that add a mask to the words behind a pointer."""
    count = kind.numel
    flat, words = tensor_type((count,), "i1").text, tensor_type((count,), "i32").text
    pointers = tensor_type((count,), "!tt.ptr<i32>").text
    lines = [
        f"%o_flat = tt.reshape {name} : {kind.text} -> {flat}",
        f"%o_bits = arith.extui %o_flat : {flat} to {words}",
        f"%o_range = tt.make_range {{end = {count} : i32, start = 0 : i32}} : {words}",
        f"%o_base = tt.splat {pointer} : !tt.ptr<i32> -> {pointers}",
        f"%o_to = tt.addptr %o_base, %o_range : {pointers}, {words}",
        f"%o_old = tt.load %o_to : {pointers}",
        f"%o_all = arith.ori %o_old, %o_bits : {words}",
        f"tt.store %o_to, %o_all : {pointers}",
    ]
    return [f"{line} loc(unknown)" for line in lines]


def _sliced(text: str, pointer: str) -> str:
    """A module without the operations of its kernel that its stores behind a pointer do not need,
    and without tensor descriptors."""
    module = Module(text)
    wanted: set[Op] = set()
    todo = [
        op
        for op in module.entry.walk()
        if op.name == "tt.return" or (op.name == "tt.store" and _reads(op, pointer))
    ]
    while todo:
        op = todo.pop()
        wanted.add(op)
        todo += [v.op for v in op.operands if v.op is not None and v.op not in wanted]
    dropped = {
        line
        for op in module.entry.walk()
        if op not in wanted
        for line in range(op.line, op.end + 1)
    }
    lines = [line for number, line in enumerate(module.lines) if number not in dropped]
    return re.sub(r"!tt\.tensordesc<(tensor<[^>]*>|[^>]*)>", "!tt.ptr<f32>", "\n".join(lines))


def _reads(op: Op, pointer: str) -> bool:
    """Whether an operation's address comes from a pointer argument."""
    value = op.operands[0]
    while value.op is not None:
        value = value.op.operands[0]
    return value.name == pointer
