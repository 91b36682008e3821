"""The ledger: folded records of all launches, merged per step and over the whole session.

Memory does not grow with launches or steps: a step keeps one `Block` per call site and op table,
the last `KEPT_STEPS` steps are kept, older ones live on only in the total.

Note [Batches]
Records arrive by the hundred, one copy for all launches since the last. They are merged by one call
of the C++ extension for the step and one for the total; Python only looks at a launch alone if a
lane of it was non-finite or a check found something.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

import numpy as np
import torch

from flagprism_torch.records import native
from flagprism_torch.records.findings import Findings, place_of
from flagprism_torch.records.layout import (
    CHECK_WORDS,
    HIST_BUCKETS,
    RECORD_DTYPE,
    RECORD_WORDS,
    unpack_first,
)
from flagprism_torch.records.model import Block, CallSite, Launch, OpTable, Sample
from flagprism_torch.records.modes import unseen
from flagprism_torch.records.reached import Reached, samples

KEPT_STEPS = 16
_Key = tuple[str, str, int]
Place = tuple[int, tuple[int, int, int], int | None, Any]


class _Rows:
    """Merged rows of many call sites: an array that grows, and who owns which rows."""

    def __init__(self, width: int, dtype: Any) -> None:
        self.data = np.zeros((64, width), dtype)
        self.used = 0

    def reserve(self, count: int) -> Any:
        """Indices of `count` new rows, all zero."""
        first, self.used = self.used, self.used + count
        while self.used > len(self.data):
            self.data = np.concatenate([self.data, np.zeros_like(self.data)])
        return np.arange(first, self.used)


@dataclass
class _Merged:
    """One call site and op table. `rows`, `buckets`: indices of its records, as they are on the
    device, and of its histograms."""

    site: CallSite
    table: OpTable
    rows: Any
    buckets: Any
    first_launch: int
    launches: int = 0
    firsts: dict[int, Place] = field(default_factory=dict)
    found: Findings = field(default_factory=Findings)
    reached: Reached = field(default_factory=Reached)
    samples: tuple[Sample, ...] = ()


@dataclass
class _Batch:
    """Launches of one step with their words, put together by kind of word."""

    launches: list[Launch]
    records: Any  # int32 [n, 24]
    checks: Any  # int64 [m, 6], of checks and bounds
    samples: list[Any]  # int32 [a * 12] of each launch with a accesses
    counts: Any  # int64 [k, 64]

    @classmethod
    def of(cls, launches: Sequence[tuple[Launch, int]], words: Any) -> _Batch:
        records, checks, samples, counts = [], [], [], []
        for launch, start in launches:
            table = launch.table
            a = start + table.records * RECORD_WORDS
            b = a + table.check_records * CHECK_WORDS
            records.append(words[start:a])
            c = a + table.sample(0) * CHECK_WORDS
            checks.append(words[a:c])
            samples.append(words[c:b])
            counts.append(words[b : b + table.histograms * HIST_BUCKETS * 2])
        return cls(
            [launch for launch, _ in launches],
            np.concatenate(records).reshape(-1, RECORD_WORDS),
            np.concatenate(checks).view("<i8").reshape(-1, CHECK_WORDS // 2),
            samples,
            np.concatenate(counts).view("<i8").reshape(-1, HIST_BUCKETS),
        )

    def notable(self) -> list[tuple[int, Launch, Any, Any]]:
        """(index, launch, its packed places [records], its checks) of launches with a non-finite
        lane or a finding."""
        places = self.records.view(RECORD_DTYPE)["first"].reshape(-1)
        if not places.any() and not self.checks.any():
            return []
        found, row, check = [], 0, 0
        for index, launch in enumerate(self.launches):
            mine = places[row : row + launch.table.records]
            checks = self.checks[check : check + launch.table.sample(0)]
            row, check = row + len(mine), check + len(checks)
            if mine.any() or checks.any():
                found.append((index, launch, mine, checks))
        return found


class _Period:
    """All call sites over one step, or over the session."""

    def __init__(self) -> None:
        self.sites: dict[_Key, _Merged] = {}
        self.records = _Rows(RECORD_WORDS, np.int32)
        self.histograms = _Rows(HIST_BUCKETS, np.int64)

    def add(self, batch: _Batch, notable: Sequence[tuple[int, Launch, Any, Any]]) -> None:
        sites = [self._site(launch) for launch in batch.launches]
        _merge(native.merge, batch.records, [site.rows for site in sites], self.records)
        if len(batch.counts):
            buckets = [site.buckets for site in sites]
            _merge(native.merge_histograms, batch.counts, buckets, self.histograms)
        for site, launch, words in zip(sites, batch.launches, batch.samples, strict=True):
            if len(words) and not site.samples:
                rows = words.view("<i8").reshape(-1, CHECK_WORDS // 2)
                site.samples = samples(launch, rows)
        for index, launch, places, checks in notable:
            own = len(launch.table.checks)
            sites[index].found.add(launch, checks[:own])
            sites[index].reached.add(launch, checks[own:])
            if places.any():
                _keep_firsts(sites[index].firsts, launch, places)

    def _site(self, launch: Launch) -> _Merged:
        table = launch.table
        key = (launch.site.key, table.kernel, id(table))
        site = self.sites.get(key)
        if site is None:
            rows = self.records.reserve(table.records)
            buckets = self.histograms.reserve(table.histograms)
            site = self.sites[key] = _Merged(launch.site, table, rows, buckets, launch.number)
        site.launches += 1
        site.first_launch = min(site.first_launch, launch.number)
        return site

    def blocks(self) -> list[Block]:
        records = self.records.data.view(RECORD_DTYPE).reshape(-1)
        made = [
            Block(
                site=site.site,
                table=site.table,
                records=records[site.rows[site.table.order]],
                histograms=self.histograms.data[site.buckets],
                launches=site.launches,
                first_launch=site.first_launch,
                firsts=dict(site.firsts),
                found=site.found.all(),
                access_records=records[site.rows[site.table.access_order]],
                outside=site.reached.all(),
                samples=site.samples,
            )
            for site in self.sites.values()
        ]
        return sorted(made, key=lambda block: block.first_launch)


def _merge(native_merge: Any, new: Any, index: Sequence[Any], rows: _Rows) -> None:
    native_merge(
        torch.from_numpy(new),
        torch.from_numpy(np.concatenate(index)),
        torch.from_numpy(rows.data),
    )


def _keep_firsts(firsts: dict[int, Place], launch: Launch, places: Any) -> None:
    for op in launch.table.ops:
        known = firsts.get(op.op_id)
        if places[op.record] and (known is None or launch.number < known[0]):
            place = place_of(unpack_first(int(places[op.record]), op.numel), launch, op.shape)
            if place is not None:
                firsts[op.op_id] = (launch.number, *place)


class Ledger:
    """Merges launches; thread-safe."""

    def __init__(self) -> None:
        self._steps: OrderedDict[int, _Period] = OrderedDict()
        self._total = _Period()
        self._lock = threading.RLock()

    def add(self, launches: Sequence[tuple[Launch, int]], words: torch.Tensor) -> None:
        """Merge the folded words of launches (records.buffers.words_of), each from its place in
        `words`, an int32 host tensor."""
        with self._lock, unseen():
            data = words.numpy()
            for step, group in groupby(launches, lambda each: each[0].step):
                batch = _Batch.of(list(group), data)
                notable = batch.notable()
                for period in (self._steps.setdefault(step, _Period()), self._total):
                    period.add(batch, notable)
            while len(self._steps) > KEPT_STEPS:
                del self._steps[min(self._steps)]

    def steps(self) -> list[int]:
        with self._lock:
            return list(self._steps)

    def blocks(self, step: int | None = None) -> list[Block]:
        """Blocks of one kept step, or of everything; in order of first launch.

        Raises:
            KeyError: if the step is not kept any more.
        """
        with self._lock:
            return (self._total if step is None else self._steps[step]).blocks()
