"""Sentinels: infinities that a program wrote on purpose, such as the -inf of a masked score.

A sentinel is +-inf from a constant: as such, chosen by a select, or as the `other` of a masked
load. It stays one through operations that hand an infinity on.
"""

from __future__ import annotations

import re

from flagprism_torch.ir.module import Function, Op, Value, walk

PLUS, MINUS = 1, 2

_BITS = re.compile(r"0x([0-9A-Fa-f]+)")
_INFINITIES = {
    "f64": ("7FF0000000000000", "FFF0000000000000"),
    "f32": ("7F800000", "FF800000"),
    "f16": ("7C00", "FC00"),
    "bf16": ("7F80", "FF80"),
    "f8E5M2": ("7C", "FC"),
}
# hand on the infinities of all their operands, or of the first
_ALL = {"arith.addf", "arith.mulf", "arith.maximumf", "arith.minimumf", "arith.maxnumf",
        "arith.minnumf", "tt.clampf", "tt.join", "tt.cat", "tt.reduce", "tt.scan"}  # fmt: skip
_FIRST = {"arith.subf", "arith.divf", "tt.precise_divf", "arith.extf", "arith.truncf",
          "tt.fp_to_fp", "tt.splat", "tt.unsplat", "tt.broadcast", "tt.expand_dims", "tt.reshape",
          "tt.trans", "tt.split", "tt.gather", "ttg.convert_layout", "math.floor",
          "math.ceil"}  # fmt: skip
_PLUS_ONLY = {"math.exp", "math.exp2", "math.log", "math.log2", "math.sqrt", "tt.precise_sqrt"}


class Sentinels:
    """Signs of the sentinels that a value may hold: a sum of PLUS and MINUS, 0 for none."""

    def __init__(self, function: Function) -> None:
        self._signs: dict[int, int] = {}
        ops = list(function.walk())
        while True:
            before = dict(self._signs)
            for op in ops:
                self._visit(op)
            if self._signs == before:
                return

    def of(self, value: Value) -> int:
        return self._signs.get(id(value), 0)

    def _mark(self, value: Value, signs: int) -> None:
        if signs:
            self._signs[id(value)] = self.of(value) | signs

    def _visit(self, op: Op) -> None:
        signs = [self.of(value) for value in op.operands]
        if op.name == "arith.constant":
            self._mark(op.results[0], infinity(op))
        elif op.name == "tt.load":
            if len(op.operands) > 2:
                self._mark(op.results[0], signs[2])
        elif op.name == "arith.select":
            self._mark(op.results[0], signs[1] | signs[2])
        elif is_negation(op):
            self._mark(op.results[0], _flipped(signs[-1]))
        elif op.name == "math.absf":
            self._mark(op.results[0], PLUS if signs[0] else 0)
        elif op.name in _PLUS_ONLY:
            self._mark(op.results[0], signs[0] & PLUS)
        elif op.name in _FIRST:
            for value in op.results:
                self._mark(value, signs[0])
        elif op.name in _ALL:
            for value in op.results:
                self._mark(value, _union(signs))
        elif op.name == "math.fma":
            self._mark(op.results[0], _union(signs))
        elif op.name in ("scf.for", "scf.while"):
            start = 3 if op.name == "scf.for" else 0
            arguments = op.regions[0][0].arguments[1 if start else 0 :]
            for value, sign in zip(arguments, signs[start:], strict=False):
                self._mark(value, sign)
        elif op.name in ("scf.yield", "scf.condition") and op.block.parent is not None:
            self._leave(op, op.block.parent, signs)

    def _leave(self, op: Op, parent: Op, signs: list[int]) -> None:
        passed = signs[1:] if op.name == "scf.condition" else signs
        targets = [parent.results] if parent.name != "scf.while" else []
        if parent.name == "scf.for":
            targets.append(parent.regions[0][0].arguments[1:])
        elif parent.name == "scf.while":
            condition = op.name == "scf.condition"
            targets.append(parent.regions[1 if condition else 0][0].arguments)
            if condition:
                targets.append(parent.results)
        for values in targets:
            for value, sign in zip(values, passed, strict=False):
                self._mark(value, sign)


def infinity(op: Op) -> int:
    """PLUS or MINUS for an arith.constant that is infinite in every lane, else 0."""
    plus, minus = _INFINITIES.get(op.results[0].type.element, ("", ""))
    found = _BITS.search(op.head)
    bits = found.group(1).upper() if found else ""
    return 0 if not bits else PLUS if bits == plus else MINUS if bits == minus else 0


def is_negation(op: Op) -> bool:
    """Whether an operation changes the sign of its last operand and does nothing else; Triton
    writes -x as 0 - x."""
    if op.name == "arith.negf":
        return True
    return op.name == "arith.subf" and _is_zero(op.operands[0])


def is_extremum(op: Op) -> bool:
    """Whether a tt.reduce or tt.scan picks one of its elements."""
    return not any(
        inner.name.startswith(("math.", "tt.call", "tt.extern", "arith.add", "arith.mul",
                               "arith.sub", "arith.div"))
        for region in op.regions for inner in walk(region)
    )  # fmt: skip


def _is_zero(value: Value) -> bool:
    op = value.op
    while op is not None and op.name in ("tt.splat", "tt.broadcast"):
        op = op.operands[0].op
    return (
        op is not None
        and op.name == "arith.constant"
        and re.search(r"(^|<|\s)-?0\.0+(e[+-]?0+)?(>|\s|$)", op.head.strip()) is not None
    )


def _flipped(signs: int) -> int:
    return (signs & PLUS and MINUS) | (signs & MINUS and PLUS)


def _union(signs: list[int]) -> int:
    result = 0
    for sign in signs:
        result |= sign
    return result
