"""A lowered kernel and its launches: arguments, chunks of the grid, threads for waiting kernels."""

from __future__ import annotations

import functools
import math
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from ...ir.module import Function, Module, Op, walk
from ...ir.types import Type
from . import atomics, control, conversions, memory, reductions, tensors  # noqa: F401  (register rules)
from .frame import Frame, Launch, LaunchAborted
from .lowering import Lowering
from .storages import Storage, Storages
from .types import Array, number

# Lanes of the widest tensor that one batch of programs holds. Arrays of half a megabyte measured
# best: larger ones cost page faults, smaller ones interpreter overhead.
CHUNK_LANES = 1 << 16
RESIDENT = 1024  # programs that can wait for each other, as on a device that holds so many at once

_WAITS = frozenset({"tt.load", "tt.atomic_load", "tt.atomic_rmw", "tt.atomic_cas", "tt.call"})


def _waits(function: Function) -> bool:
    """Whether a program may wait in this function for what another one writes."""
    for op in function.walk():
        if op.name == "tt.atomic_poll":
            return True
        if op.name == "scf.while" and any(
            inner.name in _WAITS for region in op.regions for inner in walk(region)
        ):
            return True
    return False


class Kernel:
    """Executable form of one TTIR module.

    `text`: what `str(module)` prints after the TTIR passes. Raises UnsupportedOpError for an op
    that has no rule here.
    """

    def __init__(self, text: str) -> None:
        module = Module(text)
        entry = module.entry
        self.name = entry.name
        self.types: list[Type] = [argument.type for argument in entry.arguments]
        self.labels = entry.labels
        ops: list[Op] = [op for f in module.functions.values() for op in f.walk()]
        self.op_names = frozenset(op.name for op in ops)
        widest = max((t.numel for op in ops for t in op.operand_types + op.result_types), default=1)
        self.threaded = any(_waits(f) for f in module.functions.values())
        self.chunk = 1 if self.threaded else max(1, CHUNK_LANES // widest)
        self._body = Lowering(module, entry.name).function(entry.name)

    def __call__(self, grid: tuple[int, int, int], args: Sequence[Any]) -> None:
        """Run all programs of `grid`.

        `args`: one per parameter of the TTIR function, in order: tensors (anything with
        `data_ptr`; without a storage it counts as an integer), numbers, or None for a null pointer.

        Raises InvalidPointerError, RuntimeError (a failed device assertion).
        """
        if len(args) != len(self.types):
            raise TypeError(
                f"kernel {self.name} takes {len(self.types)} arguments ({', '.join(self.labels)}), "
                f"got {len(args)}"
            )
        storages = []
        values = []
        for label, kind, arg in zip(self.labels, self.types, args, strict=True):
            if hasattr(arg, "data_ptr"):
                storage = _storage(label, arg)
                storages += [] if storage is None else [storage]
                arg = int(arg.data_ptr())
            values.append(number(0 if arg is None else arg, kind.element))
        launch = Launch(self.name, grid, Storages(storages))
        programs = math.prod(grid)
        if self.threaded and programs > 1:
            self._run_threads(launch, values, programs)
            return
        for first in range(0, programs, self.chunk):
            self._run(launch, values, first, min(programs, first + self.chunk))

    def _run(self, launch: Launch, values: Sequence[Array], first: int, last: int) -> None:
        width, height, depth = launch.grid
        linear = np.arange(first, last, dtype=np.int64)
        ids = (linear % width, linear // width % height, linear // (width * height))
        pids = [
            (p if extent > 1 else p[:1]).astype(np.int32)
            for p, extent in zip(ids, (width, height, depth), strict=True)
        ]
        with np.errstate(all="ignore"):
            self._body.run(Frame(launch, pids, last - first), values)

    def _run_threads(self, launch: Launch, values: Sequence[Array], programs: int) -> None:
        """One thread per program: neither one after the other (a grid barrier would hang) nor in
        lock-step (a program that waits for its neighbour would)."""
        failed: list[BaseException] = []
        guard = threading.Lock()

        def one(program: int) -> None:
            if launch.aborted:
                return
            try:
                self._run(launch, values, program, program + 1)
            except LaunchAborted:
                return
            except BaseException as error:
                with guard:
                    failed.append(error)
                launch.aborted = True

        with ThreadPoolExecutor(min(programs, RESIDENT)) as pool:
            try:
                list(pool.map(one, range(programs)))
            except BaseException:
                launch.aborted = True
                raise
        if failed:
            raise failed[0]


@functools.lru_cache(maxsize=1024)
def kernel_of(text: str) -> Kernel:
    """The kernel of a TTIR text, lowered once per process."""
    return Kernel(text)


def _storage(label: str, tensor: Any) -> Storage | None:
    """The memory behind a tensor argument; None if it is only an address to us."""
    tensor = getattr(tensor, "base", tensor)  # triton.reinterpret wraps a tensor
    if not hasattr(tensor, "untyped_storage"):
        return None
    storage = tensor.untyped_storage()
    start = int(storage.data_ptr())
    return Storage(label, start, start + int(storage.nbytes()), int(tensor.data_ptr()))
