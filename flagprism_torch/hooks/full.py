"""Level 2: which launches and values are written down lane by lane, and what that may cost.

Note [Refusal]
A launch whose values do not fit what is left of the budget runs with its statistics only, and is
listed as refused with the bytes that it needs: no part of its values is kept. Where a loop's end is
not known before the launch there is room for as many executions as `_SHARE` of what is left holds;
executions are counted on the device, and if there were more, the value says that it is incomplete.
"""

from __future__ import annotations

import math
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from flagprism_torch.analysis.coverage import Coverage
from flagprism_torch.config import Config, patterns_of
from flagprism_torch.instrument.full_text import FullRequest
from flagprism_torch.instrument.twin import Twin
from flagprism_torch.ir import trips
from flagprism_torch.provenance import callsites
from flagprism_torch.records.address_model import TensorLayout
from flagprism_torch.records.dumps import Contents, Dump, DumpBuffers, Room, wanted_channels
from flagprism_torch.records.full_model import FullEntry, FullPlan, matching
from flagprism_torch.records.full_values import (
    FullLaunch,
    FullValue,
    FullValues,
    Owner,
    Refused,
    stored_as,
)
from flagprism_torch.records.model import CallSite, Launch
from flagprism_torch.records.reassembly import worth_writing

_SHARE = 8  # a launch with unknown loops may take one part in so many of what is left
_MOST_EXECUTIONS = 1 << 16  # of such a loop
_MOST_REFUSED = 1024  # launches that are listed


@dataclass(frozen=True)
class _Note:
    """A launch on its way. `wanted`: entries; `nbytes`: bytes taken from the
    budget, of which `files` for tensors that are put together in files."""

    launch: Launch
    wanted: tuple[int, ...]
    layouts: Mapping[str, TensorLayout]
    nbytes: int
    files: int


