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
from flagprism_torch.records.layout import (
    HIST_BUCKETS,
    PROGRAM_BITS,
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

    def add(self, launch: Launch, words: torch.Tensor) -> None:
        table = self.table
        records = words[: table.records * RECORD_WORDS].view(table.records, RECORD_WORDS)
        native.merge(records, self.index, self.records)
        if table.histograms:
            counts = words[table.records * RECORD_WORDS :].contiguous().view(torch.int64)
            counts = counts.view(table.histograms, HIST_BUCKETS)
            native.merge_histograms(counts, self.histogram_index, self.histograms)
        self.launches += 1
        self.first_launch = min(self.first_launch, launch.number)
        places = np.frombuffer(records.numpy().tobytes(), RECORD_DTYPE)["first"]
        for op in table.ops if places.any() else ():
            known = self.firsts.get(op.op_id)
            if places[op.record] and (known is None or launch.number < known[0]):
                place = _place(int(places[op.record]), launch.grid, op.shape)
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
        )


def _place(
    first: int, grid: tuple[int, int, int], shape: tuple[int, ...]
) -> tuple[tuple[int, int, int], int | None, Any] | None:
    """((x, y, z), iteration, lane) of a packed place; None if the program id did not fit."""
    numel = int(np.prod(shape, dtype=np.int64)) if shape else 1
    found = unpack_first(first, numel)
    if found is None or found[0] == (1 << PROGRAM_BITS) - 1:
        return None
    program, iteration, lane = found
    x, y, _ = grid
    where = (program % x, program // x % y, program // (x * y))
    if len(shape) >= 2:
        return where, iteration, tuple(int(i) for i in np.unravel_index(lane, shape))
    return where, iteration, lane


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
