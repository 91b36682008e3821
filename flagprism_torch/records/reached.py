"""Where the accesses of a call site went, merged over launches (records.layout, Notes [Bounds] and
[Sample])."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from flagprism_torch.records import layout
from flagprism_torch.records.address_model import AccessEntry
from flagprism_torch.records.findings import place_of
from flagprism_torch.records.model import Launch, Outside, Sample

_LANES, _EXECUTIONS, _LOW, _HIGH, _PLACE, _OFFSET = range(6)
_FLAGS, _FIRST, _LAST, _STRIDES = range(4)


@dataclass
class _Merged:
    lanes: int
    executions: int
    low: int
    high: int
    first: Outside


class Reached:
    """Merges the bounds of accesses; costs nothing while all lanes are inside."""

    def __init__(self) -> None:
        self._known: dict[int, _Merged] = {}

    def add(self, launch: Launch, words: Any) -> None:
        """words: int64 [accesses, 6] of one launch."""
        for number in np.flatnonzero(words[:, _LANES]).tolist():
            one = _outside(launch, launch.table.accesses[number], words[number])
            known = self._known.get(number)
            if known is None:
                self._known[number] = _Merged(one.lanes, one.executions, one.low, one.high, one)
                continue
            known.lanes += one.lanes
            known.executions += one.executions
            known.low, known.high = min(known.low, one.low), max(known.high, one.high)
            if launch.number < known.first.launch.number:
                known.first = one

    def all(self) -> dict[int, Outside]:
        """Access -> its lanes outside, in order of the accesses."""
        return {
            number: Outside(
                known.lanes,
                known.executions,
                known.low,
                known.high,
                known.first.launch,
                known.first.program,
                known.first.iteration,
                known.first.lane,
                known.first.offset,
            )
            for number, known in sorted(self._known.items())
        }


def _outside(launch: Launch, access: AccessEntry, words: Any) -> Outside:
    found = layout.unpack_place(int(words[_PLACE]) % (1 << 64), access.numel)
    place = place_of(found[:3] if found else None, launch, access.shape)
    program, iteration, lane = place or (None, None, None)
    return Outside(
        int(words[_LANES]),
        int(words[_EXECUTIONS]),
        int(layout.min_of_key(int(words[_LOW]) % (1 << 64), "int64")),
        int(layout.value_of_key(int(words[_HIGH]) % (1 << 64), "int64")),
        launch,
        program,
        iteration,
        lane,
        layout.unpack_offset(int(words[_OFFSET]) % (1 << 64)),
    )


def samples(launch: Launch, words: Any) -> tuple[Sample, ...]:
    """words: int64 [accesses, 6] of one launch."""
    return tuple(
        _sample(launch, access, row)
        for access, row in zip(launch.table.accesses, words.tolist(), strict=True)
    )


def _sample(launch: Launch, access: AccessEntry, words: list[int]) -> Sample:
    flags = words[_FLAGS]
    measured = [
        words[_STRIDES + back] if extent > 1 else 0
        for back, extent in enumerate(access.shape[:-4:-1])
    ]
    return Sample(
        launch,
        words[_FIRST] if flags & layout.SAMPLE_FIRST else None,
        words[_LAST] if flags & layout.SAMPLE_LAST else None,
        tuple(measured[::-1]) if flags & layout.SAMPLE_STRIDES else None,
        bool(flags & layout.SAMPLE_EVEN),
    )
