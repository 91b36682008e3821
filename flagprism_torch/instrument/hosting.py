"""Which probe watches for the checks of an operation.

A check runs only if some lane was non-finite. The record of the checked value notices that anyway;
so does, at the cost of two instructions per lane, a record of the same statement and shape. Only
where there is neither, the value is watched for itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from flagprism_torch.instrument.checks import Check
from flagprism_torch.instrument.record import Record, place_of, statement_of
from flagprism_torch.ir.masks import ALL, Mask


def host(records: Sequence[Record], checks: Sequence[Check]) -> tuple[list[Record], list[Record]]:
    """(the records, watches without a record), each check with one of them."""
    found: list[Record] = list(records)
    watches: list[Record] = []
    for number, check in enumerate(checks):
        at = _own(found, check)
        if at is None:
            at = _near(found, check)
        if at is not None:
            found[at] = _with(found[at], number, check)
            continue
        new = Record(check.value, check.op, check.needed, place_of(check.op.block), False,
                     check.line, check.needed, (number,))  # fmt: skip
        at = next((i for i, watch in enumerate(watches) if _together(watch, new)), None)
        if at is None:
            watches.append(new)
        else:
            old = watches[at]
            watches[at] = replace(
                new,
                line=max(old.line, new.line),
                checks=(*old.checks, number),
                others=(*old.others, old.value),
            )
    return found, watches


def _own(records: Sequence[Record], check: Check) -> int | None:
    for at, record in enumerate(records):
        if record.value is check.value and record.op is check.op:
            return at
    return None


def _near(records: Sequence[Record], check: Check) -> int | None:
    """A record of the same statement, shape and block, further down, that watches these lanes."""
    for at, record in enumerate(records):
        if (
            record.real
            and record.op.block is check.op.block
            and record.value.type.dims == check.value.type.dims
            and statement_of(record.op) == statement_of(check.op)
            and record.op.index >= check.op.index
            and _within(check.needed, record.watched)
        ):
            return at
    return None


def _together(watch: Record, new: Record) -> bool:
    """Whether one watch serves both."""
    return (
        watch.op.block is new.op.block
        and watch.value.type.dims == new.value.type.dims
        and statement_of(watch.op) == statement_of(new.op)
        and watch.watched == new.watched
    )


def _within(inner: Mask, outer: Mask) -> bool:
    if outer is ALL or inner == outer:
        return True
    return inner.kind == "and" and any(_within(part, outer) for part in inner.arguments)


def _with(record: Record, number: int, check: Check) -> Record:
    others = record.others if check.value is record.value else (*record.others, check.value)
    return replace(
        record,
        line=max(record.line, check.line),
        checks=(*record.checks, number),
        others=others,
    )
