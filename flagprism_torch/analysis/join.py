"""Joins merged records with the op table and the provenance of their call site: rows.

Counters and extremes are taken over as they are; mean and l2 are derived here, in float64.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from ..provenance import callsites
from ..records import layout
from ..records.model import NO_MODULE, Block, CallSite, OpEntry, Row, StatementOrigin

EXACT_INTEGERS = 2.0**53  # float64 holds every integer below
SMALL_SQUARES = 2.0**-960  # below, squares have lost bits that their sum needs


def rows(step: int | None, blocks: Iterable[Block]) -> list[Row]:
    """The rows of `blocks`, in block order and within a block in op order.

    `step` is written into the rows: the step that the blocks cover, None for all steps. Every op of
    a block's table gets a row, also one that never ran (executions 0).

    Raises:
        ValueError: a block has another number of records than its table has ops.
    """
    result: list[Row] = []
    for block in blocks:
        if len(block.records) != len(block.table.ops):
            raise ValueError(
                f"kernel {block.table.kernel}: {len(block.records)} records "
                f"for {len(block.table.ops)} ops"
            )
        result += [
            _row(step, block, entry, record)
            for entry, record in zip(block.table.ops, block.records, strict=True)
        ]
    return result


def owner(site: CallSite, entry: OpEntry) -> StatementOrigin:
    """Who owns the value of `entry`. A store or atomic belongs to the owner of what it writes."""
    pointer = entry.pointer if entry.role in ("store", "atomic") else None
    return callsites.owner(site.origin, entry.variable, pointer, entry.statement)


def common_prefix(modules: Iterable[str]) -> str:
    """Deepest module that holds all of `modules` ("layers.0" for "layers.0.a" and "layers.0.b").

    `NO_MODULE` if they have no module in common.
    """
    return callsites.common_prefix(list(modules)) or NO_MODULE


def _row(step: int | None, block: Block, entry: OpEntry, record: Any) -> Row:
    site, at = block.site, owner(block.site, entry)
    count = {name: int(record[name]) for name in ("executions", "live", "nan", "zero")}
    posinf, neginf = int(record["posinf"]), int(record["neginf"])
    finite = count["live"] - count["nan"] - posinf - neginf
    low = high = mean = l2 = None
    inexact = False
    if finite > 0:
        low = layout.min_of_key(int(record["min_key"]), entry.dtype)
        high = layout.value_of_key(int(record["max_key"]), entry.dtype)
        total = float(record["sum"])
        # The sum itself left float64's range: no mean is better than a wrong one.
        mean = total / finite if math.isfinite(total) else None
        l2 = _root(float(record["sumsq"]), int(record["scale"]), max(abs(low), abs(high)))
        inexact = not layout.is_float(entry.dtype) and _passed_exact(total, low, high, finite)
    first = block.firsts.get(entry.op_id)
    return Row(
        step=step,
        site=site.key,
        call=site.index,
        module=at.module,
        phase=at.phase,
        kernel=site.kernel,
        file=entry.file,
        line=entry.line,
        variable=entry.variable,
        statement=entry.statement,
        op=entry.op,
        op_id=entry.op_id,
        role=entry.role,
        dtype=entry.dtype,
        mask=entry.mask,
        executions=count["executions"],
        lanes=count["executions"] * entry.numel,
        live=count["live"],
        nan=count["nan"],
        posinf=posinf,
        neginf=neginf,
        zero=count["zero"],
        min=low,
        max=high,
        mean=mean,
        l2=l2,
        inexact=inexact,
        first_nonfinite=None if first is None else first[1:],
        aten=at.aten,
        modules=at.modules,
        model_file=at.model_file,
        model_line=at.model_line,
        launches=block.launches,
        histogram=_histogram(block, entry),
    )


def _root(sumsq: float, scale: int, largest: float) -> float | None:
    """sqrt(sumsq * 2**(2 * scale)), inf if the root itself passes float64's range. None if the sum
    of squares left that range, as fp64 values beyond 1e154 or all below 1e-145 make it."""
    if not math.isfinite(sumsq) or (largest > 0 and sumsq < SMALL_SQUARES):
        return None
    try:
        return math.ldexp(math.sqrt(sumsq), scale)
    except OverflowError:
        return math.inf


def _passed_exact(total: float, low: float, high: float, finite: int) -> bool:
    """Whether a float64 sum of integers may have been rounded.

    Values of one sign sum up monotonically, so the total tells. With both signs a partial sum may
    have been larger than the total; it is at most `finite` times the largest magnitude.
    """
    if low < 0 < high:
        return finite * max(-low, high) >= EXACT_INTEGERS
    return abs(total) >= EXACT_INTEGERS


def _histogram(block: Block, entry: OpEntry) -> tuple[int, ...] | None:
    if entry.histogram < 0 or block.histograms is None:
        return None
    return tuple(int(count) for count in block.histograms[entry.histogram])
