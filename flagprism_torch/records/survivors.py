"""Record buffers that outlive the device: records of launches that may end in a crash.

Note [Surviving]
After an illegal access or a failed assertion a device context is lost, and with it all its memory.
So each launch writes into host memory of its own that the device reaches over the bus (pinned; on
the CPU, plain memory). What a launch left is folded on the host: once its event says that it is
done, or when the device has failed, with whatever stands there. Words that its programs left behind
them (instrument.trace) tell how far each one came.

What is in flight is limited: beyond `capacity` bytes a launch waits for the oldest one. This is the
one place where the tool waits for the device while the program runs.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from flagprism_torch.records import native
from flagprism_torch.records.buffers import HIST_WORDS, NoBufferError, words_of
from flagprism_torch.records.layout import CHECK_WORDS, HIST_SHARDS, RECORD_WORDS
from flagprism_torch.records.model import Launch, TracePoint
from flagprism_torch.records.modes import unseen

CAPACITY = 512 << 20
_MAPPED = ("cuda",)  # devices that reach pinned host memory under its own address; HIP is one


@dataclass(frozen=True)
class Crash:
    """A launch that did not end. `reached`: where its programs stood -> (how many, smallest linear
    program id); None: programs that had not come to a point, or never began."""

    launch: Launch
    reason: str
    reached: dict[TracePoint | None, tuple[int, int]]


@dataclass
class _Flight:
    launch: Launch
    buffer: torch.Tensor  # int32, host
    rows: int
    event: Any  # None on the CPU


class HostBuffers:
    """All record buffers of a session that is to survive a crash; used like
    `records.buffers.RecordBuffers`.

    Args:
        consume, lost: as there.
        crashed: called with each launch that did not end.
        capacity: bytes in flight.
    """

    def __init__(
        self,
        consume: Callable[[list[tuple[Launch, int]], torch.Tensor], None],
        lost: Callable[[Launch, str], None],
        crashed: Callable[[Crash], None],
        capacity: int = CAPACITY,
    ) -> None:
        self._consume, self._lost, self._crashed = consume, lost, crashed
        self._capacity = capacity
        self._flying: list[_Flight] = []
        self._free: list[torch.Tensor] = []
        self._abandoned: list[torch.Tensor] = []  # the device may still write to them
        self._bytes = 0
        self._lock = threading.RLock()

    def launch(
        self,
        note: Launch,
        device: torch.device,
        stream: int,
        slots: int,
        call: Callable[[torch.Tensor], Any],
    ) -> Any:
        """Reserve host memory, run `call(memory)`, note the launch.

        Raises:
            NoBufferError: there is no memory for the records, or the device does not reach it;
                nothing was launched.
        """
        rows = slots or note.programs
        words = _scratch_words(note, rows)
        with self._lock:
            buffer = self._take(words, device)
            flight = _Flight(note, buffer, rows, None)
            try:
                result = call(buffer)
            except BaseException as error:
                if note.programs:
                    self._stopped(flight, str(error).split("\n")[0])
                raise
            if note.programs == 0:
                self._give(buffer)
                return result
            if device.type != "cpu":
                flight.event = torch.Event(device)
                flight.event.record(torch.accelerator.current_stream(device))
            self._flying.append(flight)
            if device.type == "cpu":
                self.poll()
        return result

    def submit(self) -> None:
        """Records are on the host already."""

    def poll(self) -> None:
        """Consume launches that are done."""
        with self._lock:
            try:
                done = [f for f in self._flying if f.event is None or f.event.query()]
            except RuntimeError as error:
                self._salvage(str(error).split("\n")[0])
                return
            for flight in done:
                self._finish(flight)

    def oldest_step(self) -> int | None:
        """The earliest step with records that are not consumed yet, None if there are none."""
        with self._lock:
            return min((flight.launch.step for flight in self._flying), default=None)

    def drain(self) -> None:
        """Wait for every launch; if the device failed, take what there is."""
        with self._lock:
            try:
                for flight in self._flying:
                    if flight.event is not None:
                        flight.event.synchronize()
            except RuntimeError as error:
                self._salvage(str(error).split("\n")[0])
                return
            except KeyboardInterrupt:  # a program that hangs: what it wrote so far
                self._salvage("interrupted while the device was running")
                raise
            for flight in list(self._flying):
                self._finish(flight)

    # -- inside

    def _take(self, words: int, device: torch.device) -> torch.Tensor:
        """A zeroed host tensor of at least `words` words."""
        if device.type != "cpu" and device.type not in _MAPPED:
            raise NoBufferError(f"{device.type} does not reach host memory")
        while self._flying and self._bytes + 4 * words > self._capacity:
            oldest = self._flying[0]
            if oldest.event is not None:
                oldest.event.synchronize()
            self._finish(oldest)
        found = next((b for b in self._free if b.numel() >= words), None)
        if found is not None:
            self._free = [b for b in self._free if b is not found]
            return found
        try:
            with unseen(), torch.inference_mode(False):
                made = torch.zeros(
                    max(words, 1 << 14), dtype=torch.int32, pin_memory=device.type != "cpu"
                )
        except RuntimeError as error:
            raise NoBufferError(str(error).split("\n")[0]) from error
        self._bytes += 4 * made.numel()
        return made

    def _give(self, buffer: torch.Tensor) -> None:
        with unseen():
            buffer.zero_()
        self._free.append(buffer)

    def _finish(self, flight: _Flight) -> None:
        """Consume a launch that is done."""
        self._flying = [other for other in self._flying if other is not flight]
        self._hand_on(flight)
        self._give(flight.buffer)

    def _hand_on(self, flight: _Flight) -> None:
        try:
            with unseen():
                folded = _folded(flight)
        except RuntimeError as error:
            self._lost(flight.launch, str(error).split("\n")[0])
            return
        self._consume([(flight.launch, 0)], folded)

    def _salvage(self, reason: str) -> None:
        """The device failed: take what every launch in flight has written."""
        flying, self._flying = self._flying, []
        for flight in flying:
            self._stopped(flight, reason)

    def _stopped(self, flight: _Flight, reason: str) -> None:
        """Take what a launch has written that may not have ended."""
        self._abandoned.append(flight.buffer)
        reached = _reached(flight)
        if set(reached) == {None}:  # it never began
            self._lost(flight.launch, f"not run: {reason}")
            return
        self._hand_on(flight)
        if not all(point is not None and point.is_end for point in reached):
            self._crashed(Crash(flight.launch, reason, reached))


def _scratch_words(note: Launch, rows: int) -> int:
    """Words of a launch: as in records.buffers, then a word per program."""
    return _trace_start(note, rows) + (note.programs if note.table.trace else 0)


def _trace_start(note: Launch, rows: int) -> int:
    table = note.table
    shards = table.histograms * HIST_SHARDS * HIST_WORDS
    return shards + table.check_records * CHECK_WORDS + rows * table.records * RECORD_WORDS


def _folded(flight: _Flight) -> torch.Tensor:
    """The folded words of a launch, as records.buffers leaves them."""
    table, scratch, rows = flight.launch.table, flight.buffer, flight.rows
    out = torch.zeros(words_of(table), dtype=torch.int32)
    shards = table.histograms * HIST_SHARDS * HIST_WORDS
    begin = shards + table.check_records * CHECK_WORDS
    records = table.records * RECORD_WORDS
    body = scratch[begin : begin + rows * records]
    native.fold(body, out[:records], rows, table.records)
    end = records + begin - shards
    out[records:end].copy_(scratch[shards:begin])
    if table.histograms:
        block = scratch[:shards].view(torch.int64)
        out[end:].view(torch.int64).copy_(block.view(HIST_SHARDS, -1).sum(0))
    return out


def _reached(flight: _Flight) -> dict[TracePoint | None, tuple[int, int]]:
    """Where the programs of a launch stood."""
    launch, points = flight.launch, flight.launch.table.trace
    start = _trace_start(launch, flight.rows)
    words = flight.buffer[start : start + launch.programs].numpy()
    found: dict[TracePoint | None, tuple[int, int]] = {}
    for number, count in sorted(Counter(words.tolist()).items()):
        point = points[number - 1] if 0 < number <= len(points) else None
        first = int(np.flatnonzero(words == number)[0])
        known = found.get(point, (0, first))
        found[point] = known[0] + count, min(known[1], first)
    return found
