"""Offset arithmetic: the int32 operations that decide where a kernel reads and writes, and how
large their results can become.

Note [Offset arithmetic]
Additions, subtractions, products and shifts whose result flows, through integer arithmetic and
shape operations, into the offset of `tt.addptr`, a descriptor's index, or the mask of an access.
Not followed are operations that are at home where integers wrap on purpose, such as hashes and
random numbers: exclusive or, logical shifts, unsigned arithmetic, bit masks, remainders.

Note [Magnitudes]
A bound of |v| that holds in all lanes, made from the bounds of the operands. So a tile costs
nothing where its sources, before they are broadcast, are scalars, ranges and constants. Bounds
stop at 2**31, which no int32 exceeds.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

from flagprism_torch.instrument.facts import STORES
from flagprism_torch.instrument.insertions import Insertions
from flagprism_torch.instrument.silent_probes import magnitude, scalar_magnitude
from flagprism_torch.ir.module import Op, Value
from flagprism_torch.ir.types import parse_type

TOP = 1 << 31
RULES = {"arith.addi": "add", "arith.subi": "sub", "arith.muli": "mul", "arith.shli": "shl"}
_SHAPES = ("tt.splat", "tt.unsplat", "tt.broadcast", "tt.expand_dims", "tt.reshape", "tt.trans",
           "ttg.convert_layout", "arith.extsi", "arith.index_cast")  # fmt: skip
_FOLLOWED = (*RULES, *_SHAPES, "arith.divsi", "arith.ceildivsi", "arith.floordivsi",
             "arith.minsi", "arith.maxsi", "arith.shrsi", "arith.select", "arith.trunci",
             "tt.join", "tt.cat", "tt.split", "tt.gather")  # fmt: skip
_LOGIC = ("arith.andi", "arith.ori", "arith.xori")
_MASKS = {"tt.load": 1, "tt.store": 2, "tt.atomic_rmw": 2}
_CONSTANT = re.compile(r"^(?:dense<)?(-?\d+)>?$")
_I64 = parse_type("i64")


def offset_arithmetic(ops: Iterable[Op]) -> list[Op]:
    """The operations of Note [Offset arithmetic] that may wrap, in program order."""
    listed = list(ops)
    seen: set[int] = set()
    found: set[int] = set()
    waiting = [value for op in listed for value in _roots(op)]
    while waiting:
        value = waiting.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        op = value.op
        if op is None:
            waiting += _into_argument(value)
        elif op.name in ("scf.for", "scf.if"):
            waiting += _into_result(op, value.index)
        elif _is_followed(op):
            waiting += op.operands
        if op is not None and op.name in RULES and value.type.element == "i32":
            found.add(id(op))
    largest = _largest(listed)
    return [op for op in listed if id(op) in found and not _fits(op, largest)]


def _is_followed(op: Op) -> bool:
    if op.name == "arith.cmpi":
        return not re.match(r"\s*u", op.head)  # of signed numbers, or of any
    return op.name in _FOLLOWED or (op.name in _LOGIC and op.results[0].type.element == "i1")


def _roots(op: Op) -> list[Value]:
    if op.name == "tt.addptr":
        return op.operands[1:]
    if "descriptor_" in op.name:
        data = STORES.get(op.name)
        return [v for at, v in enumerate(op.operands) if at != data and v.type.element == "i32"]
    position = _MASKS.get(op.name)
    return op.operands[position : position + 1] if position is not None else []


def _into_argument(value: Value) -> list[Value]:
    """What a loop-carried value can be."""
    block = value.block
    if block is None or block.parent is None or block.parent.name != "scf.for" or not value.index:
        return []
    loop, at = block.parent, value.index - 1
    return [loop.operands[3 + at], *_yielded(loop, at)]


def _into_result(op: Op, at: int) -> list[Value]:
    return _yielded(op, at) + (op.operands[3 + at : 4 + at] if op.name == "scf.for" else [])


def _yielded(op: Op, at: int) -> list[Value]:
    lasts = [region[-1].ops[-1] for region in op.regions if region[-1].ops]
    return [last.operands[at] for last in lasts if last.name == "scf.yield"]


def constant_of(value: Value) -> int | None:
    """The integer that a value is in all lanes, if it is a constant."""
    op = value.op
    while op is not None and op.name in _SHAPES:
        op = op.operands[0].op
    found = _CONSTANT.match(op.head.strip()) if op and op.name == "arith.constant" else None
    return int(found.group(1)) if found else None


def _largest(ops: list[Op]) -> dict[int, int]:
    """id(value) -> a bound of its magnitude that is known before the launch."""
    known: dict[int, int] = {}

    def of(value: Value) -> int:
        return known.get(id(value), _of_type(value))

    for op in ops:
        if op.name == "scf.for":
            counter = op.regions[0][0].arguments[0]
            known[id(counter)] = max(of(op.operands[0]), of(op.operands[1]))
        elif len(op.results) == 1:
            value = op.results[0]
            known[id(value)] = min(_bound(op, [of(v) for v in op.operands]), _of_type(value))
    return known


def _fits(op: Op, largest: dict[int, int]) -> bool:
    operands = [largest.get(id(v), _of_type(v)) for v in op.operands]
    return _bound(op, operands) < TOP


def _of_type(value: Value) -> int:
    bits = re.fullmatch(r"i(\d+)", value.type.element)
    width = int(bits.group(1)) if bits else 64
    return 1 << (width if width <= 16 else width - 1)  # small ones may be unsigned


def _bound(op: Op, operands: list[int]) -> int:
    """A bound of an operation's true result, given bounds of its operands."""
    own = _exact(op)
    if own is not None:
        return own
    if op.name in ("arith.addi", "arith.subi"):
        return operands[0] + operands[1]
    if op.name == "arith.muli":
        return operands[0] * operands[1]
    if op.name in ("arith.minsi", "arith.maxsi"):
        return max(operands)
    if op.name == "arith.select":
        return max(operands[1:])
    if op.name == "arith.extui":
        return _of_type(op.operands[0]) - 1
    if op.name in _SHAPES:
        return operands[0]
    amount = constant_of(op.operands[1]) if len(operands) > 1 else None
    if op.name == "arith.divsi":
        return operands[0] // abs(amount or 1)
    if op.name == "arith.remsi":
        return min(operands[0], abs(amount) - 1 if amount else operands[1])
    if op.name == "arith.shrsi":
        return operands[0]
    if op.name == "arith.shli" and amount is not None and 0 <= amount < 32:
        return operands[0] << amount
    return 1 << 63


