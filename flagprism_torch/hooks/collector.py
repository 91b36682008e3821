"""What all launch hooks share: which launches to record, their twins, and where records go.

Note [Passing through]
Whatever cannot or must not be recorded runs the original, exactly as without us, and is counted in
the coverage with the reason: benchmark launches of autotuners, warmup, stream capture, launches of
this package's own kernels (not counted), and kernels whose twin cannot be had.
"""

from __future__ import annotations

import functools
import itertools
import sys
import threading
import weakref
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from types import FrameType
from typing import Any

import torch

from flagprism_torch.analysis.coverage import Coverage
from flagprism_torch.config import Config
from flagprism_torch.errors import InstrumentationError
from flagprism_torch.hooks.full import FullCollector
from flagprism_torch.hooks.parameters import Parameters, Tuned
from flagprism_torch.hooks.tensors import extents, pointer_names, tensor_layouts, tensor_notes
from flagprism_torch.instrument.twin import LaunchFn, Recipe, Twin, launching
from flagprism_torch.provenance import callsites
from flagprism_torch.provenance.modules import ModuleNames
from flagprism_torch.records.address_model import TensorLayout
from flagprism_torch.records.buffers import NoBufferError, RecordBuffers
from flagprism_torch.records.layout import RECORD_BYTES
from flagprism_torch.records.ledger import Ledger
from flagprism_torch.records.model import CallSite, Launch, OpTable, Origin
from flagprism_torch.records.survivors import Crash, HostBuffers
from flagprism_torch.records.tensor_log import UNSEEN, TensorLog
from flagprism_torch.records.watch_buffers import WatchBuffers

SCRATCH_BYTES = 256 << 20  # per-program records of one launch; larger grids share slots
SHARED_SLOTS = 1024

Build = Callable[[Recipe], Twin]


@dataclass(eq=False)
class _Known:
    """What is known of one kernel or autotuner. `twins`: (its configuration, recipe) -> twin or why
    there is none; `lock` is held while one is built, so that it is built once."""

    twins: dict[Any, Twin | str] = field(default_factory=dict)
    lock: Any = field(default_factory=threading.RLock)


_known: weakref.WeakKeyDictionary[Any, _Known] = weakref.WeakKeyDictionary()  # outlives sessions
_known_lock = threading.RLock()


_NOWHERE = Origin()
_WATCH = Recipe(level=0, max_values=0, histograms=False)
_UNNAMED = 1024  # tensor arguments of a kernel without a twin
_STALE = (
    "some generated code comes from a cache entry of other source text: lines and modules that do "
    "not match any more are left out; TORCHINDUCTOR_FORCE_DISABLE_CACHES=1 compiles it afresh"
)


class _GridTooLarge(Exception):
    """The grid has more programs than the twin has slots; no launch happened."""


