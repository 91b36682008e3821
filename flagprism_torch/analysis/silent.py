"""Trouble that no NaN shows: what checks of other kinds than births found.

Note [Other kinds]
The first counter of such a check (`Found.nan`) is the number of lanes or additions concerned. Two
kinds are normal in small numbers and only count in large ones:

* stagnation: additions are lost to rounding wherever a small value meets a large sum. It is found
  if at least 16 additions and a tenth of all additions of a non-zero value (the second counter, if
  there is one) changed nothing;
* precision: tf32 rounds operands up as often as down, which averages out. It is found if at least
  32 lanes and half of all finite ones (fourth counter) lost bits, and 95 percent of those lost them
  in the same direction (second counter: towards zero, third: away from it).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from ..records.model import Anomaly, Block, CheckEntry, Found, Row
from . import join
from .births import of_check
from .chains import Chain
from .forecast import wraps_at

_COMBINE = ("tt.reduce", "tt.scan", "tt.dot")
LOST_ADDITIONS = 16
STAGNATION = 0.1
TF32_LANES = 32
TF32_SHARE = 0.5
TF32_ONE_WAY = 0.95


class _Kind(NamedTuple):
    kind: str
    counter: str  # its name in `details`
    cause: str


_KINDS = {
    "undefined": _Kind(
        "undefined_lanes", "undefined_lanes", "lanes that the mask leaves undefined are used"
    ),
    "wrap": _Kind("int_overflow", "wrapped_lanes", "the result does not fit {}"),
    "stagnation": _Kind(
        "stagnation", "lost_additions", "adding a non-zero value leaves a sum in {} as it was"
    ),
    "saturation": _Kind(
        "saturation", "saturated_lanes", "finite values beyond the largest of {} are clamped"
    ),
    "tf32": _Kind(
        "precision", "operand_lanes_not_tf32", "operands are rounded to tf32, most of them one way"
    ),
}


def silent(step: int, block: Block) -> Iterator[Chain]:
    """The anomalies of a block of other kinds than nan and inf, in the order of its checks."""
    rows = join.rows(step, [block]) if block.found else []
    for number, found in sorted(block.found.items()):
        check = block.table.checks[number]
        kind = _KINDS.get(check.kind)
        if kind is not None and _matters(check, found):
            anomaly = _anomaly(step, block, check, found, kind, rows)
            order = (2, anomaly.launch, number, anomaly.kernel, anomaly.site)
            yield Chain(anomaly, order, number)


def _matters(check: CheckEntry, found: Found) -> bool:
    if check.kind == "stagnation":
        return found.nan >= max(LOST_ADDITIONS, STAGNATION * found.posinf)
    if check.kind == "tf32":
        one_way = max(found.posinf, found.neginf)
        many = found.nan >= max(TF32_LANES, TF32_SHARE * found.padding)
        return many and one_way >= TF32_ONE_WAY * found.nan
    return found.nan > 0


def _anomaly(
    step: int, block: Block, check: CheckEntry, found: Found, kind: _Kind, rows: Sequence[Row]
) -> Anomaly:
    details: dict[str, Any] = {kind.counter: found.nan}
    if found.largest:
        details["headroom"] = wraps_at(found.largest)
    reached = [op_id for op_id in check.reaches if op_id != check.op_id]
    # what combines lanes is what uses those that nothing masks
    consumer = next((i for i in reached if block.table.ops[i].op in _COMBINE), None)
    if consumer is None and len(reached) == 1:
        consumer = reached[0]
    if consumer is not None:
        details["consumer"] = block.table.ops[consumer].statement
    return dataclasses.replace(
        of_check(step, block, check, rows, found.first_nan),
        kind=kind.kind,
        severity="warning",
        cause=kind.cause.format(check.dtype),
        details=MappingProxyType(details),
    )
