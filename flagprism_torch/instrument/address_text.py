"""Text of the address probes: offsets before each access, limits of its tensors, and what is done
about lanes outside: counted in a branch, and with a guard masked off.

Note [Extents]
How far a tensor reaches is only known at a launch. So a twin that looks at addresses takes, behind
the hidden pointer, one int64 for each pointer among the kernel's arguments, in their order: the
bytes from the first element to the end of the last one, -1 where nothing is known.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from flagprism_torch.instrument import addresses
from flagprism_torch.instrument.accesses import Access
from flagprism_torch.instrument.codegen import RECORDS
from flagprism_torch.instrument.insertions import Insertions
from flagprism_torch.instrument.mask_operand import MaskOperands
from flagprism_torch.ir.module import Function, Op, Value
from flagprism_torch.ir.text import split_top
from flagprism_torch.ir.types import Type, parse_type
from flagprism_torch.records.layout import lane_bits

_I1, _I32, _I64 = parse_type("i1"), parse_type("i32"), parse_type("i64")
_OPERANDS = re.compile(
    r"(?P<before>.*?\b(?:tt\.(?:load|store)|tt\.atomic_rmw \w+, \w+, \w+,) )"
    r"(?P<operands>%[^\s,]+(?:, %[^\s,]+)*)(?P<after>.*)"
)
GUARDED = ("tt.load", "tt.store", "tt.atomic_rmw")
Operand = tuple[str, Type]


def pointers_of(function: Function) -> list[Value]:
    """The arguments of a kernel that have an extent (Note [Extents])."""
    return [a for a in function.arguments if a.type.is_pointer or _is_descriptor(a.type)]


def _is_descriptor(kind: Type) -> bool:
    return kind.text.startswith("!tt.tensordesc")


class AddressText:
    """Writes what looks at the addresses of a kernel."""

    def __init__(self, insertions: Insertions, masks: MaskOperands) -> None:
        self._new, self._masks = insertions, masks
        self._extents: dict[Value, str] = {}
        self._bases: dict[Value, str] = {}
        self._limits: dict[tuple[Value, Value, int], tuple[Operand, Operand]] = {}
        self._edge = ""

    def begin(self) -> None:
        """Give the kernel its extents (Note [Extents])."""
        for pointer in pointers_of(self._new.module.entry):
            self._extents[pointer] = self._new.argument("extent", "i64")

    def define(self, access: Access) -> None:
        """Define the offsets of an access before it (instrument.accesses)."""
        out, new = self._before(access.op), self._new
        pointer, kind = access.pointer, access.offsets.type
        address = new.name()
        out.append(
            f"{address} = tt.ptr_to_int {pointer.name} : {pointer.type.text} -> {kind.text} "
            "loc(unknown)"
        )
        access.offsets.name = address
        if not access.arguments:
            return
        base = self._base(access.arguments[0])
        if kind.is_tensor:
            tile = new.name()
            out.append(f"{tile} = tt.splat {base} : i64 -> {kind.text} loc(unknown)")
            base = tile
        access.offsets.name = new.name()
        out.append(
            f"{access.offsets.name} = arith.subi {address}, {base} : {kind.text} loc(unknown)"
        )

    def limits(self, access: Access) -> list[tuple[Operand, Operand]]:
        """(lowest, highest) offset inside each tensor that an access may go to."""
        first = access.arguments[0]
        return [self._limit(first, one, access.size) for one in access.arguments]

    def is_beyond(self, access: Access, extremes: Sequence[Operand], out: list[str]) -> Operand:
        """Whether extremes of offsets (lowest, highest) leave all tensors, i1."""
        kind = extremes[0][1].like("i1")
        found = [
            self._new.probe(addresses.beyond, [*extremes, *limit], {}, out)
            for limit in self.limits(access)
        ]
        return self._joined("arith.andi", found, kind, out), kind

    # -- what is done

    def count(
        self,
        access: Access,
        number: int,
        trigger: str,
        iteration: Operand,
        checks: str,
        program: Operand,
        line: int,
        out: list[str],
    ) -> None:
        """Add the branch that counts lanes outside into check `number` if the i1 `trigger` is
        true."""
        new = self._new
        out.append(f"scf.if {trigger} {{")
        with self._masks.inner():
            offsets = new.tile(access.offsets, out)
            kind = offsets[1].like("i1")
            bad = [
                new.probe(addresses.outside, [offsets, *limit], {}, out)
                for limit in self.limits(access)
            ]
            found = (self._joined("arith.andi", bad, kind, out), kind)
            mask, masked = self._masks.operand(access.mask, offsets[1], access.op.block, line, out)
            index = (new.integer("i32", number), _I32)
            constants = {"MASKED": masked, "LANE_BITS": lane_bits(offsets[1].numel)}
            operands = [found, offsets, mask, iteration, (checks, RECORDS), program, index]
            new.probe(addresses.put_outside, operands, constants, out)
        out.append("} loc(unknown)")

    def sample(self, access: Access, number: int, checks: str, program: Operand) -> None:
        """Add the branch of the first and the last program."""
        new, op = self._new, access.op
        line = new.settled(op.block, op.end)
        out = new.at(line)
        out.append(f"scf.if {self._is_edge(program)} {{")
        with self._masks.inner():
            offsets = new.tile(access.offsets, out)
            mask, masked = self._masks.operand(access.mask, offsets[1], op.block, line, out)
            index = (new.integer("i32", number), _I32)
            operands = [offsets, mask, (checks, RECORDS), program, index]
            new.probe(addresses.sample, operands, {"MASKED": masked}, out)
        out.append("} loc(unknown)")

    def guard(self, access: Access) -> None:
        """Mask off the lanes outside: loads give 0 there, stores and atomics do nothing."""
        new, op = self._new, access.op
        out, kind = self._before(op), access.offsets.type.like("i1")
        offsets = (access.offsets.name, access.offsets.type)
        lanes = [
            new.probe(addresses.inside, [offsets, *limit], {}, out) for limit in self.limits(access)
        ]
        mask = self._joined("arith.ori", lanes, kind, out)
        lines = new.module.lines
        lines[op.line] = self._guarded(op, lines[op.line], mask, kind, out)

    def _guarded(self, op: Op, line: str, mask: str, kind: Type, out: list[str]) -> str:
        """The line of an access with one more mask."""
        match = _OPERANDS.match(line)
        assert match, line
        names = split_top(match["operands"], ", ")
        after = match["after"]
        position = 1 if op.name == "tt.load" else 2
        if len(names) > position:
            own = names[position]
            mask = self._joined("arith.andi", [own, mask], kind, out)
            if op.name == "tt.load" and len(names) == 3:
                names[2] = self._zero_if(own, names[2], op.results[0].type, out)
        elif op.name == "tt.atomic_rmw":  # types of all operands are printed
            after = re.sub(r"(: \(.*?)\)( -> )", rf"\1, {kind.text})\2", after, count=1)
        names[position : position + 1] = [mask]
        if op.name == "tt.load" and len(names) == 2:
            names.append(self._zero(op.results[0].type))
        return match["before"] + ", ".join(names) + after

    def _zero_if(self, mask: str, other: str, kind: Type, out: list[str]) -> str:
        """What lanes get that are not loaded: 0 where only the guard says so, else `other`."""
        made, truth = self._new.name(), kind.like("i1")
        types = f"{truth.text}, {kind.text}" if kind.is_tensor else kind.text
        out.append(
            f"{made} = arith.select {mask}, {self._zero(kind)}, {other} : {types} loc(unknown)"
        )
        return made

    def _zero(self, kind: Type) -> str:
        if kind.is_pointer:
            made = self._new.name()
            nothing = self._new.constant(*_zero_of(kind.like("i64")))
            self._new.prologue.append(
                f"{made} = tt.int_to_ptr {nothing} : {kind.like('i64').text} -> {kind.text} "
                "loc(unknown)"
            )
            return made
        return self._new.constant(*_zero_of(kind))

    # -- scalars at the top of the kernel

    def _base(self, argument: Value) -> str:
        if argument not in self._bases:
            self._bases[argument] = self._new.name()
            self._new.prologue.append(
                f"{self._bases[argument]} = tt.ptr_to_int {argument.name} : "
                f"{argument.type.text} -> i64 loc(unknown)"
            )
        return self._bases[argument]

    def _limit(self, first: Value, argument: Value, size: int) -> tuple[Operand, Operand]:
        key = (first, argument, size)
        if key not in self._limits:
            names = (self._base(argument), self._base(first), self._extents[argument])
            made = self._new.probe(
                addresses.limits, [(name, _I64) for name in names], {"SIZE": size},
                self._new.prologue,
            )  # fmt: skip
            self._limits[key] = (f"{made}#0", _I64), (f"{made}#1", _I64)
        return self._limits[key]

    def _is_edge(self, program: Operand) -> str:
        """Whether this is the first or the last program, i1."""
        if not self._edge:
            made = self._new.probe(addresses.is_edge, [program], {}, self._new.prologue)
            self._edge = made
        return self._edge

    # -- text

    def _before(self, op: Op) -> list[str]:
        return self._new.at(op.line - 1)

    def _joined(self, how: str, names: list[str], kind: Type, out: list[str]) -> str:
        name, *others = names
        for other in others:
            made = self._new.name()
            out.append(f"{made} = {how} {name}, {other} : {kind.text} loc(unknown)")
            name = made
        return name


def _zero_of(kind: Type) -> tuple[str, str]:
    """(type, literal) of a zero constant."""
    real = kind.element[0] in "fb"
    literal = "0.000000e+00" if real else "false" if kind.element == "i1" else "0"
    return kind.text, f"dense<{literal}>" if kind.is_tensor else literal
