"""What the checks of a call site found, merged over launches."""

from __future__ import annotations

from typing import Any

import numpy as np

from flagprism_torch.records.layout import CHECK_COUNTERS, PROGRAM_BITS, unpack_place
from flagprism_torch.records.model import Found, Launch


class Findings:
    """Merges check records (records.layout, Note [Check record]); costs nothing while they are
    zero."""

    def __init__(self) -> None:
        self._counts: dict[int, Any] = {}
        self._firsts: dict[tuple[int, int], Any] = {}  # (check, which place) -> place
        self._largest: dict[int, int] = {}

    def add(self, launch: Launch, words: Any) -> None:
        """words: int64 [checks, 6] of one launch."""
        for number in np.flatnonzero(words[:, :CHECK_COUNTERS].any(axis=1)).tolist():
            counts = words[number, :CHECK_COUNTERS]
            self._counts[number] = self._counts.get(number, 0) + counts
            check = launch.table.checks[number]
            if check.kind == "wrap":
                self._largest[number] = max(self._largest.get(number, 0), int(words[number, -1]))
            for which in (0,) if check.kind == "wrap" else (0, 1):
                packed = int(words[number, CHECK_COUNTERS + which]) % (1 << 64)
                found = unpack_place(packed, check.numel)
                known = self._firsts.get((number, which))
                if found is not None and (known is None or launch.number < known[0]):
                    place = place_of(found[:3], launch, check.shape) or (None, None, None)
                    self._firsts[number, which] = (launch.number, *place, found[3])

    def all(self) -> dict[int, Found]:
        """Check -> what it found, in order of the checks."""
        result = {}
        for number, counts in sorted(self._counts.items()):
            nan, posinf, neginf, padding = (int(n) for n in counts)
            nan_place, inf_place = (self._firsts.get((number, which)) for which in (0, 1))
            largest = self._largest.get(number, 0)
            result[number] = Found(nan, posinf, neginf, padding, nan_place, inf_place, largest)
        return result


def place_of(
    found: tuple[int, int | None, int] | None, launch: Launch, shape: tuple[int, ...]
) -> tuple[tuple[int, int, int], int | None, Any] | None:
    """((x, y, z), iteration, lane) of (linear program, iteration, row-major lane); None if there
    is no place or the program id did not fit."""
    if found is None or found[0] == (1 << PROGRAM_BITS) - 1:
        return None
    program, iteration, lane = found
    x, y, _ = launch.grid
    where = (program % x, program // x % y, program // (x * y))
    if len(shape) >= 2:
        return where, iteration, tuple(int(i) for i in np.unravel_index(lane, shape))
    return where, iteration, lane