class Selection:
    """The filters of a session, and which of their parts found something."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self.kernels = patterns_of(config.kernels)
        self.modules = patterns_of(config.modules)
        self.statements = patterns_of(config.statements)
        self._found: dict[str, set[str]] = {"kernels": set(), "modules": set(), "statements": set()}
        self._steps = self._programs = False
        self._selected = 0  # launches

    def has_kernel(self, name: str) -> bool:
        return self._fits("kernels", self.kernels, name)

    def has_statement(self, entry: FullEntry) -> None:
        """Note that a statement was found; twins have no others."""
        self._fits("statements", self.statements, entry.statement, entry.variable)

    def has_owner(self, owner: Owner) -> bool:
        """Whether a module, or one around it, is selected."""
        names = (owner.module, *owner.modules)
        around = (
            ".".join(parts[:n])
            for parts in (name.split(".") for name in names)
            for n in range(1, len(parts) + 1)
        )
        return self._fits("modules", self.modules, *around)

    def has_step(self, step: int) -> bool:
        wanted = self._config.steps
        if wanted is None:
            return True
        found = step == wanted if isinstance(wanted, int) else step in wanted
        self._steps |= found
        return found

    def rows(self, grid: tuple[int, int, int]) -> np.ndarray[Any, Any]:
        """Linear ids of the selected programs of a launch, in ascending order."""
        programs, wanted = grid[0] * grid[1] * grid[2], self._config.programs
        if wanted is None:
            return np.arange(programs, dtype=np.int64)
        if isinstance(wanted, slice):
            found = np.arange(programs, dtype=np.int64)[wanted]
        else:
            listed = [wanted] if isinstance(wanted, int) else wanted
            found = np.array([_linear(one, grid) for one in listed], np.int64)
            found = found[(found >= 0) & (found < programs)]
        self._programs |= bool(len(found))
        return np.unique(found)

    def took(self) -> None:
        """A launch was selected, and was or would have been written down."""
        self._selected += 1

    def _fits(self, which: str, patterns: tuple[str, ...] | None, *names: str | None) -> bool:
        if patterns is None:
            return True
        found = matching(patterns, *names)
        self._found[which].update(found)
        return bool(found)

    def unmatched(self) -> list[str]:
        """What the filters asked for and the session never saw, as remarks."""
        remarks = []
        for which, found in self._found.items():
            for pattern in getattr(self, which) or ():
                if pattern not in found:
                    remarks.append(f"{which}={pattern!r} matched nothing: no full values of it")
        for name, seen in (("steps", self._steps), ("programs", self._programs)):
            if getattr(self._config, name) is not None and not seen:
                wanted = getattr(self._config, name)
                remarks.append(f"{name}={wanted!r} matched nothing: no full values of it")
        if not remarks and not self._selected:
            remarks.append("level=2: no launch had values that all filters select")
        return remarks


def _linear(program: Any, grid: tuple[int, int, int]) -> int:
    if isinstance(program, int):
        return program
    inside = all(0 <= at < extent for at, extent in zip(program, grid, strict=True))
    return program[0] + grid[0] * (program[1] + grid[1] * program[2]) if inside else -1


class FullCollector:
    """Full values of a session. Used from any thread.

    `sink`: called with the values of each launch once they have arrived, and may move them to
    files; `end`: called with the launches that were refused, at the end.
    """

    def __init__(self, config: Config, coverage: Coverage) -> None:
        self.sink: Callable[[Sequence[FullValue]], None] = lambda values: None
        self.end: Callable[[Sequence[Refused]], None] = lambda refused: None
        self._config, self._coverage = config, coverage
        self._selection = Selection(config)
        self._buffers = DumpBuffers(self._arrived)
        self._used = 0
        self._values: list[FullValue] = []
        self._refused: list[Refused] = []
        self._told: set[str] = set()
        self._names: weakref.WeakKeyDictionary[Twin, tuple[tuple[str, ...], ...]] = (
            weakref.WeakKeyDictionary()
        )
        self._lock = threading.RLock()

    def request(self, kernel: str) -> FullRequest | None:
        """What the twin of a kernel is asked to write down."""
        if self._config.level < 2 or not self._selection.has_kernel(kernel):
            return None
        return FullRequest(
            self._selection.statements,
            offsets=self._config.addr_level >= 2,
            mapped=self._config.programs is not None,
        )

    # -- one launch

    def begin(
        self,
        launch: Launch,
        twin: Twin,
        values: Iterable[Any],
        layouts: Iterable[TensorLayout],
        device: torch.device,
        stream: int,
    ) -> tuple[torch.Tensor, Dump | None]:
        """(memory for a launch that is about to run, what to hand to `queued` behind it).

        Args:
            values, layouts: its arguments.

        Raises:
            RuntimeError: there is no memory at all.
        """
        dump = None
        wanted = self._wanted(launch)
        if wanted and launch.programs:
            rows = self._selection.rows(launch.grid)
            if len(rows):
                named = {layout.name: layout for layout in layouts}
                dump = self._reserve(launch, twin, values, named, wanted, rows, device)
        if dump is None:
            return self._buffers.off(launch.table.full, device, stream), None
        assert dump.buffer is not None
        return dump.buffer, dump

    def queued(self, dump: Dump) -> None:
        """A launch was queued."""
        try:
            self._buffers.submit(dump)
        except RuntimeError as error:  # the user's launch is done and stays done
            self._release(dump, 0)
            text = str(error).split("\n")[0]
            self._refuse(
                dump.note.launch, dump.note.nbytes, f"ran, but its values are lost: {text}"
            )

    def failed(self, dump: Dump) -> None:
        """A launch was not queued."""
        self._release(dump, 0)

    def _wanted(self, launch: Launch) -> tuple[int, ...]:
        entries = launch.table.full.entries
        for entry in entries:
            self._selection.has_statement(entry)
        found: Sequence[int] = range(len(entries))
        if self._selection.modules is not None:
            owners = [_owner(launch.site, entry) for entry in entries]
            found = [n for n in found if self._selection.has_owner(owners[n])]
        return tuple(found) if self._selection.has_step(launch.step) else ()

    def _reserve(
        self,
        launch: Launch,
        twin: Twin,
        values: Iterable[Any],
        layouts: Mapping[str, TensorLayout],
        wanted: tuple[int, ...],
        rows: np.ndarray[Any, Any],
        device: torch.device,
    ) -> Dump | None:
        plan = launch.table.full
        self._selection.took()
        bounds = self._bounds(launch, plan, self._named(twin, values))
        channels = wanted_channels(plan, wanted)
        mapped = self._config.programs is not None

        def room(unknown: int) -> Room:
            capacities = tuple(unknown if bound is None else bound for bound in bounds)
            return Room(plan, launch.programs, rows, mapped, capacities, channels)

        unknown = any(bounds[plan.channels[number].block] is None for number in channels)
        with self._lock:
            left = self._config.full_value_budget - self._used
            chosen = room(self._unknown(left, room) if unknown else 0)
            files = self._files(chosen, wanted, layouts)
            needed = chosen.nbytes + files
            if needed > left:
                least = "at least " if unknown else ""
                self._refuse(
                    launch,
                    needed,
                    f"full values need {least}{needed} bytes, {left} of "
                    f"full_value_budget={self._config.full_value_budget} are left; select fewer "
                    "with kernels=, modules=, statements=, programs= or steps=",
                    left,
                )
                return None
            self._used += needed
        note = _Note(launch, wanted, layouts, needed, files)
        try:
            return self._buffers.reserve(chosen, device, note)
        except RuntimeError as error:
            with self._lock:
                self._used -= needed
            text = str(error).split("\n")[0]
            self._refuse(launch, needed, f"no memory for full values: {text}", left)
            return None

    @staticmethod
    def _unknown(left: int, room: Callable[[int], Room]) -> int:
        """Executions that there is room for in blocks whose number is not known (Note
        [Refusal])."""
        rest = room(0).nbytes
        each = room(1).nbytes - rest
        fits = min(min(left - rest, left // _SHARE) // each, _MOST_EXECUTIONS)
        return max(fits, 1)

    def _files(self, room: Room, wanted: Iterable[int], layouts: Mapping[str, TensorLayout]) -> int:
        """Bytes of the tensors that are put together in files (exporters.npy), at most."""
        if self._config.logdir is False:
            return 0
        total = 0
        for number in wanted:
            entry = room.plan.entries[number]
            layout = layouts.get(entry.arguments[0]) if entry.arguments else None
            if layout is None or entry.offsets < 0:
                continue
            lanes = len(room.rows) * room.capacities[entry.block] * math.prod(entry.shape)
            if worth_writing(layout, lanes):
                total += math.prod(layout.shape) * (layout.itemsize + 1)
        return total

    @staticmethod
    def _bounds(launch: Launch, plan: FullPlan, named: Mapping[str, Any]) -> list[int | None]:
        """How often each block is executed at most, None if that is not known."""
        return [
            trips.largest(block.executions, named, launch.grid) if block.executions else None
            for block in plan.blocks
        ]

    def _named(self, twin: Twin, values: Iterable[Any]) -> dict[str, Any]:
        """The arguments of a launch by name; {} if they are not those of the kernel."""
        known = self._names.get(twin)
        if known is None:
            source = twin.kernel.src
            names = tuple(name for name in source.fn.arg_names if name not in source.hidden)
            variable = tuple(n for n in names if source.signature.get(n) != "constexpr")
            launcher = tuple(getattr(twin.launcher, "def_args", ()))
            known = self._names[twin] = (launcher, names, variable)
        given = list(values)
        for each in known:
            if len(each) == len(given):
                return dict(zip(each, given, strict=True))
        return {}

    def _refuse(self, launch: Launch, needed: int, reason: str, left: int = 0) -> None:
        refused = Refused(
            launch.number, launch.step, launch.site.kernel, launch.site.key, needed, left, reason
        )
        with self._lock:
            if len(self._refused) < _MOST_REFUSED:
                self._refused.append(refused)
            if launch.site.kernel in self._told:
                return
            self._told.add(launch.site.kernel)
        self._coverage.note(
            f"no full values of {refused}; of several such launches of a kernel this is the first, "
            f"session.full_values.refused lists up to {_MOST_REFUSED}"
        )

    def _release(self, dump: Dump, kept: int) -> None:
        with self._lock:
            self._used += kept - dump.note.nbytes
        dump.buffer = None

    # -- what has arrived

    def poll(self) -> None:
        """Take what has arrived; never waits."""
        self._buffers.poll()

    def drain(self) -> None:
        """Wait for everything."""
        self._buffers.poll(wait=True)

    def finish(self) -> None:
        """The session ends: say what the filters did not find."""
        if self._config.level >= 2:
            for remark in self._selection.unmatched():
                self._coverage.note(remark)
            self._to_files(lambda: self.end(self._refused), "launches without full values")

    def results(self) -> FullValues:
        with self._lock:
            ordered = sorted(self._values, key=lambda value: value.launch)
            return FullValues(ordered, self._refused)

    def _arrived(self, dump: Dump, contents: Contents) -> None:
        note: _Note = dump.note
        found = list(_values(note, dump.room, contents))
        self._release(dump, contents.nbytes + note.files)
        for value in found:
            if not value.complete:
                most = int(value.executions.max())
                self._coverage.note(
                    f"full values of {value.kernel} are INCOMPLETE: `{value.statement}` ran up to "
                    f"{most} times in a program, {value.capacity} of them are kept"
                )
        self._to_files(lambda: self.sink(found), f"full values of {found[0].kernel}")
        with self._lock:
            self._values += found

    def _to_files(self, write: Callable[[], None], what: str) -> None:
        try:
            write()
        except OSError as error:  # a disk that fails must not end the user's training
            self._coverage.note(f"{what} could not be written to files: {error}")


def _values(note: _Note, room: Room, contents: Contents) -> Iterator[FullValue]:
    launch, plan = note.launch, room.plan
    counts = [column.copy() for column in contents.executions.T]
    about = FullLaunch(
        launch.number,
        launch.step,
        launch.site.kernel,
        launch.site.key,
        launch.site.index,
        launch.grid,
        room.rows,
    )
    for number in note.wanted:
        entry = plan.entries[number]
        shape = entry.shape
        arrays = {"values": contents.channel(entry.values, stored_as(entry.dtype), shape)}
        if entry.lanes >= 0:
            arrays["mask"] = contents.channel(entry.lanes, np.dtype(np.bool_), shape)
        if entry.active >= 0:
            arrays["active"] = contents.channel(entry.active, np.dtype(np.bool_), shape)
        if entry.offsets >= 0:
            arrays["offsets"] = contents.channel(entry.offsets, np.dtype(np.int64), shape)
        yield FullValue(
            about=about,
            entry=entry,
            owner=_owner(launch.site, entry),
            executions=counts[entry.block],
            capacity=room.capacities[entry.block],
            layout=note.layouts.get(entry.arguments[0]) if entry.arguments else None,
            _arrays=arrays,
        )


def _owner(site: CallSite, entry: FullEntry) -> Owner:
    """Whose value it is, as analysis.join has it in a row."""
    pointer = entry.pointer if entry.role in ("store", "atomic") else None
    found = callsites.owner(site.origin, entry.variable, pointer, entry.statement)
    return Owner(
        found.module, found.modules, found.phase, found.aten, found.model_file, found.model_line
    )
