"""Several rows as one: the statistics that a module or a step leaves as a whole."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ..records.model import Row

STORED = ("store", "atomic")


@dataclass(frozen=True)
class Totals:
    """Merged statistics of `values` rows; fields as in `Row`. Exact where those of the rows are."""

    values: int
    live: int
    nan: int
    posinf: int
    neginf: int
    zero: int
    min: float | int | None
    max: float | int | None
    mean: float | None
    l2: float | None
    histogram: tuple[int, ...] | None

    @property
    def finite(self) -> int:
        """Finite live lanes."""
        return self.live - self.nan - self.posinf - self.neginf


def stored(rows: Iterable[Row]) -> list[Row]:
    """The rows of values that a kernel writes to memory (stores and atomics)."""
    return [row for row in rows if row.role in STORED]


def merged(rows: Sequence[Row]) -> Totals:
    """One `Totals` for `rows`: counts add up, the mean is weighted by finite live lanes, l2 is the
    root of the sum of squares. A histogram is there only if every row with a finite lane has one.
    """
    finite = [(row, row.live - row.nonfinite) for row in rows if row.live > row.nonfinite]
    lanes = sum(count for _, count in finite)
    mean: float | None = None
    if finite and all(row.mean is not None for row, _ in finite):
        mean = math.fsum((row.mean or 0.0) * (count / lanes) for row, count in finite)
    histograms = [row.histogram for row, _ in finite if row.histogram is not None]
    histogram: tuple[int, ...] | None = None
    if finite and len(histograms) == len(finite):
        histogram = tuple(map(sum, zip(*histograms, strict=True)))
    return Totals(
        values=len(rows),
        live=sum(row.live for row in rows),
        nan=sum(row.nan for row in rows),
        posinf=sum(row.posinf for row in rows),
        neginf=sum(row.neginf for row in rows),
        zero=sum(row.zero for row in rows),
        min=min((row.min for row, _ in finite if row.min is not None), default=None),
        max=max((row.max for row, _ in finite if row.max is not None), default=None),
        mean=mean,
        l2=math.hypot(*(row.l2 for row, _ in finite if row.l2 is not None)) if finite else None,
        histogram=histogram,
    )
