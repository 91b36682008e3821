"""How far each program came: a word per program in host memory, for launches that may not end.

Note [Trace]
Points stand before accesses, assertions and the end of the kernel, where a program can be stopped.
A program writes the number of a point, from 1, before it goes on, by an atomic that the host sees
(scope sys), so that the word tells after an illegal access, a failed assertion or a time-out which
statement it did not get past. 0: it never came to one.
"""

from __future__ import annotations

from collections.abc import Iterable

import triton
import triton.language as tl

from flagprism_torch.instrument.codegen import RECORDS
from flagprism_torch.instrument.insertions import Insertions
from flagprism_torch.instrument.record import statement_of
from flagprism_torch.instrument.words import programs
from flagprism_torch.ir.locations import source_line
from flagprism_torch.ir.module import Op
from flagprism_torch.ir.types import Type
from flagprism_torch.records.model import TracePoint

_STOPS = ("tt.load", "tt.store", "tt.atomic_", "tt.descriptor_", "tt.experimental_descriptor_",
          "tt.assert", "cf.assert", "tt.call")  # fmt: skip


@triton.jit
def reached(records, program, OFFSET: tl.constexpr, OPS: tl.constexpr, SLOTS: tl.constexpr,
            POINT: tl.constexpr):  # fmt: skip
    """Say that a program reached a point. The words stand behind the slots' records."""
    rows = tl.full([], SLOTS, tl.int64) if SLOTS > 0 else programs()
    at = records + OFFSET + rows * (OPS * 24) + program
    tl.atomic_xchg(at, POINT, sem="relaxed", scope="sys")


def stops_of(ops: Iterable[Op]) -> list[Op]:
    """The operations with a point before them: the first such of each statement in a block, and
    the ends of the kernel."""
    found: list[Op] = []
    before: dict[int, object] = {}
    for op in ops:
        if op.name == "tt.return":
            found.append(op)
        elif op.name.startswith(_STOPS) and op.frames:
            if before.get(id(op.block)) != statement_of(op):
                found.append(op)
            before[id(op.block)] = statement_of(op)
    return found


def points_of(stops: Iterable[Op]) -> tuple[TracePoint, ...]:
    """What the points mean, in the order of their numbers."""
    points = []
    for op in stops:
        if op.name == "tt.return":
            points.append(TracePoint("", 0, "", op.name))
            continue
        frame = op.frames[0]
        points.append(
            TracePoint(frame.file, frame.line, source_line(frame.file, frame.line), op.name)
        )
    return tuple(points)


def write(
    new: Insertions, stops: Iterable[Op], program: tuple[str, Type], constants: dict[str, int]
) -> None:
    """Put the points into the text, behind all else that stands before their operations.

    Args:
        program: the linear program id, int64.
        constants: OFFSET, OPS and SLOTS as in `instrument.words.slot`.
    """
    for number, op in enumerate(stops, 1):
        operands = [(new.hidden, RECORDS), program]
        new.probe(reached, operands, {**constants, "POINT": number}, new.at(op.line - 1))
