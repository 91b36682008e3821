"""Buffers of the watch (level 0): launches leave something only if they met a non-finite value.

Note [Regions]
A launch of the watch writes to check records and only if there is something to say. So all launches
of one call site, table and grid share one region of memory; nothing is folded or cleared between
them. `submit` queues one copy of all regions that were in use, and clears them, in stream order.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any

import torch

from flagprism_torch.records import native
from flagprism_torch.records.buffers import (
    NoBufferError,
    RecordBuffers,
    _current,
    _Stream,
    words_of,
)
from flagprism_torch.records.model import Launch, OpTable
from flagprism_torch.records.modes import unseen

ARENA_WORDS = 1 << 16


@dataclass
class _Arena:
    """The regions of a stream: key -> (offset in words, its memory); `used` since the last copy."""

    regions: dict[Hashable, tuple[int, torch.Tensor]] = field(default_factory=dict)
    used: set[Hashable] = field(default_factory=set)


class WatchBuffers(RecordBuffers):
    """All regions of a session; arguments as of RecordBuffers."""

    def __init__(self, consume: Any, lost: Any) -> None:
        super().__init__(consume, lost)
        self._arenas: dict[int, _Arena] = {}

    def watch(
        self,
        key: Hashable,
        table: OpTable,
        note: Callable[[], Launch],
        device: torch.device,
        stream: int,
        call: Callable[[torch.Tensor], Any],
    ) -> Any:
        """Run `call(region)`.

        Args:
            key: of the region; launches with one key have the same table and grid.
            note: the launch that stands for all of the region, made at its first since the last
                copy.

        Raises:
            NoBufferError: there is no memory; nothing was launched.
        """
        owner = self._stream(device, stream)
        with owner.lock:
            arena = self._arenas.setdefault(id(owner), _Arena())
            region = arena.regions.get(key)
            if region is None:
                try:
                    with unseen():
                        region = self._reserve(owner, arena, key, words_of(table))
                except RuntimeError as error:
                    raise NoBufferError(str(error).split("\n")[0]) from error
            result = call(region[1])
            if key not in arena.used:
                arena.used.add(key)
                owner.launches.append((note(), region[0]))
        return result

    def _reserve(
        self, owner: _Stream, arena: _Arena, key: Hashable, words: int
    ) -> tuple[int, torch.Tensor]:
        if owner.folded is None or owner.used + words > owner.folded.numel():
            self._submit(owner)
            owner.folded, owner.used = None, 0
            arena.regions.clear()
            owner.folded = native.new_buffer(max(ARENA_WORDS, words), owner.device)
        offset, owner.used = owner.used, owner.used + words
        arena.regions[key] = offset, owner.folded[offset : owner.used]
        return arena.regions[key]

    def _submit(self, owner: _Stream) -> None:
        """Queue the copy of what was in use, and clear it behind that."""
        used, folded = owner.used, owner.folded
        if not owner.launches or folded is None:
            return
        super()._submit(owner)
        owner.used = used
        self._arenas[id(owner)].used.clear()
        if owner.stream is None:
            folded[:used].zero_()
            return
        with _current(owner.stream):
            folded[:used].zero_()
