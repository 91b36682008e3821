"""Masks as operands of probes."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping

from flagprism_torch.instrument import values
from flagprism_torch.instrument.insertions import Insertions
from flagprism_torch.instrument.mask_text import MaskText
from flagprism_torch.ir.masks import ALL, UNKNOWN, Mask
from flagprism_torch.ir.module import Block, Value
from flagprism_torch.ir.types import Type, parse_type

_I1 = parse_type("i1")


class MaskOperands:
    """Gives masks names, and counts their lanes once per block."""

    def __init__(self, insertions: Insertions) -> None:
        self._new = insertions
        self._text = MaskText(
            insertions.module, insertions.probe, insertions.name, insertions.constant
        )
        self._counts: dict[tuple[int, Mask], tuple[int, str]] = {}

    def operand(
        self, mask: Mask, kind: Type, block: Block, line: int, out: list[str]
    ) -> tuple[tuple[str, Type], bool]:
        """((name, type), whether it is a mask) for a value of type `kind`; ALL and UNKNOWN are no
        masks and give a placeholder."""
        if mask in (ALL, UNKNOWN):
            return (self._new.constant("i1", "true"), _I1), False
        name = self._text.emit(mask, block, line, out)
        if not mask.type.is_tensor:
            return self._new.splat(name, _I1, out), True
        return (name, kind.like("i1")), True

    def lanes(
        self, mask: Mask, kind: Type, threads: int, block: Block, line: int, out: list[str]
    ) -> str:
        """Lanes of the mask in one execution, i64; counted once per mask and block."""
        operand, masked = self.operand(mask, kind, block, line, out)
        if not masked:
            return self._new.integer("i64", kind.numel)
        known = self._counts.get((id(block), mask))
        if known is None or known[0] > line:
            made = self._new.probe(values.mask_count, [operand], {"T": threads}, out)
            known = self._counts[id(block), mask] = (line, made)
        return known[1]

    @contextlib.contextmanager
    def inner(self, instead: Mapping[Value, str] | None = None) -> Iterator[None]:
        """A scope of text, as `MaskText.inner`."""
        with self._text.inner(instead):
            yield
