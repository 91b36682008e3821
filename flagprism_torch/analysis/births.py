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
            anomaly = of_row(step, block, row, "nan", "seen", _how(entry))
            found.append(Finding(anomaly, row.op_id, _reaches(entry), row.mask != "unknown"))
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
            anomaly = of_row(step, block, row, "nan", "loaded" if sure else "seen", _how(entry))
            yield Finding(anomaly, row.op_id, _reaches(entry), sure)


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
    launch, program, iteration, lane = first or (block.first_launch, None, None, None)
    return Anomaly(
        kind=kind,
        verdict=verdict,
        severity="info",
        step=step,
        last_step=step,
        occurrences=1,
        launch=launch,
        kernel=row.kernel,
        statement=row.statement,
        file=row.file,
        line=row.line,
        variable=row.variable,
        op=row.op,
        op_id=row.op_id,
        module=row.module,
        modules=row.modules,
        phase=row.phase,
        aten=row.aten,
        model_file=row.model_file,
        model_line=row.model_line,
        program=program,
        lane=lane,
        iteration=iteration,
        counts=MappingProxyType(
            {
                "lanes": row.lanes,
                "live": row.live,
                "padding": 0,
                "nan": row.nan,
                "posinf": row.posinf,
                "neginf": row.neginf,
            }
        ),
        site=row.site,
        cause=cause,
        details=MappingProxyType({} if pointer is None else {"argument": pointer}),
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
    anomaly = of_check(step, block, check, rows, first)
    return dataclasses.replace(
        anomaly,
        kind=kind,
        verdict="seen" if check.mask == "unknown" else "born",
        counts=MappingProxyType(
            {**anomaly.counts, "padding": found.padding, "nan": nan, "posinf": posinf,
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
    launch, program, iteration, lane, _ = first or (block.first_launch, None, None, None, 0)
    at = owner(block, check)
    lanes, live = lanes_of(block, check, rows)
    return Anomaly(
        kind=check.kind,
        verdict="found",
        severity="info",
        step=step,
        last_step=step,
        occurrences=1,
        launch=launch,
        kernel=block.table.kernel,
        statement=check.statement,
        file=check.file,
        line=check.line,
        variable=check.variable,
        op=check.op,
        op_id=check.op_id,
        module=at.module,
        modules=at.modules,
        phase=at.phase,
        aten=at.aten,
        model_file=at.model_file,
        model_line=at.model_line,
        program=program,
        lane=lane,
        iteration=iteration,
        counts=MappingProxyType(
            {"lanes": lanes, "live": live, "padding": 0, "nan": 0, "posinf": 0, "neginf": 0}
        ),
        site=block.site.key,
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
