"""The ledger: folded records of all launches, merged per step and over the whole session.

Memory does not grow with launches or steps: a step keeps one `Block` per call site and op table,
the last `KEPT_STEPS` steps are kept, older ones live on only in the total.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
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
from flagprism_torch.records.model import Block, Launch
from flagprism_torch.records.modes import unseen

KEPT_STEPS = 16
_Key = tuple[str, str, int]


class _Merged:
    """Merged records of one call site and op table; `records` are those on the device."""

    def __init__(self, launch: Launch) -> None:
        self.site, self.table = launch.site, launch.table
        records, histograms = launch.table.records, launch.table.histograms
        cpu = torch.device("cpu")  # whatever torch.set_default_device says
        self.records = torch.zeros(records, RECORD_WORDS, dtype=torch.int32, device=cpu)
        self.histograms = torch.zeros(histograms, HIST_BUCKETS, dtype=torch.int64, device=cpu)
        self.index = torch.arange(records, device=cpu)
        self.histogram_index = torch.arange(histograms, device=cpu)
        self.launches = 0
        self.first_launch = launch.number
        self.firsts: dict[int, tuple[int, tuple[int, int, int], int | None, Any]] = {}
        self.found = Findings()

    def add(self, launch: Launch, words: torch.Tensor) -> None:
        table = self.table
        records = words[: table.records * RECORD_WORDS].view(table.records, RECORD_WORDS)
        native.merge(records, self.index, self.records)
        end = records.numel() + len(table.checks) * CHECK_WORDS
        if table.checks:
            found = np.frombuffer(words[records.numel() : end].numpy().tobytes(), "<i8")
            self.found.add(launch, found.reshape(len(table.checks), CHECK_WORDS // 2))
        if table.histograms:
            counts = words[end:].contiguous().view(torch.int64)
            counts = counts.view(table.histograms, HIST_BUCKETS)
            native.merge_histograms(counts, self.histogram_index, self.histograms)
        self.launches += 1
        self.first_launch = min(self.first_launch, launch.number)
        places = np.frombuffer(records.numpy().tobytes(), RECORD_DTYPE)["first"]
        for op in table.ops if places.any() else ():
            known = self.firsts.get(op.op_id)
            if places[op.record] and (known is None or launch.number < known[0]):
                place = place_of(unpack_first(int(places[op.record]), op.numel), launch, op.shape)
                if place is not None:
                    self.firsts[op.op_id] = (launch.number, *place)

    def block(self) -> Block:
        order = [op.record for op in self.table.ops]
        data = np.frombuffer(self.records.numpy().tobytes(), RECORD_DTYPE)[order]
        return Block(
            site=self.site,
            table=self.table,
            records=data,
            histograms=self.histograms.numpy().copy(),
            launches=self.launches,
            first_launch=self.first_launch,
            firsts=dict(self.firsts),
            found=self.found.all(),
        )


class Ledger:
    """Merges launches; thread-safe."""

    def __init__(self) -> None:
        self._steps: OrderedDict[int, dict[_Key, _Merged]] = OrderedDict()
        self._total: dict[_Key, _Merged] = {}
        self._lock = threading.RLock()

    def add(self, launch: Launch, words: torch.Tensor) -> None:
        """Merge the folded words of one launch (records.buffers.words_of)."""
        key = (launch.site.key, launch.table.kernel, id(launch.table))
        with self._lock:
            step = self._steps.setdefault(launch.step, {})
            for blocks in (step, self._total):
                if key not in blocks:
                    with torch.inference_mode(False):  # merged into later, in any mode
                        blocks[key] = _Merged(launch)
                blocks[key].add(launch, words)
            while len(self._steps) > KEPT_STEPS:
                self._steps.popitem(last=False)

    def steps(self) -> list[int]:
        with self._lock:
            return list(self._steps)

    def blocks(self, step: int | None = None) -> list[Block]:
        """Blocks of one kept step, or of everything; in order of first launch.

        Raises:
            KeyError: if the step is not kept any more.
        """
        with self._lock, unseen():
            found = self._total if step is None else self._steps[step]
            return sorted((m.block() for m in found.values()), key=lambda b: b.first_launch)
