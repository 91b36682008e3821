"""Text of the checks that a probe leads to: a branch behind it, taken if it saw something."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from flagprism_torch.instrument import births
from flagprism_torch.instrument.checks import Check
from flagprism_torch.instrument.codegen import RECORDS
from flagprism_torch.instrument.insertions import Insertions
from flagprism_torch.instrument.mask_operand import MaskOperands
from flagprism_torch.ir.module import Function, Value
from flagprism_torch.ir.sentinels import Sentinels
from flagprism_torch.ir.types import Type, parse_type, tensor_type
from flagprism_torch.records.layout import lane_bits

_I32, _I64 = parse_type("i32"), parse_type("i64")


class CheckText:
    """Writes the checks of one kernel.

    Args:
        first_word: where the check records begin behind the hidden pointer.
        records: how many there are, those of accesses included.
    """

    def __init__(
        self,
        function: Function,
        insertions: Insertions,
        masks: MaskOperands,
        checks: Sequence[Check],
        first_word: int,
        records: int,
    ) -> None:
        self._new, self._masks, self._checks = insertions, masks, checks
        self.base = ""  # pointer to the check records
        self._sentinels = Sentinels(function)
        if not records:
            return
        self.base, words = insertions.name(), insertions.integer("i32", first_word)
        insertions.prologue.append(
            f"{self.base} = tt.addptr {insertions.hidden}, {words} : !tt.ptr<i32>, i32 loc(unknown)"
        )

    def sentinel_operand(self, value: Value) -> Value | None:
        """The operand of an elementwise operation whose sentinels (ir.sentinels) may be its result:
        masked scores that a softmax shifts, say, which no program should take a rare branch for."""
        if value.op is None or value.op.name in ("tt.reduce", "tt.scan", "tt.dot"):
            return None
        for operand in value.op.operands:
            if operand.type == value.type and self._sentinels.of(operand):
                return operand
        return None

    def branch(
        self,
        numbers: Sequence[int],
        trigger: str,
        iteration: tuple[str, Type],
        program: tuple[str, Type],
        line: int,
        out: list[str],
    ) -> None:
        """Add the branch that runs checks if the i1 value `trigger` is true."""
        if not numbers:
            return
        out.append(f"scf.if {trigger} {{")
        with self._masks.inner():
            for number in numbers:
                self._check(number, iteration, program, line, out)
        out.append("} loc(unknown)")

    def _check(
        self,
        number: int,
        iteration: tuple[str, Type],
        program: tuple[str, Type],
        line: int,
        out: list[str],
    ) -> None:
        check, new = self._checks[number], self._new
        x = new.tile(check.value, out)
        kind = tensor_type(x[1].dims, "i32")
        code = new.probe(births.births, [x, (self._flags(check, kind, out), kind)], {}, out)
        block = check.op.block
        needed, has_needed = self._masks.operand(check.needed, x[1], block, line, out)
        valid, has_valid = self._masks.operand(check.valid, x[1], block, line, out)
        new.probe(
            births.put_births,
            [
                (code, kind),
                needed,
                valid,
                iteration,
                (self.base, RECORDS),
                program,
                (new.integer("i32", number), _I32),
            ],
            {"NEEDED": has_needed, "VALID": has_valid, "LANE_BITS": lane_bits(kind.numel)},
            out,
        )

    def _flags(self, check: Check, kind: Type, out: list[str]) -> str:
        """Name of what the operands hold, in the shape of the result."""
        new, op = self._new, check.op
        if op.name == "tt.dot":
            a, b = (new.tile(value, out) for value in op.operands[:2])
            flags = self._of([(op.operands[2], False)], kind, out)
            return new.probe(births.dot_flags, [(flags, kind), a, b], {}, out)
        marked = [(v, i in check.zeros) for i, v in enumerate(check.operands)]
        if op.name not in ("tt.reduce", "tt.scan"):
            return self._of(marked, kind, out)
        tile = tensor_type(op.operands[0].type.dims, "i32")
        flags = self._of(marked, tile, out)
        axis = op.int_attr("axis") or 0
        if op.name == "tt.scan":
            constants: dict[str, Any] = {"AXIS": axis, "REVERSE": "reverse = true" in op.head}
            return new.probe(births.scan_flags, [(flags, tile)], constants, out)
        name = new.probe(births.slice_flags, [(flags, tile)], {"AXIS": axis}, out)
        return name if len(tile.dims) > 1 else new.splat(name, _I32, out)[0]

    def _of(self, marked: Sequence[Any], kind: Type, out: list[str]) -> str:
        flags = self._new.constant(kind.text, "dense<0>")
        for value, zero in marked:
            operands = [(flags, kind), self._new.tile(value, out)]
            constants = {"SIGNS": self._sentinels.of(value), "ZERO": zero}
            flags = self._new.probe(births.operand_flags, operands, constants, out)
        return flags
