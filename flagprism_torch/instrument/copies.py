"""Tiles once more, inside of a branch that is hardly ever taken.

A tile that only such a branch uses would still cost registers in front of it, and a layout for its
sake may cost a conversion there. So index tiles are computed again where they are used, from
scalars and ranges. To keep the compiler from finding that it has them already, a zero is added to
ranges that it cannot tell to be one.
"""

from __future__ import annotations

from flagprism_torch.instrument.insertions import Insertions
from flagprism_torch.ir.module import Op, Value
from flagprism_torch.ir.recipes import recipe
from flagprism_torch.ir.text import VALUE, split_location
from flagprism_torch.ir.types import Type


class Copies:
    """Copies of index tiles in the text `out` of one branch.

    Args:
        program: name of the linear program id, i64.
    """

    def __init__(self, insertions: Insertions, program: str, out: list[str]) -> None:
        self._new, self._program, self._out = insertions, program, out
        self._names: dict[Value, str] = {}
        self._zero = ""

    def of(self, value: Value) -> str:
        """Name of a copy; of the value itself, if it is a scalar or no index arithmetic."""
        for op in recipe(value, lambda one: one in self._names or not one.type.is_tensor) or ():
            copied = self._range(op) if op.name == "tt.make_range" else self._again(op)
            self._names[op.results[0]] = copied
        return self._names.get(value, value.name)

    def _again(self, op: Op) -> str:
        if not op.operands:
            return op.results[0].name
        names = {v.name: self._names.get(v, v.name) for v in op.operands}
        text = split_location(self._new.module.lines[op.line])[0].partition(" = ")[2]
        return self._line(VALUE.sub(lambda match: names.get(match.group(), match.group()), text))

    def _range(self, op: Op) -> str:
        kind = op.results[0].type
        zeros = self._line(f"tt.splat {self._nothing()} : i32 -> {kind.text}")
        return self._line(f"arith.addi {op.results[0].name}, {zeros} : {kind.text}")

    def _nothing(self) -> str:
        """An i32 that is zero: no program id has that many bits."""
        if not self._zero:
            bits = self._new.integer("i64", 62)
            wide = self._line(f"arith.shrsi {self._program}, {bits} : i64")
            self._zero = self._line(f"arith.trunci {wide} : i64 to i32")
        return self._zero

    def _line(self, text: str) -> str:
        name = self._new.name()
        self._out.append(f"{name} = {text} loc(unknown)")
        return name

    def tile(self, value: Value) -> tuple[str, Type]:
        """A copy as a tensor: scalars become [1]."""
        if value.type.is_tensor:
            return self.of(value), value.type
        return self._new.tile(value, self._out)
