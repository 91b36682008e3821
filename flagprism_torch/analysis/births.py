"""What the records of one block tell by themselves: births, loaded NaNs, and NaNs that neither
explains.

Note [Findings of a block]
* A birth is what a check counted, NaN and infinities apart. Checks know needed lanes and places.
* A load (or the old value of an atomic) with a NaN: it came from memory.
* A NaN in a row that no birth and no loaded NaN can enter was made by something that is not
  checked. It is seen, not explained. An unexplained infinity is none of these: +-inf is legitimate
  in healthy models (masked scores, the start of a running maximum).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from ..records.model import Anomaly, Block, CheckEntry, Found, OpEntry, Row, StatementOrigin
from . import causes, join
from .anomalies import First, anomaly

READS = ("load", "atomic")
Place = tuple[int, tuple[int, int, int] | None, int | None, Any, int]  # as in `Found`
EXTERN = "extern"  # op of the one row of an extern call (hooks.externs)


@dataclass(frozen=True)
class Finding:
    """One finding of a block.

    `anomaly`: without what only its chain tells. `order`: its place among the values of the kernel.
    `reaches`: op ids that it can enter, its own included. `sure`: whether its lanes are known to
    matter. `birth`: whether it is one. `check`: number of the check that found it, -1 for a row.
    `leads`: checks with an operand that it can enter. `infinite`: whether an operand of a born NaN
    was infinite.
    """

    anomaly: Anomaly
    order: float
    reaches: frozenset[int]
    sure: bool
    birth: bool = False
    check: int = -1
    leads: frozenset[int] = frozenset()
    infinite: bool = False


def findings(step: int, block: Block, rows: Sequence[Row]) -> list[Finding]:
    """The findings of a block, in the order of its values; `rows`: its rows."""
    found = [*_births(step, block, rows), *_loaded(step, block, rows)]
    explained = {op_id for one in found for op_id in one.reaches}
    for row in rows:
        if row.nan and row.op_id not in explained:
            entry = block.table.ops[row.op_id]
            seen = of_row(step, block, row, "nan", "seen", _how(entry))
            found.append(Finding(seen, row.op_id, _reaches(entry), row.mask != "unknown"))
            explained |= found[-1].reaches
    return sorted(found, key=lambda one: one.order)


def _births(step: int, block: Block, rows: Sequence[Row]) -> Iterator[Finding]:
    for number, found in block.found.items():
        check = block.table.checks[number]
        if check.kind != "birth":
            continue
        reaches = frozenset(check.reaches)
        order = check.op_id if check.op_id >= 0 else min(reaches, default=len(rows)) - 0.5
        for kind, first, any_found in (
            ("nan", found.first_nan, found.nan),
            ("inf", found.first_inf, found.posinf + found.neginf),
        ):
            if any_found:
                yield Finding(
                    _of_check(step, block, check, found, rows, kind),
                    order,
                    reaches,
                    sure=check.mask != "unknown",
                    birth=True,
                    check=number,
                    leads=frozenset(check.leads),
                    infinite=kind == "nan" and first is not None and first[4] & causes.INFINITE > 0,
                )


def _loaded(step: int, block: Block, rows: Sequence[Row]) -> Iterator[Finding]:
    """NaN from memory; not what an atomic reads back after a birth of this kernel reached it."""
    born = {op_id for number in block.found for op_id in block.table.checks[number].reaches}
    for row in rows:
        entry = block.table.ops[row.op_id]
        if row.role in READS and row.nan and not (row.role == "atomic" and row.op_id in born):
            sure = row.mask != "unknown"
            loaded = of_row(step, block, row, "nan", "loaded" if sure else "seen", _how(entry))
            yield Finding(loaded, row.op_id, _reaches(entry), sure)


def _reaches(entry: OpEntry) -> frozenset[int]:
    return frozenset((*entry.reaches, entry.op_id))


def _how(entry: OpEntry) -> str:
    through = f" through {entry.pointer}" if entry.pointer else ""
    if entry.op == EXTERN:
        return f"in a result of {entry.statement}"
    return {
        "load": f"loaded{through}",
        "store": f"stored{through}",
        "atomic": f"read by an atomic{through}",
    }.get(entry.role, "")


def of_row(step: int, block: Block, row: Row, kind: str, verdict: str, cause: str) -> Anomaly:
    """The NaNs or infinities of a row. The place is that of the row's first non-finite lane."""
    first = block.firsts.get(row.op_id)
    pointer = block.table.ops[row.op_id].pointer
    return anomaly(
        step,
        row.site,
        row.kernel,
        row,
        row,
        First(*first) if first else First(block.first_launch),
        kind=kind,
        verdict=verdict,
        op_id=row.op_id,
        variable=row.variable,
        counts={name: getattr(row, name) for name in ("lanes", "live", "nan", "posinf", "neginf")},
        cause=cause,
        details={} if pointer is None else {"argument": pointer},
    )


