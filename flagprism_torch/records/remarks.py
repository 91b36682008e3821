"""What the arguments of launches told, once per step, in bounded memory."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from flagprism_torch.records.hint_model import Hint
from flagprism_torch.records.ledger import KEPT_STEPS
from flagprism_torch.records.model import Launch

CAPACITY = 4096


@dataclass(frozen=True)
class Remark:
    """Something wrong with an argument of a launch.

    `kind`: of the anomaly that it becomes. `problem`: tells remarks of one kind about one argument
    apart. `cause`: one clause. `hint`: where in the kernel, None if it is about the launch alone.
    """

    kind: str
    argument: str
    launch: Launch
    cause: str
    problem: str = ""
    severity: str = "warning"
    hint: Hint | None = None
    details: Mapping[str, Any] = field(default_factory=dict)


class Remarks:
    """The remarks of the last steps, the first of each (call site, kernel, kind, argument, problem)
    in a step; thread-safe.

    `capacity`: remarks kept of one step.
    """

    def __init__(self, capacity: int = CAPACITY) -> None:
        self.capacity = capacity
        self._steps: dict[int, dict[tuple[str, ...], Remark]] = {}
        self._lock = threading.Lock()

    def add(self, remark: Remark) -> None:
        launch = remark.launch
        key = (launch.site.key, launch.table.kernel, remark.kind, remark.argument, remark.problem)
        with self._lock:
            step = self._steps.setdefault(launch.step, {})
            if len(step) < self.capacity:
                step.setdefault(key, remark)
            while len(self._steps) > KEPT_STEPS:
                del self._steps[min(self._steps)]

    def of(self, step: int) -> tuple[Remark, ...]:
        """The remarks of a step, in the order of its launches; none of steps that are not kept."""
        with self._lock:
            found = list(self._steps.get(step, {}).values())
        return tuple(sorted(found, key=lambda remark: remark.launch.number))
