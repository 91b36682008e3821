"""Which rows are findings, and the bounded log of them.

Note [Seen, not born]
Records of one value do not tell where a NaN was born, so every finding here has the verdict "seen".

NaN: every value with a NaN in a counted lane is a finding: loaded, computed or stored.

Infinity: +-inf is a legitimate value in healthy models (masked scores, the start of a running
maximum, a clamp), and an operand's infinity cannot be told from a new one exactly. Silence is
preferred over a false alarm. +-inf is a finding only where all of this holds:

1. The op can make an infinity out of finite operands: arithmetic, math, narrowing cast, dot, sum.
   Loads, stores, selects, minima, maxima, negation, widening and shape ops hand one on.
2. The row's mask is known; otherwise padding lanes may have been counted.
3. No earlier value of the kernel holds an infinity that explains it and is no finding itself. What
   explains what depends on the op: exp(x) is +inf by overflow or because of a +inf, log(x) is -inf
   because of a zero only.
4. For sums, differences and products that hold -inf only: the finite values seen before are large
   enough for an overflow. A running maximum starts at a constant -inf that no record shows, and
   `old_max - new_max` is -inf in the first iteration of every online softmax.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from ..records.model import Anomaly, Block, Row
from . import join
from .totals import STORED

KINDS = ("nan", "inf")
CAPACITY = 4096  # distinct findings a log keeps

# Ops of the arith and math dialects that never turn finite operands into an infinity.
_HANDS_ON = frozenset(
    [
        *("arith.select", "arith.constant", "arith.bitcast", "arith.negf", "arith.extf"),
        *("arith.maximumf", "arith.maxnumf", "arith.minimumf", "arith.minnumf"),
        *("math.absf", "math.copysign", "math.floor", "math.ceil", "math.trunc"),
        *("math.round", "math.roundeven"),
    ]
)
_TRITON_ARITHMETIC = frozenset(
    [
        *("tt.fp_to_fp", "tt.extern_elementwise", "tt.precise_divf", "tt.precise_sqrt"),
        *("tt.dot", "tt.dot_scaled"),
    ]
)
_SUMMED = re.compile(r"\b(?:cum)?sum\b")  # tt.reduce and tt.scan do not name their combination

# op -> (signs of operands that explain +inf, signs that explain -inf); other ops: any sign.
_KEEPS_SIGN = ("+", "-")
_EXPLAINED = {
    **dict.fromkeys(("arith.addf", "arith.truncf", "tt.fp_to_fp"), _KEEPS_SIGN),
    **dict.fromkeys(("tt.reduce", "tt.scan"), _KEEPS_SIGN),
    **dict.fromkeys(("math.exp", "math.exp2", "math.expm1"), ("+", "")),
    **dict.fromkeys(("math.log", "math.log2", "math.log10", "math.log1p"), ("+", "")),
    **dict.fromkeys(("math.sqrt", "tt.precise_sqrt"), ("+", "")),
    **dict.fromkeys(("math.rsqrt", "arith.sitofp", "arith.uitofp"), ("", "")),
}
_MAY_START_AT_MINUS_INF = frozenset(("arith.addf", "arith.subf", "arith.mulf", "math.fma"))
_LARGEST = {"fp16": 65504.0, "bf16": 3.3895313892515355e38, "fp32": 3.4028234663852886e38}


def findings(rows: Sequence[Row]) -> list[tuple[Row, str]]:
    """(row, kind) of every finding among the rows of one block, in op order; kind as in `KINDS`."""
    found: list[tuple[Row, str]] = []
    passed: set[str] = set()  # signs of infinities that were handed on, so far
    magnitude = 0.0  # largest finite magnitude so far
    for row in rows:
        if row.nan:
            found.append((row, "nan"))
        if row.posinf or row.neginf:
            if _new_infinity(row, passed, magnitude):
                found.append((row, "inf"))
            else:
                passed.update(_signs(row))
        if row.min is not None and row.max is not None:
            magnitude = max(magnitude, abs(row.min), abs(row.max))
    return found


def by_block(rows: Iterable[Row]) -> Iterator[list[Row]]:
    """Splits rows in the order of `join.rows` into the rows of each block."""
    block: list[Row] = []
    for row in rows:
        if block and (
            (row.site, row.kernel, row.call) != (block[-1].site, block[-1].kernel, block[-1].call)
            or row.op_id <= block[-1].op_id
        ):
            yield block
            block = []
        block.append(row)
    if block:
        yield block


class AnomalyLog:
    """Findings of a session, one `Anomaly` per (call site, op, kind), in bounded memory.

    Severity: a NaN is an "error" if a store or atomic of the same launches wrote a NaN, or if the
    kernel's stores were not recorded; otherwise it did not leave the kernel: "warning", or "info"
    where the mask is unknown and the NaN may sit in padding. An inf is a "warning". The severity
    rises if a later step is worse.

    `details["stored_nan"]` (nan only): whether a store of the same launches of the first step wrote
    a NaN; None if none was recorded. `launch`, `program`, `lane` and `iteration` are those of the
    value's first non-finite lane, which is not told apart by kind.

    `capacity`: distinct findings kept; `left_out` counts the sightings of others.
    """

    def __init__(self, capacity: int = CAPACITY) -> None:
        self.capacity = capacity
        self.left_out = 0
        self._kept: dict[tuple[Any, ...], Anomaly] = {}

    def __len__(self) -> int:
        return len(self._kept)

    def copy(self) -> AnomalyLog:
        """An independent log with the same findings."""
        other = AnomalyLog(self.capacity)
        other._kept = dict(self._kept)
        other.left_out = self.left_out
        return other

    def add(self, step: int, blocks: Iterable[Block]) -> None:
        """Takes in the findings of `blocks`, which hold launches of `step` not added before.

        A step may come in several calls: counts of the first step in which a finding was seen add
        up, and each block in which it is seen is one occurrence.
        """
        for block in blocks:
            records = block.records
            if not (records["nan"].any() or records["posinf"].any() or records["neginf"].any()):
                continue
            rows = join.rows(step, [block])
            stored_nan = _stored_nan(rows)
            for row, kind in findings(rows):
                self._put(_anomaly(step, block, row, kind, stored_nan))

    def anomalies(self) -> tuple[Anomaly, ...]:
        """NaN first, then inf; each by first launch, then by order of the ops in the kernel."""
        return tuple(sorted(self._kept.values(), key=_order))

    def _put(self, new: Anomaly) -> None:
        key = (new.site, new.kernel, new.op_id, new.op, new.line, new.variable, new.kind)
        old = self._kept.get(key)
        if old is None:
            if len(self._kept) < self.capacity:
                self._kept[key] = new
            else:
                self.left_out += 1
            return
        counts = old.counts
        if new.step == old.step:
            counts = MappingProxyType({name: n + new.counts[name] for name, n in counts.items()})
        self._kept[key] = dataclasses.replace(
            old,
            last_step=max(old.last_step, new.step),
            occurrences=old.occurrences + 1,
            severity=min(old.severity, new.severity, key=_SEVERITIES.index),
            counts=counts,
        )


_SEVERITIES = ("error", "warning", "info")


def _order(anomaly: Anomaly) -> tuple[Any, ...]:
    rank = KINDS.index(anomaly.kind) if anomaly.kind in KINDS else len(KINDS)
    return rank, anomaly.launch, anomaly.op_id, anomaly.kernel, anomaly.site


def _signs(row: Row) -> str:
    return "+" * (row.posinf > 0) + "-" * (row.neginf > 0)


def _makes_infinities(row: Row) -> bool:
    if row.role != "value":
        return False
    if row.op in ("tt.reduce", "tt.scan"):
        return _SUMMED.search(row.statement) is not None
    if row.op.startswith(("arith.", "math.")):
        return row.op not in _HANDS_ON
    return row.op in _TRITON_ARITHMETIC


def _new_infinity(row: Row, passed: set[str], magnitude: float) -> bool:
    """Whether the row's infinities count as new; see Note [Seen, not born]."""
    if row.mask == "unknown" or not _makes_infinities(row):
        return False
    for_plus, for_minus = _EXPLAINED.get(row.op, ("+-", "+-"))
    plus = row.posinf > 0 and passed.isdisjoint(for_plus)
    minus = row.neginf > 0 and passed.isdisjoint(for_minus)
    if minus and not row.posinf and row.op in _MAY_START_AT_MINUS_INF:
        reach = magnitude * (magnitude if row.op in ("arith.mulf", "math.fma") else 2.0)
        minus = reach > _LARGEST.get(row.dtype, float("inf"))
    return plus or minus


