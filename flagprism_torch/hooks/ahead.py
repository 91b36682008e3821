"""Twins that are compiled before a launch asks for them, on threads of the session.

Note [Ahead]
Nearly all of a twin's time is MLIR, LLVM and ptxas, which run without the GIL. So when the first
kernel of a generated module needs a twin, twins of the module's other kernels begin too. Threads
only compile: binaries are loaded, launchers made and failures told by the launch that needs the
twin, as if it had compiled it itself. A twin that no launch asks for is dropped with the session;
its binary stays in Triton's cache.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Hashable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from flagprism_torch.instrument.twin import Building

_MOST = 16  # about a tenth of a twin's time is Python: more threads would wait for each other


def workers() -> int:
    """How many threads a session may start: one for each CPU that this process may use, 16 at most;
    0 where there is one CPU only."""
    usable = getattr(os, "sched_getaffinity", lambda _: range(os.cpu_count() or 1))(0)
    return min(len(usable), _MOST) if len(usable) > 1 else 0


class Ahead:
    """Twins that were begun in a session, each once. Used from any thread that launches."""

    def __init__(self) -> None:
        self._workers = workers()
        self._pool: ThreadPoolExecutor | None = None
        self._lock = threading.Lock()
        # kernel -> {twin: what was begun, None once a launch has taken it on itself}
        self._begun: weakref.WeakKeyDictionary[
            Any, dict[Hashable, tuple[Building, Future[None]] | None]
        ] = weakref.WeakKeyDictionary()

    def begin(self, owner: Any, twin: Hashable, make: Callable[[], Building]) -> None:
        """Compile on a thread what `make` gives. Does nothing where that was begun before, without
        threads, after the session, and if `make` fails: the launch will fail in the same way."""
        with self._lock:
            begun = self._begun.setdefault(owner, {})
            if not self._workers or twin in begun:
                return
            try:
                building = make()
                begun[twin] = building, self._threads().submit(building.compile)
            except Exception:  # also RuntimeError: no thread can be started
                return

    def take(self, owner: Any, twin: Hashable) -> Building | None:
        """What was begun for this launch, None if nothing was. It is compiled, or a thread is at
        it, or nobody is and nobody will: `Building.finish` is right for all three."""
        with self._lock:
            begun = self._begun.setdefault(owner, {})
            found, begun[twin] = begun.get(twin), None
        if found is None:
            return None
        building, future = found
        future.cancel()  # not started: the launch is served sooner by its own thread
        return building

    def close(self) -> None:
        """Forget what has not started and wait for what has: nothing runs on after the session."""
        with self._lock:
            pool, self._pool, self._workers = self._pool, None, 0
            self._begun.clear()
        if pool is not None:
            pool.shutdown(cancel_futures=True)

    def _threads(self) -> ThreadPoolExecutor:
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self._workers, "flagprism twin")
        return self._pool
