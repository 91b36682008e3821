"""What the watch (level 0) saw, as anomalies: where a step went wrong first.

Note [Origins]
A watched value that is NaN, while no watched value that can enter it is, is where a NaN came from:
loaded, or made by its statement out of values without one. Nobody looked at single lanes, so what
only a lane could tell is left to a closer look. Infinities count where no infinity can have come
from memory or from the program itself. A NaN that a kernel loads is news only as long as no
earlier launch is known to have had one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ..provenance import callsites
from ..records.model import Block, CheckEntry, Found, StatementOrigin
from .anomalies import First, anomaly
from .chains import Chain

UNKNOWN = (1 << 31) - 2  # an iteration that is not known (instrument.watch)


def watch(step: int, blocks: Iterable[Block], nan_before: bool = False) -> Iterator[Chain]:
    """The anomalies of watched kernels, in the order of their launches.

    Args:
        nan_before: whether a NaN is known from an earlier step.
    """
    for block in sorted(blocks, key=lambda block: block.first_launch):
        seen = {n: f for n, f in block.found.items() if block.table.checks[n].kind == "watch"}
        if not seen:
            continue
        found = [*_origins(block, seen, "nan"), *_origins(block, seen, "inf")]
        for number, kind in found:
            check = block.table.checks[number]
            if kind == "nan" and _is_read(check) and nan_before:
                continue
            alone = sum(other == kind for _, other in found) == 1
            yield _chain(step, block, number, kind, seen, alone)
        nan_before |= any(each.nan for each in seen.values())


def _is_read(check: CheckEntry) -> bool:
    return check.rule.startswith(("load", "atomic"))


def _is_written(check: CheckEntry) -> bool:
    return "store" in check.rule or "atomic" in check.rule


def _has(found: Found, kind: str) -> bool:
    return bool(found.nan if kind == "nan" else found.posinf)


def _origins(block: Block, seen: dict[int, Found], kind: str) -> list[tuple[int, str]]:
    checks = block.table.checks
    bad = [number for number, found in seen.items() if _has(found, kind)]
    reached = {after for number in bad for after in checks[number].leads}
    return [
        (number, kind)
        for number in bad
        if number not in reached and (kind == "nan" or not _is_read(checks[number]))
    ]


def _chain(
    step: int, block: Block, number: int, kind: str, seen: dict[int, Found], alone: bool
) -> Chain:
    check, found = block.table.checks[number], seen[number]
    first = found.first_nan if kind == "nan" else found.first_inf
    place, counted = First(block.first_launch), "bad_programs"
    if first is not None:
        known = first[2] is not None and first[2] < UNKNOWN
        place = First(first[0], first[1], first[2] if alone and known else None)
        # what a loop cannot carry on is told at each execution
        counted = "bad_programs" if known else "bad_executions"
    stored = [n for n in (number, *check.leads) if n in seen and _is_written(block.table.checks[n])]
    nan_stored = any(seen[n].nan for n in stored)
    loaded = _is_read(check)
    one = anomaly(
        step,
        block.site.key,
        block.table.kernel,
        check,
        owner(block, check),
        place,
        kind=kind,
        verdict="loaded" if loaded else "seen" if block.table.left_out else "born",
        severity="error" if nan_stored else "warning",
        variable=check.variable,
        cause=f"loaded through {check.pointer}" if loaded and check.pointer else "",
        details={counted: found.nan if kind == "nan" else found.posinf},
    )
    order = (0 if kind == "nan" else 1, block.first_launch, number, one.kernel, one.site)
    return Chain(one, order, number, hidden=not stored)


def owner(block: Block, check: CheckEntry) -> StatementOrigin:
    """Who owns a watched value: a stored one belongs to the owner of what it is written to."""
    pointer = check.pointer if check.rule in ("store", "atomic") else None
    return callsites.owner(block.site.origin, check.variable, pointer, check.statement)
