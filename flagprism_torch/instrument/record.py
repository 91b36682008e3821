"""A record to be made: of which value, over which lanes, where in the text."""

from __future__ import annotations

from dataclasses import dataclass

from flagprism_torch.instrument.accesses import Access
from flagprism_torch.instrument.checks import REAL
from flagprism_torch.ir.masks import Mask
from flagprism_torch.ir.module import Block, Op, Value


@dataclass(frozen=True)
class Place:
    """Where a record is made: `loops` is the innermost run of directly nested `scf.for`, outermost
    first; `repeated` if further loops enclose those."""

    loops: tuple[Op, ...]
    repeated: bool


@dataclass(frozen=True)
class Record:
    """One record to be made: of `value` over the lanes of `mask`, after text line `line`.

    `watched`: the lanes whose non-finite values lead to the checks `checks` (numbers); `others`:
    more values of the same shape that are watched with it. `access`: the value is the offsets of an
    access, the lanes are those that are active.
    """

    value: Value
    op: Op
    mask: Mask
    place: Place
    unsigned: bool
    line: int
    watched: Mask
    checks: tuple[int, ...] = ()
    others: tuple[Value, ...] = ()
    access: Access | None = None

    @property
    def real(self) -> bool:
        return bool(REAL.match(self.value.type.element))


def place_of(block: Block) -> Place:
    loops: list[Op] = []
    repeated = False
    run = True
    while block.parent is not None:
        parent = block.parent
        if parent.name == "scf.for" and run:
            loops.insert(0, parent)
        else:
            run = False
            repeated |= parent.name in ("scf.for", "scf.while")
        block = parent.block
    return Place(tuple(loops), repeated)


def statement_of(op: Op) -> tuple[str, int] | None:
    """(file, line) of the outermost source line of an operation."""
    return (op.frames[0].file, op.frames[0].line) if op.frames else None