def _exact(op: Op) -> int | None:
    """The bound of constants and ranges."""
    if op.name == "arith.constant":
        value = constant_of(op.results[0])
        return None if value is None else abs(value)
    if op.name == "tt.make_range":
        return max((op.int_attr("end") or TOP) - 1, 0)
    return None


class Magnitudes:
    """Writes the bounds of Note [Magnitudes] that only a launch knows, each behind its value.

    A bound is a number or the name of an i64.
    """

    def __init__(self, insertions: Insertions, threads: int) -> None:
        self._new, self._threads = insertions, threads
        self._known: dict[int, int | str] = {}

    def of(self, value: Value) -> int | str:
        if _of_type(value) <= 1 << 16:
            return _of_type(value)
        if id(value) not in self._known:
            self._known[id(value)] = self._make(value)
        return self._known[id(value)]

    def highest(self, bounds: Iterable[int | str], out: list[str]) -> int | str:
        found: int | str = 0
        for bound in dict.fromkeys(bounds):
            found = self._two("arith.maxsi", found, bound, out)
        return found

    def name(self, bound: int | str) -> str:
        return bound if isinstance(bound, str) else self._new.integer("i64", bound)

    def _make(self, value: Value) -> int | str:
        op = value.op
        if op is None:
            assert value.block is not None
            return self._measured(value, self._new.at(value.block.line))
        out = self._new.at(op.end)
        own = _exact(op)
        if own is not None:
            return min(own, TOP)
        if op.name in RULES:
            return self._arithmetic(op, out)
        if op.name in _SHAPES:
            return self.of(op.operands[0])
        if op.name in ("arith.minsi", "arith.maxsi", "arith.select"):
            return self.highest((self.of(v) for v in op.operands[-2:]), out)
        amount = constant_of(op.operands[1]) if len(op.operands) > 1 else None
        if op.name == "arith.divsi" and amount:
            return self._two("arith.divsi", self.of(op.operands[0]), abs(amount), out)
        if op.name == "arith.remsi" and (amount or value.type.is_tensor):
            right = abs(amount) - 1 if amount else self.of(op.operands[1])
            return self._two("arith.minsi", self.of(op.operands[0]), right, out)
        return self._measured(value, out)

    def _arithmetic(self, op: Op, out: list[str]) -> int | str:
        left, right = (self.of(v) for v in op.operands)
        name = "arith.muli" if op.name == "arith.muli" else "arith.addi"
        if op.name == "arith.shli":
            amount = constant_of(op.operands[1])
            if amount is None or not 0 <= amount < 32:
                return TOP
            name, right = "arith.muli", 1 << amount
        return self._two("arith.minsi", self._two(name, left, right, out), TOP, out)

    def _measured(self, value: Value, out: list[str]) -> str:
        operand = (value.name, value.type)
        if not value.type.is_tensor:
            return self._new.probe(scalar_magnitude, [operand], {}, out)
        constants = {"T": min(self._threads, value.type.numel)}
        return self._new.probe(magnitude, [operand], constants, out)

    def _two(self, name: str, left: int | str, right: int | str, out: list[str]) -> int | str:
        if isinstance(left, int) and isinstance(right, int):
            return _FOLD[name](left, right)
        if name in ("arith.maxsi", "arith.addi") and 0 in (left, right):
            return right if left == 0 else left
        made = self._new.name()
        out.append(f"{made} = {name} {self.name(left)}, {self.name(right)} : i64 loc(unknown)")
        return made


_FOLD: dict[str, Callable[[int, int], int]] = {
    "arith.addi": lambda a, b: a + b,
    "arith.muli": lambda a, b: a * b,
    "arith.divsi": lambda a, b: a // b,
    "arith.minsi": min,
    "arith.maxsi": max,
}
