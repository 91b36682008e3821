"""Which lanes of a value a probe looks at, and where in the text it can know them."""

from __future__ import annotations

from dataclasses import dataclass

from flagprism_torch.instrument.mask_text import position
from flagprism_torch.ir.masks import ALL, NONE, UNKNOWN, Mask, both
from flagprism_torch.ir.module import Module, Op, Value
from flagprism_torch.ir.needed import NeededLanes
from flagprism_torch.ir.valid import ValidLanes


@dataclass(frozen=True)
class Live:
    """Lanes of one value: `mask` those of the statistics, `needed` those of the verdicts (ALL where
    the need is not known), `line` where both are known, `label` what the table says of `mask`."""

    mask: Mask
    needed: Mask
    line: int
    label: str


class Lanes:
    """Valid and needed lanes of a kernel's values, as far as they can be had next to them."""

    def __init__(self, module: Module) -> None:
        self._valid, self._needed = ValidLanes(module.entry), NeededLanes(module.entry)

    def is_wider(self, value: Value) -> bool:
        """Whether the needed lanes of a value are a superset for want of a short description."""
        return self._needed.is_wider(value)

    def valid(self, value: Value) -> Mask:
        return self._fit(value, self._valid.of(value))

    def live(self, op: Op, value: Value) -> Live:
        """Lanes of a result of `op` for a record."""
        valid, needed = self.valid(value), self._fit(value, self._needed.of(value))
        if needed is NONE and value.uses:
            return Live(NONE, NONE, op.end, "live")
        if needed is NONE:  # an atomic that is there for its effect: what it returned is shown
            needed = ALL
        valid, needed = _placed(valid, op), _placed(needed, op)
        watched = ALL if needed is UNKNOWN else needed
        if valid is UNKNOWN:
            return Live(UNKNOWN, watched, self._line(op, watched), "unknown")
        if needed is UNKNOWN:
            return Live(valid, valid, self._line(op, valid), "valid")
        mask = both(valid, needed)
        return Live(mask, needed, self._line(op, mask, needed), "all" if mask is ALL else "live")

    def examined(self, op: Op, value: Value) -> tuple[Mask, Mask, int, str]:
        """(lanes to look for births in, valid lanes, line, what the table says of the first)."""
        valid = _placed(self.valid(value), op)
        needed = _placed(self._fit(value, self._needed.of(value)), op)
        if needed is not UNKNOWN:
            label = "all" if needed is ALL else "needed"
            return needed, valid, self._line(op, needed, valid), label
        known = ALL if valid is UNKNOWN else valid
        return known, valid, self._line(op, known), "unknown"

    @staticmethod
    def _fit(value: Value, mask: Mask) -> Mask:
        """A description only fits a value of its shape."""
        if mask in (ALL, NONE, UNKNOWN) or mask.type.dims == value.type.dims:
            return mask
        return UNKNOWN

    @staticmethod
    def _line(op: Op, *masks: Mask) -> int:
        lines = [position(mask, op) for mask in masks if mask not in (ALL, NONE, UNKNOWN)]
        return max((line for line in lines if line is not None), default=op.end)


def _placed(mask: Mask, op: Op) -> Mask:
    """The mask if it can be written behind an operation, else UNKNOWN."""
    return mask if mask is not UNKNOWN and position(mask, op) is not None else UNKNOWN
