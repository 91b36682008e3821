"""Remarks about the arguments of launches, as anomalies.

Note [Reach of a flat index]
Two layouts of one shape agree on all offsets below the smallest stride that differs between them:
there lie the elements that only the other axes count. An access that stays below it reads the right
elements, however the tensor lies. Where addresses were recorded, such a remark is dropped.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from ..provenance import callsites
from ..records import layout
from ..records.address_model import AccessEntry
from ..records.model import Anomaly, Block, OpEntry
from ..records.remarks import Remark
from .anomalies import First, anomaly
from .chains import Chain


def configuration(
    step: int, blocks: Iterable[Block], remarks: Iterable[Remark]
) -> Iterator[tuple[Chain, tuple[str, str]]]:
    """The anomalies of remarks, each with (argument, problem), which tell those of one statement
    apart.

    Args:
        blocks: all blocks of the step.
    """
    known = {(block.site.key, id(block.table)): block for block in blocks}
    for number, remark in enumerate(remarks):
        launch = remark.launch
        block = known.get((launch.site.key, id(launch.table)))
        if block is not None and _is_refuted(remark, block):
            continue
        found = _anomaly(step, remark)
        order = (2, launch.number, launch.table.check_records + number, found.kernel, found.site)
        yield Chain(found, order), (remark.argument, remark.problem)


def agree_below(shape: Sequence[int], one: Sequence[int], other: Sequence[int]) -> int | None:
    """The first offset where two layouts of a shape, without overlaps, hold different elements.
    None: they are the same."""
    return min(
        (min(a, b) for n, a, b in zip(shape, one, other, strict=True) if n > 1 and a != b),
        default=None,
    )


def _is_refuted(remark: Remark, block: Block) -> bool:
    """Whether records tell that nothing came of it, or tell it better."""
    own = [one for one in block.table.accesses if one.arguments == (remark.argument,)]
    if remark.problem in ("empty", "descriptor"):
        return any(access.number in block.outside for access in own)
    hint, details = remark.hint, remark.details
    if remark.kind != "noncontiguous_argument" or hint is None:
        return False
    first = agree_below(details["shape"], details["strides"], details["other_strides"])
    place = (hint.file, hint.line, hint.op)
    hinted = [one.number for one in own if (one.file, one.line, one.op) == place]
    if first is None or not hinted:
        return first is None
    end = first * hint.details["itemsize"]
    return all(_reached(block.access_records[number]) < end for number in hinted)


def _reached(record: Any) -> int:
    """The largest offset in bytes, -1 without an active lane."""
    if not record["live"]:
        return -1
    return int(layout.value_of_key(int(record["max_key"]), "int64"))


class _Place(NamedTuple):
    statement: str
    file: str
    line: int
    op: str
    variable: str | None
    op_id: int


def _anomaly(step: int, remark: Remark) -> Anomaly:
    launch = remark.launch
    site, place = launch.site, _place(remark)
    pointer = remark.argument if place.op not in ("", "tt.load") else None
    named = {"argument": remark.argument} if remark.argument else {}
    problem = {"problem": remark.problem} if remark.problem else {}
    return anomaly(
        step,
        site.key,
        launch.table.kernel,
        place,
        callsites.owner(site.origin, place.variable, pointer, place.statement),
        First(launch.number),
        kind=remark.kind,
        severity=remark.severity,
        op_id=place.op_id,
        variable=place.variable,
        cause=remark.cause,
        details={**named, **remark.details, **problem},
    )


def _place(remark: Remark) -> _Place:
    """That of the hint, else of the first access through the argument, else of the kernel."""
    table, hint = remark.launch.table, remark.hint
    if hint is not None:
        at = (hint.file, hint.line, hint.op)
        found = [entry.op_id for entry in table.ops if (entry.file, entry.line, entry.op) == at]
        op_id = found[0] if found else -1
        return _Place(hint.statement, hint.file, hint.line, hint.op, hint.variable, op_id)
    for access in table.accesses:
        if access.arguments == (remark.argument,):
            return _of_entry(access)
    for entry in table.ops:
        if entry.pointer == remark.argument:
            return _of_entry(entry)
    return _Place("", table.file, table.line, "", None, -1)


def _of_entry(one: AccessEntry | OpEntry) -> _Place:
    return _Place(one.statement, one.file, one.line, one.op, one.variable, one.op_id)
