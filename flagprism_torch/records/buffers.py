"""Record buffers: reserve, fold, submit, poll. No call here waits for the device, except `drain`.

Note [Buffer lifetime]
All buffers of a (device, stream) pair are allocated, written, folded and copied on that stream, so
stream order is the only synchronisation: scratch is reused by the next launch (the fold leaves it
zero, as every launch needs it), and the folded area after its copy was queued. Launches of one
stream are serialised by a lock, because a twin and its fold must not be separated by another
thread's twin.
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from flagprism_torch.records import native
from flagprism_torch.records.layout import (
    CHECK_WORDS,
    HIST_BUCKETS,
    HIST_SHARDS,
    RECORD_WORDS,
)
from flagprism_torch.records.model import Launch, OpTable
from flagprism_torch.records.modes import unseen

FOLDED_WORDS = 1 << 18  # folded area of a stream: 1 MiB, about 10,000 records
HIST_WORDS = HIST_BUCKETS * 2


@dataclass
class _Batch:
    """Folded records on their way to the host."""

    host: torch.Tensor
    event: Any
    launches: list[tuple[Launch, int]]


@dataclass
class _Stream:
    """Buffers of one (device, stream)."""

    device: torch.device
    stream: Any  # torch.Stream, None on the CPU
    lock: Any = field(default_factory=threading.RLock)
    scratch: torch.Tensor | None = None
    partial: torch.Tensor | None = None
    tickets: torch.Tensor | None = None
    folded: torch.Tensor | None = None
    used: int = 0
    launches: list[tuple[Launch, int]] = field(default_factory=list)


@contextlib.contextmanager
def _current(stream: Any) -> Iterator[None]:
    """Make a stream current for the block."""
    before = torch.accelerator.current_stream(stream.device)
    if before == stream:
        yield
        return
    device = torch.accelerator.current_device_index()
    torch.accelerator.set_stream(stream)  # makes its device current too
    try:
        yield
    finally:
        torch.accelerator.set_stream(before)
        torch.accelerator.set_device_index(device)


def words_of(table: OpTable) -> int:
    """Words of the folded records, check records and histograms of one launch, in this order."""
    checks = table.check_records * CHECK_WORDS
    return table.records * RECORD_WORDS + checks + table.histograms * HIST_WORDS


class NoBufferError(Exception):
    """No memory for a launch's records; raised before the launch."""


