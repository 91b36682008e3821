"""Rows as TensorBoard scalars and histograms, one event per step.

Tags: `{module}/{phase}.{kernel}.{call}/L{line}.{variable}/{stat}` for one value and
`{module}/{phase}/{stat}` for a module; `stat` is live, nan, posinf, neginf, zero, min, max, mean,
l2 or hist. TensorBoard stores scalars as float32: counts above 2**24 are rounded, and finite values
beyond float32's range are shown as its largest value.
"""

from __future__ import annotations

import re
import sys
import tempfile
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from ..analysis.totals import Totals, merged, stored
from ..records.layout import HIST_BUCKETS, HIST_MAX_EXP, HIST_MIN_EXP
from ..records.model import Row

DETAILS = ("module", "kernel", "statement")
MAX_SERIES = 10_000  # values and modules with tags of their own, per writer
COUNTS = ("live", "nan", "posinf", "neginf", "zero")
MOMENTS = ("min", "max", "mean", "l2")

_FORBIDDEN = re.compile(r"[^A-Za-z0-9_.<>-]")
_FLOAT32_MAX = float(np.finfo(np.float32).max)


class TensorBoardWriter:
    """Writes the rows of each step into one event file in `logdir`.

    `detail`: "module" writes the statistics of each module over the values it stores, "kernel" each
    stored value, "statement" every value. A value with a NaN or an anomaly is always written, from
    then on, so that its chart shows when it recovers.

    The file grows by one event per step, which has at most `max_series` values and modules; what
    came later than that is counted in `left_out` (once a step). Nothing is kept in memory but the
    tags. Use as a context manager, or call `open` and `close`. Not thread-safe.

    Raises:
        ValueError: `detail` is none of `DETAILS`.
    """

    def __init__(self, logdir: Path, detail: str, *, max_series: int = MAX_SERIES) -> None:
        if detail not in DETAILS:
            raise ValueError(f"detail={detail!r} is not supported; allowed: {', '.join(DETAILS)}")
        self.logdir = Path(logdir)
        self.detail = detail
        self.left_out = 0
        self._max_series = max_series
        self._bases: dict[tuple[Any, ...], str] = {}
        self._taken: set[str] = set()
        self._file: Any = None
        self._closed = False

    def open(self) -> None:
        """Creates `logdir` and the event file. A second call does nothing.

        Raises:
            ImportError: tensorboard is not installed.
            OSError: `logdir` cannot be created or written (a PermissionError if that is why); the
                message names it.
            ValueError: the writer was closed.
        """
        if self._closed:
            raise ValueError(f"the TensorBoard writer for {self.logdir} is closed")
        if self._file is not None:
            return
        try:
            from tensorboard.summary.writer.event_file_writer import EventFileWriter
        except ImportError as error:
            raise ImportError(
                "writing TensorBoard files needs tensorboard (pip install tensorboard); "
                "logdir=False writes none"
            ) from error
        try:
            self.logdir.mkdir(parents=True, exist_ok=True)
            # EventFileWriter would meet a folder it cannot write to in a thread of its own
            # (tensorboard/summary/writer/event_file_writer.py, _AsyncWriterThread).
            with tempfile.TemporaryFile(dir=self.logdir):
                pass
        except OSError as error:
            raise OSError(
                error.errno,
                f"TensorBoard files cannot be written to logdir ({error.strerror})",
                str(self.logdir),
            ) from error
        self._file = EventFileWriter(str(self.logdir))

    def write(
        self, step: int, rows: Iterable[Row], anomalous: Collection[tuple[str, str, int]] = ()
    ) -> None:
        """Adds the statistics of `rows`, in the order of `analysis.join.rows`, at x = `step`.
        `anomalous`: (site, kernel, op id) of values with an anomaly.

        Opens the file if need be, with the errors of `open`.
        """
        self.open()
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary

        summary = Summary()
        for base, what in self._series(list(rows), anomalous):
            _add(summary, base, what)
        if summary.value:
            self._file.add_event(Event(wall_time=time.time(), step=step, summary=summary))

    def flush(self) -> None:
        """Waits until everything written so far is in the file."""
        if self._file is not None:
            self._file.flush()

    def close(self) -> None:
        """Writes what is pending and closes the file. A second call does nothing."""
        self._closed = True
        if self._file is not None:
            self._file.close()
            self._file = None

    def __enter__(self) -> TensorBoardWriter:
        self.open()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _series(
        self, rows: list[Row], anomalous: Collection[tuple[str, str, int]]
    ) -> Iterator[tuple[str, Row | Totals]]:
        """(tag without its stat, statistics) of everything to write."""
        if self.detail == "module":
            groups: dict[tuple[str, str], list[Row]] = {}
            for row in stored(rows):
                groups.setdefault((row.module, row.phase), []).append(row)
            for (module, phase), members in groups.items():
                base = self._base(("module", module, phase), [module, phase], "")
                if base is not None:
                    yield base, merged(members)
        for row in self._chosen(rows, anomalous):
            parts = [
                row.module,
                f"{row.phase}.{row.kernel}.{row.call}",
                f"L{row.line}.{row.variable or row.op.rpartition('.')[2]}",
            ]
            base = self._base(_identity(row), parts, f".op{row.op_id}")
            if base is not None:
                yield base, row

    def _chosen(self, rows: list[Row], anomalous: Collection[tuple[str, str, int]]) -> list[Row]:
        if self.detail == "statement":
            return rows
        wanted = {
            id(row) for row in rows if row.nan or (row.site, row.kernel, row.op_id) in anomalous
        }
        if self.detail == "kernel":
            wanted |= {id(row) for row in stored(rows)}
        return [row for row in rows if id(row) in wanted or _identity(row) in self._bases]

    def _base(self, identity: tuple[Any, ...], parts: Sequence[str], suffix: str) -> str | None:
        """The tag of `identity`, of its own even where two names read the same once sanitised.

        The first keeps the plain tag; the tag of an identity never changes.
        """
        known = self._bases.get(identity)
        if known is not None:
            return known
        if len(self._bases) >= self._max_series:
            self.left_out += 1
            return None
        plain = "/".join(_FORBIDDEN.sub("_", part) or "_" for part in parts)
        base, number = plain, 2
        if base in self._taken and suffix:
            base = plain = plain + suffix
        while base in self._taken:
            base = f"{plain}.{number}"
            number += 1
        self._taken.add(base)
        self._bases[identity] = base
        return base


