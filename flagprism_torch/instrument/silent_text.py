"""Text of the silent checks: calls of their probes behind the operations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from flagprism_torch.instrument import silent_probes
from flagprism_torch.instrument.checks import Check
from flagprism_torch.instrument.codegen import RECORDS
from flagprism_torch.instrument.copies import Copies
from flagprism_torch.instrument.insertions import Insertions
from flagprism_torch.instrument.mask_operand import MaskOperands
from flagprism_torch.instrument.nests import Accumulator, Nest, Nests
from flagprism_torch.instrument.offsets import Magnitudes
from flagprism_torch.instrument.record import place_of
from flagprism_torch.instrument.silent import SATURATES
from flagprism_torch.ir.masks import leaves
from flagprism_torch.ir.module import Op
from flagprism_torch.ir.types import Type, parse_type, tensor_type
from flagprism_torch.records.layout import iteration_bits, lane_bits

_I32, _I64 = parse_type("i32"), parse_type("i64")
_PARTIALS = (("low", "i64"), ("tally", "i32"), ("tally", "i64"))  # (role, element)


class SilentText:
    """Writes the silent checks of one kernel.

    Args:
        checks: all checks of the plan.
        base: name of the pointer to the check records.
        threads: partials per tally (a power of two).
    """

    def __init__(
        self,
        insertions: Insertions,
        masks: MaskOperands,
        nests: Nests,
        checks: Sequence[Check],
        base: str,
        program: tuple[str, Type],
        threads: int,
    ) -> None:
        self._new, self._masks, self._nests = insertions, masks, nests
        self._checks, self._threads = checks, threads
        self._base, self._program = (base, RECORDS), program
        self._magnitudes = Magnitudes(insertions, threads)
        self._carried: list[tuple[Nest, int, list[Accumulator]]] = []

    def write(self) -> None:
        """Add all checks; what loops carry is written by `total`."""
        wraps: dict[int, list[int]] = {}
        for number, check in enumerate(self._checks):
            if check.kind == "wrap":
                wraps.setdefault(id(check.op.block), []).append(number)
            elif check.kind in ("undefined", "saturation"):
                self._once(number, check)
            elif check.kind in ("stagnation", "tf32"):
                self._tally(number, check)
        for numbers in wraps.values():
            self._wraps(numbers)

    def total(self, nest: Nest, results: dict[str, str]) -> None:
        """Write what a nest carried, after its outermost loop. results: name of an accumulator ->
        name of what it became."""
        for own, number, carried in self._carried:
            if own == nest:
                partials = [(results[a.name], a.type) for a in carried]
                self._put(number, partials, self._new.at(nest[0].end))

    # -- rare lanes

    def _once(self, number: int, check: Check) -> None:
        line = self._new.settled(check.op.block, check.line)
        out = self._new.at(line)
        parts = [self._new.tile(value, out) for value in check.parts]
        constants: dict[str, Any] = {"T": min(self._threads, parts[0][1].numel)}
        probe: Any = silent_probes.undefined
        if check.kind == "saturation":
            probe, constants["LIMIT"] = silent_probes.saturated, SATURATES[check.value.type.element]
        self._call(probe, number, parts, constants, line, out)

    def _wraps(self, numbers: list[int]) -> None:
        """One branch for all offset arithmetic of a block, taken if something may be large."""
        checks = [self._checks[number] for number in numbers]
        bounds = [self._magnitudes.of(check.value) for check in checks]
        line = self._new.settled(checks[0].op.block, max(check.line for check in checks))
        out = self._new.at(line)
        top = self._magnitudes.name(self._magnitudes.highest(bounds, out))
        large, limit = self._new.name(), self._new.integer("i64", silent_probes.LARGE)
        out.append(f"{large} = arith.cmpi sge, {top}, {limit} : i64 loc(unknown)")
        out.append(f"scf.if {large} {{")
        copies = Copies(self._new, self._program[0], out)
        own = {value: copies.of(value) for check in checks for value in leaves(check.needed)}
        with self._masks.inner(own):
            for number, check in zip(numbers, checks, strict=True):
                parts = [copies.tile(value) for value in check.parts]
                self._call(silent_probes.wrapped, number, parts, {"RULE": check.rule}, line, out)
        out.append("} loc(unknown)")

    def _call(
        self,
        probe: Any,
        number: int,
        parts: list[tuple[str, Type]],
        constants: dict[str, Any],
        line: int,
        out: list[str],
    ) -> None:
        check, kind = self._checks[number], parts[0][1]
        needed, masked = self._masks.operand(check.needed, kind, check.op.block, line, out)
        operands = [*parts, needed, self._iteration(check.op, kind), self._base, self._program]
        operands.append((self._new.integer("i32", number), _I32))
        constants |= {"NEEDED": masked, "LANE_BITS": lane_bits(kind.numel)}
        self._new.probe(probe, operands, constants, out)

    # -- tallies

    def _tally(self, number: int, check: Check) -> None:
        line = self._new.settled(check.op.block, check.line)
        out = self._new.at(line)
        parts = [self._new.tile(value, out) for value in check.parts]
        kind = parts[0][1]
        threads = min(self._threads, kind.numel)
        needed, masked = self._masks.operand(check.needed, kind, check.op.block, line, out)
        probe = silent_probes.tf32 if check.kind == "tf32" else silent_probes.stagnation
        nest = place_of(check.op.block).loops
        carried: list[Accumulator] = []
        if nest:
            carried = [self._nests.accumulator(nest, *role, threads) for role in _PARTIALS]
            partials = [(a.inside(len(nest) - 1), a.type) for a in carried]
        else:
            partials = [self._start(role, element, threads) for role, element in _PARTIALS]
        constants = {"NEEDED": masked, "T": threads, "LANE_BITS": lane_bits(kind.numel)}
        operands = [*parts, needed, self._iteration(check.op, kind), *partials]
        made = self._new.probe(probe, operands, constants, out)
        for position, accumulator in enumerate(carried):
            accumulator.update = f"{made}#{position}"
        if carried:
            self._carried.append((nest, number, carried))
        else:
            named = [(f"{made}#{at}", one[1]) for at, one in enumerate(partials)]
            self._put(number, named, out)

    def _start(self, role: str, element: str, threads: int) -> tuple[str, Type]:
        kind = tensor_type((threads,), element)
        literal = 2**63 - 1 if role == "low" else 0
        return self._new.constant(kind.text, f"dense<{literal}>"), kind

    def _put(self, number: int, partials: list[tuple[str, Type]], out: list[str]) -> None:
        index = (self._new.integer("i32", number), _I32)
        constants = {"TF32": self._checks[number].kind == "tf32"}
        operands = [*partials, self._base, self._program, index]
        self._new.probe(silent_probes.put_tally, operands, constants, out)

    def _iteration(self, op: Op, kind: Type) -> tuple[str, Type]:
        """How often the program executed the operation before."""
        place = place_of(op.block)
        if place.repeated:  # not known
            return self._new.integer("i64", (1 << iteration_bits(kind.numel)) - 1), _I64
        if place.loops:
            return self._nests.counter(place.loops).inside(len(place.loops) - 1), _I64
        return self._new.integer("i64", 0), _I64
