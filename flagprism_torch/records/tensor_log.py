"""Who wrote a piece of memory: the launches of the last steps and the tensors they were given.

A launch writes the tensors that its op table has a store or an atomic for. Extern calls are noted
as launches whose table has the one op "extern". What is not noted is not seen: torch operations
outside of Triton kernels, copies, graph replays. Addresses are compared, so where the allocator
gives memory to another tensor within a step the latest writer of the address is named.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass, field

from flagprism_torch.records.model import Launch, OpTable, TensorNote

CAPACITY = 1 << 16  # launches, about 1 KiB each
KEPT_STEPS = 16
UNSEEN = "not instrumented"  # in OpTable.left_out: nothing is known of what the kernel does
_WRITES = ("store", "atomic")
_MAY_BE_STORES = ("no source location", "noinline call", UNSEEN)  # reasons in OpTable.left_out


@dataclass(frozen=True)
class Writer:
    """A launch that wrote to the memory in question through its argument `pointer`. `certain` is
    False where the launch was given the memory, but its stores are not all known: it may have."""

    launch: Launch
    pointer: str
    certain: bool = True


@dataclass
class _Step:
    launches: dict[int, Launch] = field(default_factory=dict)
    dropped: int = 0
    first_dropped: int | None = None


class TensorLog:
    """The launches of the last `steps` steps, at most `capacity` in all. Thread-safe.

    The oldest step makes room for the newest. A step that is larger than the whole log loses its
    later launches, which are counted (`dropped`).
    """

    def __init__(self, capacity: int = CAPACITY, steps: int = KEPT_STEPS) -> None:
        self.capacity, self.kept = capacity, steps
        self._steps: dict[int, _Step] = {}
        self._size = 0
        self._forgotten = -1  # the last step that had to go
        self._lock = threading.Lock()

    def note(self, launch: Launch) -> None:
        """Add a launch. Its number is its place in the order of launches."""
        with self._lock:
            if launch.step <= self._forgotten:
                return
            step = self._steps.setdefault(launch.step, _Step())
            while len(self._steps) > self.kept or (
                self._size >= self.capacity and len(self._steps) > 1
            ):
                self._forget()
            if launch.step <= self._forgotten:  # made room for a later step
                return
            if self._size >= self.capacity:
                step.dropped += 1
                if step.first_dropped is None or launch.number < step.first_dropped:
                    step.first_dropped = launch.number
                return
            step.launches[launch.number] = launch
            self._size += 1

    def _forget(self) -> None:
        number = min(self._steps)
        self._size -= len(self._steps.pop(number).launches)
        self._forgotten = max(self._forgotten, number)

    def launch(self, step: int, number: int) -> Launch | None:
        """The launch of that number, None if it is not in the log."""
        with self._lock:
            kept = self._steps.get(step)
            return None if kept is None else kept.launches.get(number)

    def dropped(self, step: int) -> int:
        """Launches of a step that found the log full."""
        with self._lock:
            kept = self._steps.get(step)
            return 0 if kept is None else kept.dropped

    def knows_before(self, launch: Launch) -> bool:
        """Whether all launches that came before `launch` in its step are in the log. If not, no
        writer is named."""
        with self._lock:
            return self._complete(launch) is not None

    def writer_before(self, launch: Launch, name: str) -> Writer | None:
        """The latest earlier launch of the same step that wrote (or may have written) to the bytes
        of the argument `name`; None if there is none or if the log does not know
        (`knows_before`)."""
        return next(self.writers_before(launch, name), None)

    def writers_before(self, launch: Launch, name: str) -> Iterator[Writer]:
        """All such launches, latest first: a tensor may have been written in parts."""
        wanted = next((tensor for tensor in launch.tensors if tensor.name == name), None)
        if wanted is None:
            return
        with self._lock:
            step = self._complete(launch)
            known = [] if step is None else list(step.launches.values())
        earlier = [other for other in known if other.number < launch.number]
        earlier.sort(key=lambda other: -other.number)  # threads may have noted them out of order
        for other in earlier:
            found = _writer(other, wanted)
            if found is not None:
                yield found

    def _complete(self, launch: Launch) -> _Step | None:
        """The step of a launch, if everything before the launch is in it."""
        step = self._steps.get(launch.step)
        if step is None or (step.first_dropped is not None and step.first_dropped < launch.number):
            return None
        return step


def _writer(launch: Launch, wanted: TensorNote) -> Writer | None:
    """How `launch` wrote to `wanted`; certainly, if one of several arguments says so."""
    touched = [tensor.name for tensor in launch.tensors if _overlap(tensor, wanted)]
    if not touched:
        return None
    written = {op.pointer for op in launch.table.ops if op.role in _WRITES}
    for name in touched:
        if name in written:
            return Writer(launch, name)
    if None in written or hides_stores(launch.table):
        return Writer(launch, touched[0], certain=False)
    return None


def _overlap(one: TensorNote, other: TensorNote) -> bool:
    if not one.nbytes or not other.nbytes:
        return False
    return one.address < other.address + other.nbytes and other.address < one.address + one.nbytes


def hides_stores(table: OpTable) -> bool:
    """Whether a store may have no entry in the table. `max_values` leaves out stores last."""
    for reason in table.left_out:
        if reason in _MAY_BE_STORES or reason.startswith("type "):
            return True
        if reason == "max_values" and all(op.role in _WRITES for op in table.ops):
            return True
    return False
