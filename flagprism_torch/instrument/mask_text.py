"""Descriptions of lanes (ir.masks) as i1 values in a kernel's text.

Note [Places]
A description is needed right behind an operation. Its leaves may be defined elsewhere: further down
in the same block, so that the place moves down; or in a block whose values cannot be used there,
such as behind the loop around it. Such a leaf is computed once more, from values that can be used,
if only pure operations lie between (ir.recipes).
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from flagprism_torch.instrument import mask_probes, values
from flagprism_torch.ir.masks import ALL, CONSTANTS, NONE, Mask, leaves
from flagprism_torch.ir.module import Block, Module, Op, Value
from flagprism_torch.ir.recipes import enclosing, recipe
from flagprism_torch.ir.text import VALUE, split_location
from flagprism_torch.ir.types import Type, tensor_type

Place = tuple[Block, int, list[str]]  # block, line after which the text stands, the text


def position(mask: Mask, op: Op) -> int | None:
    """The first line at or behind an operation, in its block, after which a description can be
    written; None if there is none (Note [Places])."""
    line, block = op.end, op.block
    for value in leaves(mask):
        lines = _lines(value, block)
        if lines is None:
            return None
        line = max([line, *lines])
    return line


def _lines(value: Value, block: Block) -> list[int] | None:
    """The lines after which a leaf, or all that it is computed from, can be used in a block."""
    own = _usable(value, block)
    if own is not None:
        return [own]
    ops = recipe(value, lambda one: _usable(one, block) is not None)
    if ops is None:
        return None
    found = (_usable(operand, block) for op in ops for operand in op.operands)
    return [line for line in found if line is not None]


def _usable(value: Value, block: Block) -> int | None:
    """The line of a block after which a value can be used in it, None if it never can."""
    own = value.op.block if value.op is not None else value.block
    if own is block:
        return value.op.end if value.op is not None else block.line
    around = enclosing(block)
    for inner, outer in itertools.pairwise(around):
        if outer is own:
            assert inner.parent is not None
            first = value.op is None or value.op.index < inner.parent.index
            return block.line if first else None
    # of a function's blocks, only the first one is known to come before the others
    if own is not None and own.parent is None and own.label == "entry" and own is not around[-1]:
        return block.line
    return None


class MaskText:
    """Writes descriptions into a kernel's text, each once where that can be shared.

    Args:
        emit_probe: (probe, [(name, type)], constants, text) -> name of the result of a call that is
            added to the text (instrument.insertions).
        fresh_name: a new SSA name.
        constant: (type, literal) -> name of a constant at the top of the kernel.
    """

    def __init__(
        self,
        module: Module,
        emit_probe: Callable[..., str],
        fresh_name: Callable[[], str],
        constant: Callable[[str, str], str],
    ) -> None:
        self._lines = module.lines
        self._probe, self._name, self._constant = emit_probe, fresh_name, constant
        self._made: dict[tuple[int, Mask | Value], tuple[int, str]] = {}
        self._instead: dict[Value, str] = {}

    @contextlib.contextmanager
    def inner(self, instead: Mapping[Value, str] | None = None) -> Iterator[None]:
        """A scope of text whose names are not known after it.

        Args:
            instead: names of values there; with it, nothing is used that was made outside.
        """
        kept, self._instead = self._made, dict(instead or {})
        self._made = dict(kept) if instead is None else {}
        yield
        self._made, self._instead = kept, {}

    def emit(self, mask: Mask, block: Block, line: int, out: list[str]) -> str:
        """Name of a description's i1 value; what it takes is added to the text `out` that stands
        after `line`, which is not before `position`. ALL and NONE give scalars, UNKNOWN none.

        Raises:
            ValueError: if a leaf cannot be had there.
        """
        return self._emit(mask, (block, line, out))

    def _emit(self, mask: Mask, place: Place) -> str:
        if mask in CONSTANTS:
            return self._filled(mask, mask.type)
        if mask.kind == "value":
            return self._value(mask.arguments[0], place)
        known = self._find(mask, place)
        if known is None:
            known = self._write(mask, place)
            self._made[id(place[0]), mask] = (place[1], known)
        return known

    def _find(self, key: Mask | Value, place: Place) -> str | None:
        """What was made at an earlier or equal line of the block or one around it."""
        for block in enclosing(place[0]):
            found = self._made.get((id(block), key))
            if found is not None and found[0] <= place[1]:
                return found[1]
        return None

    def _line(self, text: str, place: Place, left: str = "") -> str:
        name = self._name()
        place[2].append(f"{name}{left} = {text} loc(unknown)")
        return name

    def _write(self, mask: Mask, place: Place) -> str:
        kind = mask.type.text
        if mask.kind == "within":
            return self._within(mask, place)
        if mask.kind in ("and", "or"):
            operation = "arith.andi" if mask.kind == "and" else "arith.ori"
            name = self._emit(mask.arguments[0], place)
            for part in mask.arguments[1:]:
                other = self._emit(part, place)
                name = self._line(f"{operation} {name}, {other} : {kind}", place)
            return name
        if mask.kind == "join":
            half = tensor_type(mask.type.dims[:-1], "i1")
            left, right = (self._part(part, half, place) for part in mask.arguments)
            return self._line(f"tt.join {left}, {right} : {half.text} -> {kind}", place)
        source: Mask = mask.arguments[0]
        name = self._emit(source, place)
        operand = (name, source.type)
        if mask.kind == "not":
            true = self._filled(ALL, mask.type)
            return self._line(f"arith.xori {name}, {true} : {kind}", place)
        if mask.kind == "any":
            return self._call(values.mask_any, [operand], {"AXIS": mask.arguments[1]}, place)
        if mask.kind == "reverse_any":
            constants = {"AXIS": mask.arguments[1], "REVERSE": mask.arguments[2]}
            return self._call(mask_probes.reverse_any, [operand], constants, place)
        if mask.kind == "gather":
            index = mask.arguments[1]
            operands = [operand, (self._value(index, place), index.type)]
            return self._call(mask_probes.gathered, operands, {"AXIS": mask.arguments[2]}, place)
        if mask.kind == "half":
            pair = self._line(f"tt.split {name} : {source.type.text} -> {kind}", place, ":2")
            return f"{pair}#{mask.arguments[1]}"
        assert mask.kind == "op", mask.kind
        _, operation, attributes = mask.arguments
        text = f"{operation} {name} {attributes} : {source.type.text} -> {kind}"
        return self._line(text, place)

    def _within(self, mask: Mask, place: Place) -> str:
        index, extent = mask.arguments
        operands = [(self._value(value, place), value.type) for value in (index, extent)]
        if index.type.is_tensor:
            return self._call(mask_probes.rows_within, operands, {}, place)
        return self._call(mask_probes.within, operands, {"LANES": mask.type.numel}, place)

    def _call(self, probe: Any, operands: Any, constants: dict[str, Any], place: Place) -> str:
        return self._probe(probe, operands, constants, place[2])

    def _part(self, mask: Mask, kind: Type, place: Place) -> str:
        return self._filled(mask, kind) if mask in CONSTANTS else self._emit(mask, place)

    def _filled(self, mask: Mask, kind: Type) -> str:
        """ALL or NONE in the shape of a type."""
        if mask not in (ALL, NONE):
            raise ValueError("an unknown mask has no value")
        literal = "true" if mask is ALL else "false"
        return self._constant(kind.text, f"dense<{literal}>" if kind.is_tensor else literal)

    # -- leaves

    def _value(self, value: Value, place: Place) -> str:
        if value in self._instead:
            return self._instead[value]
        if _at(value, place):
            return value.name
        known = self._find(value, place)
        if known is not None:
            return known
        ops = recipe(value, lambda one: _at(one, place) or self._find(one, place) is not None)
        if ops is None:
            raise ValueError(f"{value.name} cannot be had after line {place[1] + 1}")
        for op in ops:
            self._again(op, place)
        found = self._find(value, place)
        assert found is not None
        return found

    def _again(self, op: Op, place: Place) -> None:
        """A pure operation once more, with what its operands are called here."""
        names = {v.name: v.name if _at(v, place) else self._find(v, place) for v in op.operands}
        text = split_location(self._lines[op.line])[0].partition(" = ")[2]
        text = VALUE.sub(lambda match: names.get(match.group()) or match.group(), text)
        self._made[id(place[0]), op.results[0]] = (place[1], self._line(text, place))


def _at(value: Value, place: Place) -> bool:
    """Whether a value itself can be used at a place."""
    line = _usable(value, place[0])
    return line is not None and line <= place[1]