def _stored_nan(rows: Iterable[Row]) -> bool | None:
    wrote = [row.nan > 0 for row in rows if row.role in STORED and row.executions]
    return any(wrote) if wrote else None


def _severity(row: Row, kind: str, stored_nan: bool | None) -> str:
    if kind == "inf":
        return "warning"
    if stored_nan is None or stored_nan:
        return "error"
    return "info" if row.mask == "unknown" else "warning"


def _anomaly(step: int, block: Block, row: Row, kind: str, stored_nan: bool | None) -> Anomaly:
    first = block.firsts.get(row.op_id)
    program, iteration, lane = first[1:] if first is not None else (None, None, None)
    details: Mapping[str, Any] = {"stored_nan": stored_nan} if kind == "nan" else {}
    return Anomaly(
        kind=kind,
        verdict="seen",
        severity=_severity(row, kind, stored_nan),
        step=step,
        last_step=step,
        occurrences=1,
        launch=first[0] if first is not None else block.first_launch,
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
        cause=_cause(row, block),
        details=MappingProxyType(details),
    )


def _cause(row: Row, block: Block) -> str:
    pointer = block.table.ops[row.op_id].pointer
    through = f" through {pointer}" if pointer else ""
    return {
        "load": f"loaded{through}",
        "store": f"stored{through}",
        "atomic": f"written{through}",
    }.get(row.role, "")