class RecordBuffers:
    """All record buffers of a session.

    Args:
        consume: called with ([(launch, where its words_of(table) words begin), ...], int32 host
            tensor) in submission order of their stream, from whichever thread polls.
        lost: called with (launch, reason) if the records of a launch that ran cannot be kept.
    """

    def __init__(
        self,
        consume: Callable[[list[tuple[Launch, int]], torch.Tensor], None],
        lost: Callable[[Launch, str], None],
    ) -> None:
        self._consume, self._lost = consume, lost
        self._streams: dict[tuple[str, int, int], _Stream] = {}
        self._lock = threading.RLock()
        self._flying: deque[_Batch] = deque()

    def launch(
        self,
        note: Launch,
        device: torch.device,
        stream: int,
        slots: int,
        call: Callable[[torch.Tensor], Any],
    ) -> Any:
        """Reserve scratch, run `call(scratch)`, queue the fold, note the launch.

        Args:
            slots: shared slots, 0 for one per program.

        Raises:
            NoBufferError: there is no memory for the records; nothing was launched.
        """
        owner = self._stream(device, stream)
        with owner.lock:
            rows = slots or note.programs
            try:
                with unseen():
                    scratch = self._scratch(owner, note.table, rows)
            except RuntimeError as error:  # torch.OutOfMemoryError is one
                raise NoBufferError(str(error).split("\n")[0]) from error
            try:
                result = call(scratch)
            except BaseException:
                owner.scratch = None  # whatever was written must not reach the next launch
                raise
            if note.programs == 0:
                return result
            try:
                self._keep(owner, note, scratch, rows, stream)
            except RuntimeError as error:  # the user's launch is done and stays done
                owner.scratch = None
                self._lost(note, str(error).split("\n")[0])
        return result

    def _keep(
        self, owner: _Stream, note: Launch, scratch: torch.Tensor, rows: int, stream: int
    ) -> None:
        """Fold a launch's records into the folded area and note the launch."""
        words = words_of(note.table)
        with unseen():
            if owner.folded is None or owner.used + words > owner.folded.numel():
                self._submit(owner)
                if owner.folded is None or words > owner.folded.numel():
                    owner.folded = native.new_buffer(max(FOLDED_WORDS, words), owner.device)
            out = owner.folded[owner.used : owner.used + words]
            self._fold(owner, note.table, scratch, out, rows, stream)
        owner.launches.append((note, owner.used))
        owner.used += words

    def submit(self) -> None:
        """Queue the copy of everything folded so far."""
        with self._lock:
            streams = list(self._streams.values())
        for owner in streams:
            with owner.lock, unseen():
                self._submit(owner)

    def poll(self) -> None:
        """Consume the copies that have arrived."""
        while True:
            with self._lock:
                if not self._flying or not self._arrived(self._flying[0], wait=False):
                    return
                self._take()

    def oldest_step(self) -> int | None:
        """The earliest step with records that are not consumed yet, None if there are none."""
        with self._lock:
            waiting = [note.step for batch in self._flying for note, _ in batch.launches]
            for owner in self._streams.values():
                waiting += [note.step for note, _ in owner.launches]
        return min(waiting, default=None)

    def drain(self) -> None:
        """Submit, then wait for and consume every copy."""
        self.submit()
        while True:
            with self._lock:
                if not self._flying:
                    return
                self._arrived(self._flying[0], wait=True)
                self._take()

    # -- inside

    def _take(self) -> None:
        batch = self._flying.popleft()
        self._consume(batch.launches, batch.host)

    @staticmethod
    def _arrived(batch: _Batch, wait: bool) -> bool:
        if batch.event is None:
            return True
        if wait:
            batch.event.synchronize()
            return True
        return bool(batch.event.query())

    def _stream(self, device: torch.device, stream: int) -> _Stream:
        key = (device.type, device.index or 0, stream)
        owner = self._streams.get(key)
        if owner is None:
            with self._lock:
                current = None
                if device.type != "cpu":
                    current = torch.accelerator.current_stream(device)
                owner = self._streams.setdefault(key, _Stream(device, current))
        return owner

    @staticmethod
    def _scratch(owner: _Stream, table: OpTable, rows: int) -> torch.Tensor:
        words = rows * table.records * RECORD_WORDS + table.check_records * CHECK_WORDS
        words += table.histograms * HIST_SHARDS * HIST_WORDS
        if owner.scratch is None or owner.scratch.numel() < words:
            owner.scratch = None  # free the old one first
            owner.scratch = native.new_buffer(max(words, 1 << 16), owner.device)
        return owner.scratch

    @staticmethod
    def _fold(
        owner: _Stream,
        table: OpTable,
        scratch: torch.Tensor,
        out: torch.Tensor,
        rows: int,
        stream: int,
    ) -> None:
        """The layout of scratch: histogram shards, check records, then the records of each slot."""
        records = table.records
        shards = table.histograms * HIST_SHARDS * HIST_WORDS
        begin = shards + table.check_records * CHECK_WORDS
        end = (records * RECORD_WORDS) + begin - shards
        if table.histograms:
            block = scratch[:shards].view(torch.int64)
            counts = block.view(HIST_SHARDS, table.histograms * HIST_BUCKETS).sum(0)
            out[end:].view(torch.int64).copy_(counts)
            block.zero_()
        body = scratch[begin : begin + rows * records * RECORD_WORDS]
        checks, target = scratch[shards:begin], out[: records * RECORD_WORDS]
        if owner.device.type == "cpu":
            native.fold(body, target, rows, records)
            out[target.numel() : end].copy_(checks)
            scratch[shards : begin + body.numel()].zero_()
            return
        from flagprism_torch.records import fold

        chunks = fold.chunks_of(rows)
        need = records * chunks * RECORD_WORDS
        if owner.partial is None or owner.partial.numel() < need:
            owner.partial = native.new_buffer(max(need, 1 << 14), owner.device)
        if owner.tickets is None or owner.tickets.numel() < records + chunks:
            owner.tickets = native.new_buffer(max(records + chunks, 1 << 10), owner.device)
        fold.launch(
            body.view(torch.int64),
            owner.partial.view(torch.int64),
            owner.tickets,
            out[:end].view(torch.int64),
            rows,
            records,
            checks.view(torch.int64),
            stream,
        )

    def _submit(self, owner: _Stream) -> None:
        if not owner.launches or owner.folded is None:
            return
        event = None
        if owner.stream is None:
            host = native.copy_to_host(owner.folded[: owner.used])
        else:
            with _current(owner.stream):  # the caller may be on another stream
                host = native.copy_to_host(owner.folded[: owner.used])
                event = torch.Event(owner.device)
                event.record(owner.stream)  # without it: the stream of the current device
        with self._lock:
            self._flying.append(_Batch(host, event, owner.launches))
        owner.launches, owner.used = [], 0