def _of_check(
    step: int, block: Block, check: CheckEntry, found: Found, rows: Sequence[Row], kind: str
) -> Anomaly:
    """A birth of one kind; its counts are those of the check, of both kinds."""
    first = found.first_nan if kind == "nan" else found.first_inf
    sign = "+" * (found.posinf > 0) + "-" * (found.neginf > 0)
    nan, posinf, neginf = found.nan, found.posinf, found.neginf
    others = posinf + neginf if kind == "nan" else nan
    details: dict[str, Any] = {}
    if found.padding > others:  # padding is not told apart by kind: some is certainly of this one
        details["padding"] = True
        details["padding_only"] = found.padding == nan + posinf + neginf
    found_there = of_check(step, block, check, rows, first)
    return dataclasses.replace(
        found_there,
        kind=kind,
        verdict="seen" if check.mask == "unknown" else "born",
        counts=MappingProxyType(
            {**found_there.counts, "padding": found.padding, "nan": nan, "posinf": posinf,
             "neginf": neginf}
        ),
        operands=tuple(_operand(operand.name, operand.record, rows) for operand in check.operands),
        cause=causes.cause(check, kind, first[4], sign if len(sign) < 2 else "") if first else "",
        details=MappingProxyType(details),
    )  # fmt: skip


def of_check(
    step: int, block: Block, check: CheckEntry, rows: Sequence[Row], first: Place | None
) -> Anomaly:
    """Where a check found something, for its kind to complete; `first`: its earliest place."""
    lanes, live = lanes_of(block, check, rows)
    return anomaly(
        step,
        block.site.key,
        block.table.kernel,
        check,
        owner(block, check),
        First(*first[:4]) if first else First(block.first_launch),
        kind=check.kind,
        op_id=check.op_id,
        variable=check.variable,
        counts={"lanes": lanes, "live": live},
    )


def lanes_of(block: Block, check: CheckEntry, rows: Sequence[Row]) -> tuple[int, int]:
    """(lanes, live lanes) that a check looked at: those of the value's row. Without one, the row of
    its statement tells how often it ran, and which lanes are live if it has the same shape; else
    all count."""
    if check.op_id >= 0:
        return rows[check.op_id].lanes, rows[check.op_id].live
    ops = block.table.ops
    own = [e for e in ops if (e.file, e.line) == (check.file, check.line)]
    same = next((entry for entry in own if entry.shape == check.shape), None)
    if same is not None:
        return rows[same.op_id].lanes, rows[same.op_id].live
    executions = rows[own[0].op_id].executions if own else block.launches
    return executions * check.numel, executions * check.numel


def _operand(name: str, record: int, rows: Sequence[Row]) -> Mapping[str, Any]:
    if record < 0:
        return MappingProxyType({"name": name})
    row = rows[record]
    counted = ("lanes", "live", "nan", "posinf", "neginf", "zero", "min", "max")
    return MappingProxyType({"name": name, **{field: getattr(row, field) for field in counted}})


def owner(block: Block, check: CheckEntry) -> StatementOrigin:
    """Who owns the result of a check: as its row, else as its variable, else as the first row of
    the same line that it enters."""
    ops = block.table.ops
    if check.op_id >= 0:
        return join.owner(block.site, ops[check.op_id])
    if check.variable is None:
        for op_id in check.reaches:
            if (ops[op_id].file, ops[op_id].line) == (check.file, check.line):
                return join.owner(block.site, ops[op_id])
    entry = OpEntry(-1, check.op, check.dtype, check.shape, check.mask, check.file, check.line,
                    check.variable, check.statement)  # fmt: skip
    return join.owner(block.site, entry)