class Collector:
    """Owned by a session; used by the hooks from any thread."""

    def __init__(self, config: Config, names: ModuleNames, coverage: Coverage) -> None:
        self.config, self.names, self.coverage = config, names, coverage
        self.ledger = Ledger()
        self.buffers: RecordBuffers | HostBuffers = RecordBuffers(self.ledger.add, self._lost)
        if config.export_on_error:
            self.buffers = HostBuffers(self.ledger.add, self._lost, lambda c: self.on_crash(c))
        self.tensors = TensorLog()
        self.parameters = Parameters()
        self.full = FullCollector(config, coverage)
        self.step = 0
        self.recipe = Recipe(config.level, config.max_values, config.histograms,
                             addr_level=config.addr_level, guard=config.guard,
                             early=config.export_on_error)  # fmt: skip
        shared = min(SHARED_SLOTS, config.record_capacity)
        self.shared_recipe = replace(self.recipe, slots=shared)
        self.numbers = itertools.count()  # of launches, in their order
        self._sites: dict[Any, CallSite] = {}
        self._site_counts: dict[str, int] = {}  # kernel -> its call sites
        self._site_numbers: dict[tuple[str, str], int] = {}
        self._lock = threading.RLock()
        self._local = threading.local()
        self._large: weakref.WeakSet[Any] = weakref.WeakSet()
        self._pointers: weakref.WeakKeyDictionary[Twin, tuple[str, ...]] = (
            weakref.WeakKeyDictionary()
        )
        self._reported: set[tuple[str, int]] = set()
        self._wrappers: set[str] = set()
        self.watch = WatchBuffers(self.ledger.add, self._lost)
        self.closer: set[str] = set()  # kernels that level 0 looks at more closely from now on
        self.on_crash: Callable[[Crash], None] = lambda crash: None
        self.on_wrapper: Callable[[str], None] = lambda file: None  # a generated wrapper is new

    # -- which launches to record

    def benchmarking(self) -> _Depth:
        """Scope in which this thread's launches are benchmarks."""
        return _Depth(self._local, "benchmark")

    def pass_reason(self) -> str | None:
        """Why a launch of this thread must not be recorded, None if it may."""
        if getattr(self._local, "benchmark", 0):
            return "benchmark"
        if inductor_is_benchmarking():
            return "benchmark"
        if torch.cuda.is_available() and torch.cuda.is_current_stream_capturing():
            return "stream capture"
        return None

    # -- one launch

    def launch(
        self,
        owner: Any,
        variant: Any,
        kernel: str,
        site: CallSite,
        device: torch.device,
        stream: int,
        values: Iterable[Any],
        build: Build,
        run: Callable[[Any], Any],
        generated: bool = False,
        tuned: Tuned | None = None,
    ) -> tuple[bool, Any]:
        """Launch the twin of `owner`'s `variant`: (True, result), or (False, None) without one.

        Args:
            owner: weakly referenced identity of the kernel.
            values: the arguments of the launch, in the order of the kernel's.
            build: compiles the twin for a recipe.
            run: launches `twin` through its own launcher.
            generated: whether Inductor wrote the kernel.
            tuned: benchmarks that were made for this launch, on its arguments.
        """
        self.coverage.saw(kernel)
        recipe = self.recipe_for(owner, kernel)
        if recipe.level == 0:
            twin = self._twin(owner, variant, kernel, recipe, build)
            if twin is None:
                return False, None
            return self._watch(twin, kernel, site, device, stream, run)
        addresses = recipe.addresses
        while True:
            twin = self._twin(owner, variant, kernel, recipe, build)
            if twin is None:
                self._note_unseen(kernel, site, values)
                return False, None

            def record(made: Twin, grid: tuple[int, int, int], call: LaunchFn) -> Any:
                names = self._pointer_names(made)
                tensors = tensor_notes(names, values)
                layouts: tuple[TensorLayout, ...] = ()
                if addresses:
                    layouts = tensor_layouts(names, values)
                    call = functools.partial(_with_more, call, extents(names, layouts))
                note = Launch(
                    next(self.numbers), self.step, site, made.table, grid, tensors, layouts
                )
                limit = SCRATCH_BYTES // (RECORD_BYTES * made.table.records)
                if not made.slots and note.programs > min(self.config.record_capacity, limit):
                    raise _GridTooLarge
                if self.config.addr_level:
                    self._check(note, made, values, device, generated, tuned)
                result = self._launch(note, made, device, stream, values, layouts, call)
                self.coverage.launches()
                self.tensors.note(note)
                return result

            try:
                with launching(record):
                    return True, run(twin)
            except NoBufferError as error:
                self.coverage.passed(kernel, f"no memory for records: {error}")
                self._note_unseen(kernel, site, values)
                return False, None
            except _GridTooLarge:
                self._large.add(owner)
                recipe = self.recipe_for(owner, kernel)

    def _watch(
        self,
        twin: Twin,
        kernel: str,
        site: CallSite,
        device: torch.device,
        stream: int,
        run: Callable[[Any], Any],
    ) -> tuple[bool, Any]:
        """Launch a twin of level 0, as `launch`."""

        def record(made: Twin, grid: tuple[int, int, int], call: LaunchFn) -> Any:
            def note() -> Launch:
                return Launch(next(self.numbers), self.step, site, made.table, grid)

            key = (site.key, id(made.table), grid)
            result = self.watch.watch(key, made.table, note, device, stream, call)
            self.coverage.launches()
            return result

        try:
            with launching(record):
                return True, run(twin)
        except NoBufferError as error:
            self.coverage.passed(kernel, f"no memory for records: {error}")
            return False, None

    def submit(self) -> None:
        """Queue the copies of all records so far."""
        self.buffers.submit()
        self.watch.submit()

    def poll(self) -> None:
        """Take in the records that have arrived."""
        self.buffers.poll()
        self.watch.poll()

    def drain(self) -> None:
        """Wait for all records, and take them in."""
        self.buffers.drain()
        self.watch.drain()

    def _launch(
        self,
        note: Launch,
        twin: Twin,
        device: torch.device,
        stream: int,
        values: Iterable[Any],
        layouts: tuple[TensorLayout, ...],
        call: LaunchFn,
    ) -> Any:
        if not twin.full:
            return self.buffers.launch(note, device, stream, twin.slots, call)
        values = list(values)
        layouts = layouts or tensor_layouts(self._pointer_names(twin), values)
        try:
            memory, dump = self.full.begin(note, twin, values, layouts, device, stream)
        except RuntimeError as error:
            raise NoBufferError(str(error).split("\n")[0]) from error
        call = functools.partial(_with_more, call, (memory,))
        try:
            result = self.buffers.launch(note, device, stream, twin.slots, call)
        except BaseException:
            if dump is not None:
                self.full.failed(dump)
            raise
        if dump is not None:
            self.full.queued(dump)
        return result

    def _check(self, launch: Launch, *arguments: Any) -> None:
        try:
            self.parameters.check(launch, *arguments)
        except Exception as error:  # a launch must not fail because it cannot be judged
            name = launch.table.kernel
            self.coverage.note(f"arguments of {name} not checked: {type(error).__name__}: {error}")

    def recipe_for(self, owner: Any, kernel: str) -> Recipe:
        """What the next launch of `owner` asks of its twin first."""
        recipe = self.shared_recipe if owner in self._large else self.recipe
        if self.config.level == 0:
            return replace(recipe, level=1) if kernel in self.closer else _WATCH
        return replace(recipe, full=self.full.request(kernel)) if self.config.level > 1 else recipe

    @staticmethod
    def settled(owner: Any, variant: Any, recipe: Recipe) -> bool:
        """Whether the twin was built, or is known not to be had."""
        known = _known.get(owner)
        return known is not None and (variant, recipe) in known.twins

    def _pointer_names(self, twin: Twin) -> tuple[str, ...]:
        names = self._pointers.get(twin)
        if names is None:
            found = pointer_names(twin.kernel.asm.get("ttir", ""))
            names = self._pointers[twin] = found[: -2 if twin.full else -1]  # the last are hidden
        return names

    def _note_unseen(self, kernel: str, site: CallSite, values: Iterable[Any]) -> None:
        """The original runs, which may write to any of its tensors."""
        names = [f"argument {n}" for n in range(_UNNAMED)]
        table = OpTable(kernel, "", 0, (), {UNSEEN: 1})
        tensors = tensor_notes(names, values)
        self.tensors.note(Launch(next(self.numbers), self.step, site, table, (1, 1, 1), tensors))

    def _twin(
        self, owner: Any, variant: Any, kernel: str, recipe: Recipe, build: Build
    ) -> Twin | None:
        known = _known.get(owner)
        found = known.twins.get((variant, recipe)) if known is not None else None
        if found is None:
            with _known_lock:
                known = _known.setdefault(owner, _Known())
            with known.lock:
                found = known.twins.get((variant, recipe))
                if found is None:
                    try:
                        found = build(recipe)
                    except InstrumentationError as error:
                        found = str(error)
                    known.twins[variant, recipe] = found
        self._report(kernel, found)
        return found if isinstance(found, Twin) else None

    def _report(self, kernel: str, found: Twin | str) -> None:
        key = (kernel, id(found))
        if key in self._reported:
            return
        self._reported.add(key)
        if isinstance(found, str):
            self.coverage.not_instrumented(kernel, found)
            return
        self.coverage.instrumented(kernel)
        if found.reason:
            self.coverage.stepped_down(kernel, found.reason)
        for reason, count in found.table.left_out.items():
            self.coverage.left_out(kernel, reason, count)

    def done_before(self) -> int:
        """Steps below this number have all their records in the ledger."""
        flying = (self.buffers.oldest_step(), self.watch.oldest_step())
        return min((step for step in flying if step is not None), default=self.step)

    # -- call sites

    def site(self, kernel: str, frame: FrameType) -> CallSite:
        """The call site of a launch that `frame` makes."""
        try:
            place, origin = callsites.locate(frame, kernel, self.names)
        except Exception as error:  # a launch must not fail because it has no name
            self.coverage.note(f"provenance failed: {type(error).__name__}: {error}")
            place, origin = f"{frame.f_code.co_filename}:{frame.f_lineno}", _NOWHERE
        if origin.source == "frames":
            place = f"{place}|{origin.phase}"
        key = (place, kernel, id(origin) if origin.source != "frames" else None)
        known = self._sites.get(key)
        if known is None:
            self._see_wrapper(place.split("|")[0].rsplit(":", 1)[0])
            with self._lock:
                index = self._site_numbers.get((kernel, place))
                if index is None:  # else the same site, renamed since
                    index = self._site_counts.get(kernel, 0)
                    self._site_counts[kernel] = index + 1
                    self._site_numbers[kernel, place] = index
                    self.coverage.provenance(origin.source)
                    if origin.source == "stale":
                        self.coverage.note(_STALE)
                known = self._sites.setdefault(key, CallSite(place, kernel, index, origin))
        return known

    def _see_wrapper(self, file: str) -> None:
        with self._lock:
            if file in self._wrappers:
                return
            self._wrappers.add(file)
            self.on_wrapper(file)

    def _lost(self, launch: Launch, reason: str) -> None:
        self.coverage.passed(launch.table.kernel, f"ran, but its records are lost: {reason}")


def _with_more(call: LaunchFn, more: Sequence[Any], buffer: Any, *behind: Any) -> Any:
    return call(buffer, *more, *behind)


class _Depth:
    def __init__(self, local: Any, name: str) -> None:
        self._local, self._name = local, name

    def __enter__(self) -> None:
        setattr(self._local, self._name, getattr(self._local, self._name, 0) + 1)

    def __exit__(self, *_: object) -> None:
        setattr(self._local, self._name, getattr(self._local, self._name) - 1)


def inductor_is_benchmarking() -> bool:
    """Whether Inductor's benchmarker runs (torch/utils/_debug_mode: a module in 2.11, a package
    with `_utils` in 2.13 and later)."""
    for name in ("torch.utils._debug_mode._utils", "torch.utils._debug_mode"):
        module = sys.modules.get(name)
        if module is not None and hasattr(module, "_IN_INDUCTOR_BENCHMARK"):
            return bool(module._IN_INDUCTOR_BENCHMARK)
    return False
