"""The op table: what the records and checks of a kernel mean, and where their values go."""

from __future__ import annotations

from dataclasses import dataclass

from flagprism_torch.instrument.accesses import Access
from flagprism_torch.instrument.checks import Check
from flagprism_torch.instrument.codegen import triton_dtype
from flagprism_torch.instrument.record import Record, statement_of
from flagprism_torch.ir.flow import Downstream, members
from flagprism_torch.ir.locations import Frame, source_line
from flagprism_torch.ir.masks import ALL
from flagprism_torch.ir.module import Function, Op, Value
from flagprism_torch.records.address_model import AccessEntry
from flagprism_torch.records.model import CheckEntry, OpEntry, Operand, OpTable

_SAME = ("tt.splat", "tt.unsplat", "tt.broadcast", "tt.expand_dims", "tt.reshape", "tt.trans",
         "ttg.convert_layout", "arith.extf")  # fmt: skip


@dataclass(frozen=True)
class Chosen:
    """A value with a row of its own. `label`: what the table says about its mask."""

    record: Record
    label: str
    role: str
    frame: Frame
    pointer: str | None


def table_of(
    entry: Function,
    rows: list[tuple[int, Chosen]],
    checks: list[Check],
    ops: list[Op],
    histograms: bool,
    left_out: dict[str, int],
) -> OpTable:
    """The table of a kernel.

    Args:
        rows: (number of the record, value) in order of op ids.
        histograms: whether stored values have a histogram block.
    """
    to_rows = Downstream(ops, [(one.record.value, op_id) for op_id, (_, one) in enumerate(rows)])
    operands = [(v, number) for number, check in enumerate(checks) for v in check.operands]
    to_checks = Downstream(ops, operands)
    own = {id(one.record.value): op_id for op_id, (_, one) in reversed(list(enumerate(rows)))}
    blocks: dict[int, int] = {}
    stored = {index for index, one in rows if one.role in ("store", "atomic")}
    listed = []
    for op_id, (index, one) in enumerate(rows):
        record, frame = one.record, one.frame
        histogram = -1
        if histograms and index in stored:
            histogram = blocks.setdefault(index, len(blocks))
        listed.append(
            OpEntry(
                op_id=op_id,
                op=record.op.name,
                dtype=str(triton_dtype(record.value.type.element, record.unsigned)),
                shape=record.value.type.dims,
                mask=one.label,
                file=frame.file,
                line=frame.line,
                variable=frame.name,
                statement=source_line(frame.file, frame.line),
                role=one.role,
                pointer=one.pointer,
                histogram=histogram,
                record=index,
                reaches=members(to_rows.of(record.value)),
                leads=members(to_checks.of(record.value)),
            )
        )
    described = tuple(_check(number, check, own, entry, to_rows, to_checks)
                      for number, check in enumerate(checks))  # fmt: skip
    frames = [f for op in entry.walk() for f in op.frames[:1]]
    file = frames[0].file if frames else ""
    line = min((f.line for f in frames if f.file == file), default=0)
    return OpTable(entry.name, file, line, tuple(listed), left_out, described)


def entries_of(
    accesses: list[Access], first: int, rows: list[tuple[int, Chosen]]
) -> tuple[AccessEntry, ...]:
    """Entries of accesses, whose records are numbered from `first`.

    Args:
        rows: as in `table_of`.
    """
    own = {id(one.record.op): op_id for op_id, (_, one) in enumerate(rows) if one.role != "value"}
    listed = []
    for number, access in enumerate(accesses):
        op, frame = access.op, access.op.frames[0]
        pointee = access.pointer.type.pointee
        listed.append(
            AccessEntry(
                number=number,
                op=op.name,
                role=access.role,
                dtype=str(triton_dtype(pointee) or pointee),
                itemsize=access.size,
                shape=access.pointer.type.dims,
                masked=access.mask is not ALL,
                file=frame.file,
                line=frame.line,
                variable=frame.name if access.role != "store" else None,
                statement=source_line(frame.file, frame.line),
                arguments=tuple(argument.name.lstrip("%") for argument in access.arguments),
                record=first + number,
                op_id=own.get(id(op), -1),
                indexed_by=_statements(access.indexed_by),
            )
        )
    return tuple(listed)


def _statements(ops: tuple[Op, ...]) -> tuple[str, ...]:
    lines = dict.fromkeys((op.frames[0].file, op.frames[0].line) for op in ops if op.frames)
    return tuple(source_line(file, line) for file, line in lines)


def _check(
    number: int,
    check: Check,
    own: dict[int, int],
    entry: Function,
    to_rows: Downstream,
    to_checks: Downstream,
) -> CheckEntry:
    frame = check.op.frames[0]
    return CheckEntry(
        kind=check.kind,
        rule=check.rule,
        op=check.op.name,
        dtype=str(triton_dtype(check.examined.type.element)),
        shape=check.examined.type.dims,
        mask=check.label,
        file=frame.file,
        line=frame.line,
        variable=frame.name,
        statement=source_line(frame.file, frame.line),
        operands=tuple(_operand(value, check, own, entry) for value in check.operands),
        op_id=own.get(id(check.value), -1),
        reaches=members(to_rows.of(check.value)),
        leads=tuple(n for n in members(to_checks.of(check.value)) if n != number),
    )


def _operand(value: Value, check: Check, own: dict[int, int], entry: Function) -> Operand:
    """Where an operand comes from, looking through operations that only hand on. A value inside of
    the check's own statement has no variable: it goes by its operation."""
    while True:
        if id(value) in own:
            name = value.op.frames[0].name if value.op is not None and value.op.frames else None
            return Operand(name or value.name, own[id(value)])
        op = value.op
        if op is None or op.name not in _SAME:
            break
        value = op.operands[0]
    if op is None:
        for argument, name in zip(entry.arguments, entry.labels, strict=False):
            if argument is value:
                return Operand(name)
        return Operand("a loop-carried value")
    if op.name == "arith.constant":
        return Operand(op.head.split(" : ")[0].strip().removeprefix("dense<").removesuffix(">"))
    inside = statement_of(op) == statement_of(check.op)
    return Operand((op.frames[0].name if op.frames and not inside else None) or op.name)
