"""How often a program executes a block, as far as the arguments of a launch tell.

Note [Postfix terms]
What is known of a kernel is kept as plain data beside its binary, so an integer expression is a
tuple of words: operands first, then the operation that takes them from the stack. "7" is a
constant, "argument n" a scalar argument, "program 0" and "programs 0" the program id and the number
of programs along an axis; operations go by their names in TTIR, a comparison with its predicate.
Arithmetic is that of int64: an expression that wraps in its own type is a number that no program
has, and what relies on it must count on the device too.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from flagprism_torch.ir.module import Block, Function, Op, Value

Term = tuple[str, ...]
MOST_PROGRAMS = 1 << 22  # beyond, terms that depend on the program id are not evaluated
_LONGEST = 256
_CONSTANT = re.compile(r"(-?\d+|true|false)\b")
_SAME = ("arith.extsi", "arith.extui", "arith.trunci", "arith.index_cast")
_COMPARED = re.compile(r"\s*(\w+),")


def _divided(a: Any, b: Any) -> Any:
    """Towards zero."""
    return np.sign(a) * np.sign(b) * (np.abs(a) // np.abs(b))


_BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "arith.addi": np.add,
    "arith.subi": np.subtract,
    "arith.muli": np.multiply,
    "arith.divsi": _divided,
    "arith.divui": np.floor_divide,
    "arith.floordivsi": np.floor_divide,
    "arith.ceildivsi": lambda a, b: -(-a // b),
    "arith.remsi": np.fmod,
    "arith.remui": np.fmod,
    "arith.minsi": np.minimum,
    "arith.minui": np.minimum,
    "arith.maxsi": np.maximum,
    "arith.maxui": np.maximum,
    "arith.andi": np.bitwise_and,
    "arith.ori": np.bitwise_or,
    "arith.xori": np.bitwise_xor,
    "arith.shli": np.left_shift,
    "arith.shrsi": np.right_shift,
    "arith.shrui": np.right_shift,
    "eq": np.equal,
    "ne": np.not_equal,
    "slt": np.less,
    "sle": np.less_equal,
    "sgt": np.greater,
    "sge": np.greater_equal,
    "ult": np.less,
    "ule": np.less_equal,
    "ugt": np.greater,
    "uge": np.greater_equal,
}
_NEED_POSITIVE = {"arith.divui", "arith.remui", "arith.minui", "arith.maxui", "arith.shrui",
                  "ult", "ule", "ugt", "uge"}  # fmt: skip
_NEED_DIVISOR = {"arith.divsi", "arith.divui", "arith.floordivsi", "arith.ceildivsi", "arith.remsi",
                 "arith.remui"}  # fmt: skip


def executions(block: Block, function: Function) -> Term | None:
    """How often a program executes a block at most: once per iteration of the `scf.for` around it.
    None where only the device can tell: in an `scf.while`, and where bounds depend on memory or on
    an iteration of a loop outside."""
    found: Term = ("1",)
    while block.parent is not None:
        parent = block.parent
        if parent.name == "scf.for":
            trips = _trips(parent, function)
            if trips is None:
                return None
            found = (*found, *trips, "arith.muli")
        elif parent.name != "scf.if":
            return None
        block = parent.block
    return found


def _trips(loop: Op, function: Function) -> Term | None:
    parts = [_term(value, function) for value in loop.operands[:3]]
    if None in parts:
        return None
    low, high, step = (part or () for part in parts)
    term = (*high, *low, "arith.subi", *step, "arith.ceildivsi", "0", "arith.maxsi")
    return term if len(term) <= _LONGEST else None


def _term(value: Value, function: Function) -> Term | None:
    op = value.op
    if value.type.is_tensor:
        return None
    if op is None:
        for argument, name in zip(function.arguments, function.labels, strict=False):
            if argument is value:
                return (f"argument {name}",)
        return None
    head = op.head.strip()
    if op.name == "arith.constant":
        match = _CONSTANT.match(head)
        return (str({"true": 1, "false": 0}.get(match[1], match[1])),) if match else None
    if op.name in ("tt.get_program_id", "tt.get_num_programs"):
        kind = "program" if op.name == "tt.get_program_id" else "programs"
        return (f"{kind} {'xyz'.index(head.split()[0])}",) if head[:1] in "xyz" else None
    word = op.name
    if op.name == "arith.cmpi":
        match = _COMPARED.match(head)
        word = match[1] if match else ""
    if op.name not in (*_SAME, "arith.select") and word not in _BINARY:
        return None
    parts: Term = ()
    for operand in op.operands:
        part = _term(operand, function)
        if part is None or len(parts) + len(part) > _LONGEST:
            return None
        parts += part
    return parts if op.name in _SAME else (*parts, word)


def largest(term: Term, arguments: Mapping[str, Any], grid: tuple[int, int, int]) -> int | None:
    """The largest value of a term over the programs of a launch, None if it cannot be told.

    Args:
        arguments: the arguments of the launch, those that are Python integers are used.
    """
    stack: list[Any] = []
    for word in term:
        kind, _, which = word.partition(" ")
        if kind == "argument":
            value = arguments.get(which)
            if not isinstance(value, int):
                return None
            stack.append(np.int64(value))
        elif kind == "programs":
            stack.append(np.int64(grid[int(which)]))
        elif kind == "program":
            if grid[0] * grid[1] * grid[2] > MOST_PROGRAMS:
                return None
            stack.append(_ids(int(which), grid))
        elif kind == "arith.select":
            condition, yes, no = stack[-3:]
            stack[-3:] = [np.where(condition, yes, no)]
        elif kind in _BINARY:
            a, b = (np.asarray(each, np.int64) for each in stack[-2:])
            below = kind in _NEED_POSITIVE and (np.any(a < 0) or np.any(b < 0))
            if below or (kind in _NEED_DIVISOR and np.any(b == 0)):
                return None
            stack[-2:] = [_BINARY[kind](a, b)]
        else:
            stack.append(np.int64(int(word)))
    (result,) = stack
    return int(np.max(result))


def _ids(axis: int, grid: tuple[int, int, int]) -> Any:
    """Program ids along an axis, in a shape that broadcasts to the grid."""
    shape = [1, 1, 1]
    shape[axis] = grid[axis]
    return np.arange(grid[axis], dtype=np.int64).reshape(shape)
