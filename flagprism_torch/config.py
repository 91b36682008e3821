"""The validated options of a session: one frozen dataclass, one place for defaults."""

from __future__ import annotations

from dataclasses import dataclass
from os import PathLike, fspath
from typing import Any

LEVELS = (1,)
ADDR_LEVELS = (0, 1)
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


@dataclass(frozen=True)
class Config:
    """Options of one session.

    Attributes:
        level: 1 records a summary of every value that a statement produces.
        addr_level: 1 records where each load, store and atomic goes and which lanes leave their
            tensor; 0 does not.
        guard: lanes that would leave their tensor are masked off.
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

    def __post_init__(self) -> None:
        _choice("level", self.level, int, LEVELS)
        _choice("addr_level", self.addr_level, int, ADDR_LEVELS)
        _choice("tensorboard_detail", self.tensorboard_detail, str, TENSORBOARD_DETAILS)
        _count("record_capacity", self.record_capacity, 1, 1 << 20)
        _count("max_values", self.max_values, 1, 4096)
        for name in ("extern_checks", "guard"):
            value = getattr(self, name)
            if not isinstance(value, bool):
                raise TypeError(
                    f"{name}={value!r} has type {type(value).__name__}; allowed: True, False"
                )
        if self.logdir is None or self.logdir is False:
            return
        if self.logdir is True or not isinstance(self.logdir, (str, PathLike)):
            raise TypeError(
                f"logdir={self.logdir!r} has type {type(self.logdir).__name__}; "
                "allowed: a path, None (a fresh folder under runs/) or False (no TensorBoard files)"
            )
        if not fspath(self.logdir):
            raise ValueError("logdir='' is empty; allowed: a path, None or False")

    @property
    def histograms(self) -> bool:
        """Whether stored values get a histogram: yes when TensorBoard files are written."""
        return self.logdir is not False
