"""What a running kernel knows: the values of a batch of programs, and the launch they belong to.

Every value is an array whose axis 0 is the program; length 1 there means "the same in all of
them". The other axes are the tensor's, and a length 1 there may stand for a broadcast that has not
been carried out.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence

import numpy as np

from ...ir.module import Value
from ...ir.types import Type
from .storages import Storages
from .types import Array, register_dtype


class LaunchAborted(Exception):
    """Another program of the launch failed; this one stops waiting."""


class Launch:
    """One launch: its grid, the memory it may touch, and a lock for read-modify-write sequences."""

    def __init__(self, kernel: str, grid: tuple[int, int, int], storages: Storages) -> None:
        self.kernel = kernel
        self.grid = grid
        self.storages = storages
        self.lock = threading.Lock()
        self.aborted = False


class Frame(dict[Value, Array]):
    """What the SSA values hold, for `programs` programs.

    The key is the value itself: names are reused in sibling regions, and its hash is its address.

    `pids`: the three program ids, int32 [programs] or [1] each.
    """

    __slots__ = ("launch", "pids", "programs")

    def __init__(self, launch: Launch, pids: Sequence[Array], programs: int) -> None:
        self.launch = launch
        self.pids = tuple(pids)
        self.programs = programs

    def empty(self) -> Frame:
        """A frame of the same programs without values (a called function)."""
        return Frame(self.launch, self.pids, self.programs)

    def copy(self) -> Frame:
        other = self.empty()
        other.update(self)
        return other

    def select(self, wanted: Iterable[Value], programs: Array) -> Frame:
        """The values `wanted` for some programs (int64 indices)."""
        pids = [p if p.shape[0] == 1 else p[programs] for p in self.pids]
        other = Frame(self.launch, pids, len(programs))
        for key in wanted:
            held = self.get(key)
            if held is not None:
                other[key] = held if held.shape[0] == 1 else held[programs]
        return other

    def spread(self, wanted: Iterable[Value], lanes: int) -> Frame:
        """The values `wanted` (scalars) with each program repeated `lanes` times: one program per
        element of a tile."""
        pids = [p if p.shape[0] == 1 else np.repeat(p, lanes) for p in self.pids]
        other = Frame(self.launch, pids, self.programs * lanes)
        for key in wanted:
            held = self.get(key)
            if held is not None:
                other[key] = held if held.shape[0] == 1 else np.repeat(held, lanes, axis=0)
        return other

    def program(self, index: int) -> tuple[int, int, int]:
        """Program ids (x, y, z) of a row of axis 0."""
        x, y, z = (int(p[index if p.shape[0] > 1 else 0]) for p in self.pids)
        return x, y, z


def full(x: Array, kind: Type) -> Array:
    """`x` with all lanes of its type (axis 0 stays as it is)."""
    shape = (x.shape[0], *kind.dims)
    return x if x.shape == shape else np.broadcast_to(x, shape)


def full_rows(arrays: Sequence[Array], kinds: Sequence[Type]) -> list[Array]:
    """All lanes and a common number of programs."""
    rows = max(x.shape[0] for x in arrays)
    return [
        x if x.shape == (rows, *t.dims) else np.broadcast_to(x, (rows, *t.dims))
        for x, t in zip(arrays, kinds, strict=True)
    ]


def merge(
    programs: int, parts: Sequence[tuple[Array, Sequence[Array]]], kinds: Sequence[Type]
) -> list[Array]:
    """Put results of disjoint sets of programs together: `parts` are (program indices, values)."""
    merged = []
    for k, kind in enumerate(kinds):
        out = np.zeros((programs, *kind.dims), register_dtype(kind.element))
        for chosen, values in parts:
            out[chosen] = values[k]
        merged.append(out)
    return merged
