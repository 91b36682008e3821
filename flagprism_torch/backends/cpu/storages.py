"""The memory a launch may touch: storages of its tensor arguments, and the test of addresses.

An access inside some argument's storage runs, also outside the tensor itself, as on a GPU. An
address derived from a tensor argument that lies outside every storage is an error. Addresses from
elsewhere (integers, tables of pointers) may also point to any mapped memory of the process.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from .types import Array


@dataclass(frozen=True)
class Storage:
    """Bytes [start, end) behind the tensor argument `name`, whose first byte is `address`."""

    name: str
    start: int
    end: int
    address: int


@dataclass(frozen=True)
class Outside:
    """The first bad address: its index in the tested array and what to say about it."""

    index: int
    reason: str


class _Window:
    """Memory as NumPy sees it (the array interface protocol, version 3)."""

    __slots__ = ("__array_interface__",)

    def __init__(self, address: int, count: int, dtype: np.dtype[Any]) -> None:
        self.__array_interface__ = {
            "data": (address, False),
            "shape": (count,),
            "typestr": dtype.str,
            "version": 3,
        }


def window(low: int, high: int, dtype: np.dtype[Any]) -> Array:
    """A writable view of the elements at addresses low, low + itemsize, ... high."""
    return np.asarray(_Window(low, (high - low) // dtype.itemsize + 1, dtype))


class Storages:
    """Storages of one launch by argument name."""

    def __init__(self, storages: Sequence[Storage]) -> None:
        self.by_name = {s.name: s for s in storages}
        self._spans: tuple[Array, Array] | None = None
        self._mapped: tuple[Array, Array] | None = None

    def holds(self, low: int, high: int, itemsize: int, name: str | None) -> bool:
        """Whether one storage holds everything from address `low` to `high + itemsize`.
        The storage of argument `name` is tried first: the usual case is one comparison."""
        likely = self.by_name.get(name) if name is not None else None
        if likely is not None and likely.start <= low and high + itemsize <= likely.end:
            return True
        return any(s.start <= low and high + itemsize <= s.end for s in self.by_name.values())

    def outside(
        self, addresses: Array, itemsize: int, names: frozenset[str | None]
    ) -> Outside | None:
        """The first of `addresses` (int64 [n]) that must not be touched, None if all are fine.

        `names` are the arguments the pointer may be derived from; None among them, or an argument
        that was passed as an integer, allows all mapped memory.
        """
        if self._spans is None:
            self._spans = _merged([(s.start, s.end) for s in self.by_name.values()])
        bad = ~_inside(addresses, itemsize, self._spans)
        if not bad.any():
            return None
        if any(name is None or name not in self.by_name for name in names):
            self._mapped = self._mapped or _merged(_mapped_memory())
            bad &= ~_inside(addresses, itemsize, self._mapped)
            if not bad.any():
                return None
        index = int(np.argmax(bad))
        return Outside(index, self._reason(int(addresses[index]), itemsize, names))

    def _reason(self, address: int, itemsize: int, names: frozenset[str | None]) -> str:
        known = sorted(n for n in names if n is not None and n in self.by_name)
        if not known:
            others = sorted(n for n in names if n is not None)
            origin = f"argument {others[0]}, passed as an address" if others else "unknown"
            return (
                f"address {address:#x} is not mapped memory (pointer derived from: {origin}), "
                "and is outside every tensor argument"
            )

        def distance(storage: Storage) -> int:
            return max(storage.start - address, address + itemsize - storage.end)

        nearest = min((self.by_name[n] for n in known), key=distance)
        if address < nearest.start:
            where = f"{nearest.start - address} bytes before the start"
        else:
            where = f"{address + itemsize - nearest.end} bytes beyond the end"
        return (
            f"{where} of the storage of argument {nearest.name} "
            f"({nearest.end - nearest.start} bytes; offset {address - nearest.address} bytes from "
            "the argument), and outside every other tensor argument"
        )


def _merged(spans: list[tuple[int, int]]) -> tuple[Array, Array]:
    """Sorted starts and ends (int64) of the union of `spans`."""
    starts: list[int] = []
    ends: list[int] = []
    for start, end in sorted(s for s in spans if s[1] > s[0]):
        if ends and start <= ends[-1]:
            ends[-1] = max(ends[-1], end)
        else:
            starts.append(start)
            ends.append(end)
    return np.array(starts, np.int64), np.array(ends, np.int64)


def _inside(addresses: Array, itemsize: int, spans: tuple[Array, Array]) -> Array:
    starts, ends = spans
    if not len(starts):
        return np.zeros(addresses.shape, bool)
    at = np.searchsorted(starts, addresses, side="right") - 1
    return (at >= 0) & (addresses <= ends[at] - itemsize)


def _mapped_memory() -> list[tuple[int, int]]:
    """Readable address ranges of this process (Linux); [] where the system does not tell."""
    try:
        lines = Path("/proc/self/maps").read_text().splitlines()
    except OSError:
        return []
    spans = []
    for line in lines:
        found = re.match(r"([0-9a-f]+)-([0-9a-f]+) r", line)
        if found and int(found.group(2), 16) < 1 << 63:
            spans.append((int(found.group(1), 16), int(found.group(2), 16)))
    return spans
