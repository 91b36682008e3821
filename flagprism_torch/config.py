"""The validated options of a session: one frozen dataclass, one place for defaults."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from os import PathLike, fspath
from typing import Any

LEVELS = (0, 1, 2)
ADDR_LEVELS = (0, 1, 2)
TENSORBOARD_DETAILS = ("module", "kernel", "statement")


def _choice(name: str, value: Any, kind: type, allowed: tuple[Any, ...]) -> None:
    listed = ", ".join(repr(a) for a in allowed)
    if not isinstance(value, kind) or isinstance(value, bool):
        raise TypeError(f"{name}={value!r} has type {type(value).__name__}; allowed: {listed}")
    if value not in allowed:
        raise ValueError(f"{name}={value!r} is not supported; allowed: {listed}")


def _count(name: str, value: Any, low: int, high: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(
            f"{name}={value!r} has type {type(value).__name__}; "
            f"allowed: an int from {low} to {high}"
        )
    if not low <= value <= high:
        raise ValueError(f"{name}={value!r} is out of range; allowed: {low} to {high}")


def _patterns(name: str, value: Any) -> None:
    allowed = "a pattern, a sequence of patterns, or None for all"
    listed = (value,) if isinstance(value, str) else value
    if not isinstance(listed, (tuple, list)) or not all(isinstance(one, str) for one in listed):
        raise TypeError(f"{name}={value!r} has type {type(value).__name__}; allowed: {allowed}")
    if not listed or not all(listed):
        raise ValueError(f"{name}={value!r} can match nothing; allowed: {allowed}")


def _numbers(name: str, value: Any, more: str = "", tuples: bool = False) -> None:
    allowed = f"an int from 0, a range, a sequence of them{more}, or None for all"
    listed = (value,) if isinstance(value, int) else value
    if not isinstance(listed, (tuple, list, range)):
        raise TypeError(f"{name}={value!r} has type {type(value).__name__}; allowed: {allowed}")
    if not len(listed):
        raise ValueError(f"{name}={value!r} is empty; allowed: {allowed}")
    for one in listed:
        parts = one if tuples and isinstance(one, tuple) and len(one) == 3 else (one,)
        if not all(isinstance(part, int) and not isinstance(part, bool) for part in parts):
            raise TypeError(f"{name}={value!r} has the member {one!r}; allowed: {allowed}")
        if min(parts) < 0:
            raise ValueError(f"{name}={value!r} has the member {one!r}; allowed: {allowed}")


def patterns_of(value: str | Sequence[str] | None) -> tuple[str, ...] | None:
    """The patterns of `kernels`, `modules` or `statements`, None for all."""
    if value is None:
        return None
    return (value,) if isinstance(value, str) else tuple(value)


@dataclass(frozen=True)
class Config:
    """Options of one session.

    Attributes:
        level: 0 notes which statements meet a NaN or an infinity; 1 records a summary of every
            value that a statement produces; 2 also writes down all lanes of those that the filters
            select.
        addr_level: 1 records where each load, store and atomic goes and which lanes leave their
            tensor; 2, with level 2, also writes down the offset of each lane; 0 does not.
        guard: lanes that would leave their tensor are masked off.
        export_on_error: records lie where they outlive a crash of the device.
        escalate: level 0 looks at a kernel with a finding more closely from then on.
        kernels, modules, statements, programs, steps: what level 2 writes down, None for all.
            Patterns are those of file names in a shell.
        full_value_budget: bytes that full values of the session may take.
        logdir: TensorBoard folder; None picks `runs/flagprism_<time>_<host>_<pid>`, False writes
            none.
        tensorboard_detail: "module" | "kernel" | "statement": how fine the TensorBoard tags are.
        record_capacity: programs of one launch that get a record of their own; programs beyond
            share slots.
        max_values: probed values per kernel.
        extern_checks: whether results of `extern_kernels.*` calls get a row.

    Raises:
        TypeError, ValueError: naming the argument, its value and what is allowed.
    """

    level: int = 1
    addr_level: int = 0
    logdir: str | PathLike[str] | bool | None = None
    tensorboard_detail: str = "module"
    record_capacity: int = 65536
    max_values: int = 64
    extern_checks: bool = True
    guard: bool = False
    export_on_error: bool = False
    escalate: bool = False
    kernels: str | Sequence[str] | None = None
    modules: str | Sequence[str] | None = None
    statements: str | Sequence[str] | None = None
    programs: int | slice | Sequence[int | tuple[int, int, int]] | None = None
    steps: int | Sequence[int] | None = None
    full_value_budget: int = 2**30

    def __post_init__(self) -> None:
        _choice("level", self.level, int, LEVELS)
        _choice("addr_level", self.addr_level, int, ADDR_LEVELS)
        _choice("tensorboard_detail", self.tensorboard_detail, str, TENSORBOARD_DETAILS)
        _count("record_capacity", self.record_capacity, 1, 1 << 20)
        _count("max_values", self.max_values, 1, 4096)
        for name in ("extern_checks", "guard", "export_on_error", "escalate"):
            value = getattr(self, name)
            if not isinstance(value, bool):
                raise TypeError(
                    f"{name}={value!r} has type {type(value).__name__}; allowed: True, False"
                )
        self._check_watch()
        self._check_full_values()
        if self.logdir is None or self.logdir is False:
            return
        if self.logdir is True or not isinstance(self.logdir, (str, PathLike)):
            raise TypeError(
                f"logdir={self.logdir!r} has type {type(self.logdir).__name__}; "
                "allowed: a path, None (a fresh folder under runs/) or False (no TensorBoard files)"
            )
        if not fspath(self.logdir):
            raise ValueError("logdir='' is empty; allowed: a path, None or False")

    def _check_watch(self) -> None:
        for name in ("addr_level", "guard", "export_on_error"):
            if self.level == 0 and getattr(self, name):
                raise ValueError(f"{name}={getattr(self, name)!r} needs more than level=0")
        if self.escalate and self.level != 0:
            raise ValueError("escalate=True is for level=0: other levels look closely already")

    def _check_full_values(self) -> None:
        _count("full_value_budget", self.full_value_budget, 1, 1 << 50)
        if self.addr_level == 2 and self.level != 2:
            raise ValueError("addr_level=2 is part of full values; allowed with level=2 only")
        filters = ("kernels", "modules", "statements", "programs", "steps")
        given = {name: getattr(self, name) for name in filters}
        for name, value in given.items():
            if value is None:
                continue
            if self.level != 2:
                raise ValueError(f"{name}={value!r} selects full values; allowed with level=2 only")
            if name == "programs":
                if not isinstance(value, slice):
                    _numbers(name, value, " or of (x, y, z), a slice", tuples=True)
            elif name == "steps":
                _numbers(name, value)
            else:
                _patterns(name, value)

    @property
    def histograms(self) -> bool:
        """Whether stored values get a histogram: yes when TensorBoard files are written."""
        return self.logdir is not False