def buckets(
    histogram: Sequence[int], zero: int, low: float, high: float
) -> tuple[list[float], list[int]]:
    """(right edges, counts) of the non-empty range of a row's histogram, ascending.

    The binades below 2**-23 of either sign and the zeros are one bucket around 0. Edges are clipped
    to [`low`, `high`]; the left edge of the first bucket is `low`, the right edge of the last is
    `high`. Both lists are empty if nothing was counted.
    """
    half = HIST_BUCKETS // 2
    negative = [-(2.0**e) for e in range(HIST_MAX_EXP, HIST_MIN_EXP, -1)]
    positive = [2.0 ** (e + 1) for e in range(HIST_MIN_EXP, HIST_MAX_EXP)] + [high]
    edges = negative + positive
    counts = list(histogram)
    around = counts[half - 1] + zero + counts[half]
    counts = [*counts[: half - 1], around, *counts[half + 1 :]]
    filled = [index for index, count in enumerate(counts) if count]
    if not filled:
        return [], []
    first, last = filled[0], filled[-1]
    limits = [min(max(edge, low), high) for edge in edges[first:last]]
    return [*limits, high], counts[first : last + 1]


def _identity(row: Row) -> tuple[Any, ...]:
    return (row.site, row.kernel, row.call, row.op_id, row.op, row.line, row.variable, row.module,
            row.phase)  # fmt: skip


def _add(summary: Any, base: str, what: Row | Totals) -> None:
    for stat in COUNTS + MOMENTS:
        value = getattr(what, stat)
        if value is not None:
            summary.value.add(tag=f"{base}/{stat}", simple_value=_as_float32(value))
    if what.histogram is None or what.min is None or what.max is None:
        return
    low, high = float(what.min), float(what.max)
    limits, counts = buckets(what.histogram, what.zero, low, high)
    if not counts:
        return
    histo = summary.value.add(tag=f"{base}/hist").histo
    histo.min, histo.max, histo.num = low, high, sum(counts)
    histo.sum = (what.mean or 0.0) * histo.num
    histo.sum_squares = _square(what.l2 or 0.0)
    histo.bucket_limit.extend(limits)
    histo.bucket.extend(counts)


def _as_float32(value: float) -> float:
    return (
        float(value)
        if abs(value) == np.inf
        else max(-_FLOAT32_MAX, min(float(value), _FLOAT32_MAX))
    )


def _square(value: float) -> float:
    return min(value * value, sys.float_info.max)
