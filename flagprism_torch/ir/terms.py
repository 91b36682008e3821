"""Pointers as an argument of the kernel and a sum of offsets, so that equal places are seen.

Note [Terms]
Values get numbers: two pure operations of one kind whose operands have equal numbers have equal
numbers. A pointer is an argument plus the sorted numbers of what is added to it, sums taken apart,
in units of the elements that it points to. Splats, broadcasts and sign extensions do not count;
other shape operations apply to each term. What a loop adds to a pointer that it carries is one
term, the same one for all pointers that it moves by equal terms.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import NamedTuple

from flagprism_torch.ir.module import Module, Op, Value
from flagprism_torch.ir.text import VALUE

_SAME = ("tt.splat", "tt.unsplat", "tt.broadcast", "ttg.convert_layout", "arith.extsi",
         "arith.index_cast")  # fmt: skip
_MOVED = ("tt.expand_dims", "tt.reshape", "tt.trans")
_PURE = re.compile(r"(arith|math)\.|tt\.(make_range|get_program_id|get_num_programs|join|cat)$")
_CONSTANT = re.compile(r"(?:dense<)?(-?\d+)>?$")


class Place(NamedTuple):
    """`terms`: what is added to `argument`, as sorted numbers (Note [Terms])."""

    argument: Value
    terms: tuple[int, ...]


class Terms:
    """The numbers and places of the values of a module's kernel."""

    def __init__(self, module: Module) -> None:
        self._numbers: dict[object, int] = {}  # description of a value -> its number
        self._constant: set[int] = set()
        self._single: set[int] = set()  # numbers of values that are the same in all lanes
        self._sums: dict[int, tuple[int, ...]] = {}  # id(value) -> its terms
        self._places: dict[int, Place] = {}  # id(pointer) -> its place
        self._moves: dict[int, int] = {}  # carried term -> the first one that moves the same way
        entry = module.entry
        for argument in entry.arguments:
            if argument.type.is_pointer:
                self._places[id(argument)] = Place(argument, ())
        self._visit(entry.blocks[0].ops)
        for block in entry.blocks[1:]:
            self._visit(block.ops)

    def place(self, pointer: Value) -> Place | None:
        """Where a pointer points, None if it is not an argument plus offsets."""
        found = self._places.get(id(pointer))
        if found is None:
            return None
        terms = sorted(self._moves.get(term, term) for term in found.terms)
        return Place(found.argument, tuple(terms))

    def varies(self, place: Place) -> bool:
        """Whether anything but constants is added to the argument."""
        return any(term not in self._constant for term in place.terms)

    # -- in program order

    def _visit(self, ops: list[Op]) -> None:
        for op in ops:
            if op.name == "scf.for":
                self._loop(op)
                continue
            for region in op.regions:
                for block in region:
                    self._visit(block.ops)
            if len(op.results) == 1 and not op.regions:
                value = op.results[0]
                if value.type.is_pointer:
                    self._pointer(op, value)
                else:
                    self._sums[id(value)] = self._of_result(op, value)

    def _pointer(self, op: Op, value: Value) -> None:
        base = self._places.get(id(op.operands[0])) if op.operands else None
        if base is None:
            return
        if op.name == "tt.addptr":
            terms = base.terms + self._terms(op.operands[1])
        elif op.name in _SAME:
            terms = base.terms
        elif op.name in _MOVED:
            terms = self._moved(op, base.terms)
        else:
            return
        self._places[id(value)] = Place(base.argument, terms)

    def _loop(self, op: Op) -> None:
        (body,) = op.regions[0]
        carried: list[tuple[Value, Value, Place, int]] = []  # argument, result, start, moved by
        for at, argument in enumerate(body.arguments[1:]):
            start = self._places.get(id(op.operands[3 + at]))
            if start is not None:
                term = self._number(("carried", id(op), at), single=False)
                self._places[id(argument)] = Place(start.argument, (*start.terms, term))
                carried.append((argument, op.results[at], start, term))
        self._visit(body.ops)
        moves: dict[tuple[int, ...], int] = {}
        for argument, result, start, term in carried:
            before = self._places[id(argument)]
            after = self._places.get(id(body.ops[-1].operands[argument.index - 1]))
            if after is None or after.argument is not before.argument:
                continue
            added = Counter(after.terms)
            added.subtract(before.terms)
            if min(added.values(), default=0) < 0:
                continue
            first = moves.setdefault(tuple(sorted(added.elements())), term)
            self._moves[term] = first
            ends = self._number(("end", first), single=False)
            self._places[id(result)] = Place(start.argument, (*start.terms, ends))

    # -- numbers

    def _of_result(self, op: Op, value: Value) -> tuple[int, ...]:
        if op.name == "arith.addi":
            return tuple(sorted(term for one in op.operands for term in self._terms(one)))
        if op.name in _SAME:
            return self._terms(op.operands[0])
        if op.name in _MOVED:
            return self._moved(op, self._terms(op.operands[0]))
        if not _PURE.match(op.name):
            return (self._unique(value),)
        attributes = VALUE.sub("%", op.head).strip()
        if op.name == "arith.constant" and (match := _CONSTANT.match(attributes.split(" : ")[0])):
            if match.group(1) == "0":
                return ()
            number = self._number(("constant", match.group(1)), single=True)
            self._constant.add(number)
            return (number,)
        operands = tuple(self._whole(one) for one in op.operands)
        kind = value.type.element
        single = not value.type.dims or (
            bool(operands) and all(one in self._single for one in operands)
        )
        dims = () if single else value.type.dims
        return (self._number((op.name, attributes, kind, dims, operands), single),)

    def _terms(self, value: Value) -> tuple[int, ...]:
        return self._sums.get(id(value)) or self._leaf(value)

    def _leaf(self, value: Value) -> tuple[int, ...]:
        # a sum of nothing is the constant 0
        return () if id(value) in self._sums else (self._unique(value),)

    def _whole(self, value: Value) -> int:
        terms = self._terms(value)
        if len(terms) == 1:
            return terms[0]
        single = all(term in self._single for term in terms)
        return self._number(("sum", terms), single)

    def _moved(self, op: Op, terms: tuple[int, ...]) -> tuple[int, ...]:
        attributes = VALUE.sub("%", op.head).strip()
        dims = op.results[0].type.dims
        moved = (
            term
            if term in self._single
            else self._number((op.name, attributes, dims, term), single=False)
            for term in terms
        )
        return tuple(sorted(moved))

    def _unique(self, value: Value) -> int:
        return self._number(("value", id(value)), single=not value.type.dims)

    def _number(self, description: object, single: bool) -> int:
        number = self._numbers.setdefault(description, len(self._numbers))
        if single:
            self._single.add(number)
        return number
