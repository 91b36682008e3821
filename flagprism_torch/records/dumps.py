"""Memory for full values: sized before a launch, copied after it, taken apart on the host.

Note [Dump buffer]
The memory of one launch, in this order, each part at a multiple of 16 bytes:
* the header, int64: whether anything is written, the offset of the counters in bytes; for each
  block the executions that there is room for; for each channel its offset in bytes, negative if it
  is not wanted;
* int32 per program: its row, negative for none (only where programs are selected);
* the counters, int64 [rows][blocks]: executions that took place, counted beyond the room too;
* the channels (records.full_model, Note [Channels]).
The header and the counters are set on the launch's stream, the rest is left as it comes: what no
program has written is known from the counters.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from . import native
from .full_model import FullPlan
from .modes import unseen

Array = np.ndarray[Any, Any]


def _up(nbytes: int) -> int:
    return -(-nbytes // 16) * 16


@dataclass(frozen=True)
class Room:
    """The size of everything in one launch's memory.

    `rows`: linear program ids that have a row; `mapped`: whether the launch tells programs their
    rows; `capacities`: executions per block; `wanted`: channels.
    """

    plan: FullPlan
    programs: int
    rows: Array
    mapped: bool
    capacities: tuple[int, ...]
    wanted: frozenset[int]

    @property
    def counters(self) -> int:
        """Offset of the counters."""
        return self.plan.header_bytes + (_up(4 * self.programs) if self.mapped else 0)

    def offsets(self) -> tuple[list[int], int]:
        """(offset of each channel, -1 for one that is not wanted; bytes of everything)."""
        at = self.counters + _up(8 * len(self.rows) * len(self.plan.blocks))
        found = []
        for number in range(len(self.plan.channels)):
            if number not in self.wanted:
                found.append(-1)
                continue
            found.append(at)
            at += _up(self.channel_bytes(number))
        return found, at

    def channel_bytes(self, number: int) -> int:
        channel = self.plan.channels[number]
        tile = channel.itemsize * channel.numel
        return len(self.rows) * self.capacities[channel.block] * tile

    @property
    def nbytes(self) -> int:
        return self.offsets()[1]

    def header(self) -> Array:
        """The words that the launch finds at the start of its memory, int32."""
        offsets, _ = self.offsets()
        words = np.zeros(self.counters // 4, np.int32)
        head = words[: 2 * self.plan.header].view(np.int64)
        head[:] = [1, self.counters, *self.capacities, *offsets]
        if self.mapped:
            rows = words[self.plan.header_bytes // 4 :][: self.programs]
            rows[:] = -1
            rows[self.rows] = np.arange(len(self.rows))
        return words


@dataclass
class Dump:
    """The memory of one launch, on its way. `note`: whatever the owner wants back."""

    room: Room
    buffer: torch.Tensor | None  # on the device, int32
    note: Any
    host: torch.Tensor | None = None
    event: Any = None


class Contents:
    """The arrays in a launch's memory."""

    def __init__(self, room: Room, host: torch.Tensor) -> None:
        self._room, self._bytes = room, host.numpy().view(np.uint8)
        self._offsets, _ = room.offsets()
        shape = (len(room.rows), len(room.plan.blocks))
        start = room.counters
        counted = self._bytes[start : start + 8 * shape[0] * shape[1]].view(np.int64).reshape(shape)
        self.executions = counted.copy()
        for number, block in enumerate(room.plan.blocks):
            if block.once:
                self.executions[:, number] = 1
        self._known: dict[int, Array] = {}

    def channel(self, number: int, dtype: np.dtype[Any], shape: Sequence[int]) -> Array:
        """[rows, executions, *shape] of a channel (a copy), zero where nothing was executed."""
        if number not in self._known:
            room = self._room
            block = room.plan.channels[number].block
            capacity, counts = room.capacities[block], self.executions[:, block]
            start = self._offsets[number]
            raw = self._bytes[start : start + room.channel_bytes(number)].view(dtype)
            whole = raw.reshape(len(room.rows), capacity, *shape)
            most = min(int(counts.max(initial=0)), capacity)
            kept = whole[:, :most].copy()
            kept[np.arange(most) >= counts[:, None]] = 0
            self._known[number] = kept
        return self._known[number]

    @property
    def nbytes(self) -> int:
        """Bytes of the channels that were asked for, and of the counters."""
        return self.executions.nbytes + sum(array.nbytes for array in self._known.values())


class DumpBuffers:
    """All memory for full values of a session. Nothing waits for the device, except `drain`.

    Args:
        consume: called with (dump, contents) once they are on the host, from whichever thread
            polls.
    """

    def __init__(self, consume: Callable[[Dump, Contents], None]) -> None:
        self._consume = consume
        self._flying: deque[Dump] = deque()
        self._off: dict[tuple[torch.device, int], torch.Tensor] = {}
        self._lock = threading.RLock()

    def off(self, plan: FullPlan, device: torch.device, stream: int) -> torch.Tensor:
        """Memory that tells a launch to write nothing. Raises RuntimeError if there is none."""
        key = (device, stream)
        words = 2 * plan.header
        with self._lock, unseen():
            known = self._off.get(key)
            if known is None or known.numel() < words:
                known = self._off[key] = native.new_buffer(max(words, 256), device)
        return known

    def reserve(self, room: Room, device: torch.device, note: Any) -> Dump:
        """The memory of a launch that is about to run on the device's current stream.

        Raises:
            RuntimeError: there is not so much.
        """
        with unseen(), torch.inference_mode(False):
            words = -(-room.nbytes // 4)
            buffer = torch.empty(words, dtype=torch.int32, device=device)
            head = torch.from_numpy(room.header())
            if device.type != "cpu":
                head = head.pin_memory()
            buffer[: head.numel()].copy_(head, non_blocking=True)
            counters = 2 * len(room.rows) * len(room.plan.blocks)
            buffer[head.numel() : head.numel() + counters].zero_()
        return Dump(room, buffer, note)

    def submit(self, dump: Dump) -> None:
        """Queue the copy of a launch that was queued. Raises RuntimeError if it cannot be had."""
        buffer, dump.buffer = dump.buffer, None
        assert buffer is not None
        if buffer.device.type == "cpu":
            dump.host = buffer
        else:
            with unseen(), torch.inference_mode(False):
                dump.host = native.copy_to_host(buffer)
                dump.event = torch.Event(buffer.device)
                dump.event.record(torch.accelerator.current_stream(buffer.device))
        with self._lock:
            self._flying.append(dump)

    def oldest_step(self, step_of: Callable[[Any], int]) -> int | None:
        """The earliest step of what has not arrived, None if there is nothing."""
        with self._lock:
            return min((step_of(dump.note) for dump in self._flying), default=None)

    def poll(self, wait: bool = False) -> None:
        """Consume what has arrived; `wait`: everything."""
        while True:
            with self._lock:
                if not self._flying:
                    return
                dump = self._flying[0]
                if dump.event is not None:
                    if wait:
                        dump.event.synchronize()
                    elif not dump.event.query():
                        return
                self._flying.popleft()
                assert dump.host is not None
                with unseen():
                    contents = Contents(dump.room, dump.host)
                self._consume(dump, contents)


def wanted_channels(plan: FullPlan, entries: Collection[int]) -> frozenset[int]:
    """The channels of some entries."""
    return frozenset(c for number in entries for c in plan.entries[number].channels)
