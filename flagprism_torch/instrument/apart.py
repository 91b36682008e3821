"""Values for probes, kept apart from the kernel's own arithmetic (instrument.contraction)."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping

from flagprism_torch.instrument.checks import REAL
from flagprism_torch.ir.masks import is_constant
from flagprism_torch.ir.module import Value
from flagprism_torch.ir.text import VALUE, split_location


class Apart:
    """Copies of floats, each made once, right behind the value.

    Args:
        moves: bits of a type -> (instruction, constraints) that move such a value; a type without
            one is not copied.
        fragile: values that are computed again instead.
        lines: the module's lines.
        at: line -> the text behind it.
        fresh_name: a new SSA name.
    """

    def __init__(
        self,
        moves: Mapping[int, tuple[str, str]],
        fragile: Collection[Value],
        lines: list[str],
        at: Callable[[int], list[str]],
        fresh_name: Callable[[], str],
    ) -> None:
        self._moves, self._fragile, self._lines = moves, fragile, lines
        self._at, self._name = at, fresh_name
        self._names: dict[Value, str] = {}

    def of(self, value: Value) -> str:
        """Name of the copy; of the value itself where there is none."""
        if value not in self._names:
            self._names[value] = self._copy(value)
        return self._names[value]

    def _copy(self, value: Value) -> str:
        move = self._moves.get(_bits(value))
        if move is None or is_constant(value):
            return value.name
        if value in self._fragile:
            text = self._again(value)
        else:
            text = _moved(move, value.name, value.type.text)
        name = self._name()
        self._behind(value).insert(0, f"{name} = {text} loc(unknown)")
        return name

    def _again(self, value: Value) -> str:
        """Text of a product, quotient or function of copies. One copy keeps it from being merged
        with the original; fragile operands need theirs."""
        assert value.op is not None
        first, *others = value.op.operands
        copied = [first, *(other for other in others if other in self._fragile)]
        names = {operand.name: self.of(operand) for operand in copied}
        text = split_location(self._lines[value.op.line])[0].partition(" = ")[2]
        return VALUE.sub(lambda match: names.get(match.group(), match.group()), text)

    def _behind(self, value: Value) -> list[str]:
        """The text behind a value's definition: copies stand before all else there."""
        if value.op is not None:
            return self._at(value.op.end)
        assert value.block is not None
        return self._at(value.block.line)


def _moved(move: tuple[str, str], name: str, kind: str) -> str:
    instruction, constraints = move
    attributes = f'{{constraints = "{constraints}", packed_element = 1 : i32, pure = true}}'
    return f'tt.elementwise_inline_asm "{instruction}" {attributes} {name} : {kind} -> {kind}'


def _bits(value: Value) -> int:
    """Width of a float, 0 for other types."""
    element = value.type.element
    digits = re.match(r"b?f(\d+)", element)
    return int(digits.group(1)) if digits and REAL.match(element) else 0
