"""Rules for addresses, loads and stores, with the bounds test of every access."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...errors import InvalidPointerError
from ...ir.module import Op
from .frame import Frame
from .lowering import Lowering, Step, rule
from .storages import window
from .types import Array, from_memory, memory_dtype, register_dtype, to_memory


@rule("tt.addptr")
def _addptr(op: Op, lowering: Lowering) -> Step:
    (pointer, offset), out = op.operands, op.results[0]
    size = np.int64(memory_dtype(op.operand_types[0].pointee).itemsize)

    def step(frame: Frame) -> None:
        base, bytes_ = frame[pointer], frame[offset].astype(np.int64)
        bytes_ *= size
        if np.broadcast_shapes(base.shape, bytes_.shape) == bytes_.shape:
            bytes_ += base  # in place: memory traffic is what these kernels cost
            frame[out] = bytes_
        else:
            frame[out] = base + bytes_

    return step


@dataclass(frozen=True)
class Access:
    """One memory op: its element type, and what an error says about it.

    `arguments`: Python names of the kernel arguments the pointer may come from, None among them for
    anything else. `aligned`: the pointer kept its argument's element type, so that addresses are
    multiples of the element size apart.
    """

    elem: str
    verb: str
    arguments: frozenset[str | None]
    likely: str | None
    aligned: bool
    statement: Callable[[], str]
    dtype: np.dtype[Any]

    @property
    def itemsize(self) -> int:
        return self.dtype.itemsize

    def cells(self, addresses: Array, low: int, high: int) -> tuple[Array, Array]:
        """Memory from address `low` to `high`, and the place of each address in it."""
        place = addresses - low
        place >>= self.itemsize.bit_length() - 1  # sizes are powers of two
        return window(low, high, self.dtype), place

    def check(
        self, frame: Frame, addresses: Array, mask: Array | None, low: int, high: int
    ) -> None:
        """Raise InvalidPointerError if an active lane must not be touched.

        `addresses` int64 [programs or 1, ...]; `mask` bool of the same shape or None for all lanes;
        `low` and `high` the smallest and largest active address.
        """
        size = self.itemsize
        if not frame.launch.storages.holds(low, high, size, self.likely):
            active = addresses.reshape(-1) if mask is None else addresses[mask]
            bad = frame.launch.storages.outside(active, size, self.arguments)
            if bad is not None:
                raise self.error(frame, addresses, mask, bad.index, bad.reason)
        if not self.aligned and size > 1:
            active = addresses.reshape(-1) if mask is None else addresses[mask]
            odd = (active & (size - 1)) != 0
            if odd.any():
                at = int(np.argmax(odd))
                reason = f"address {int(active[at]):#x} is not a multiple of {size} bytes"
                raise self.error(frame, addresses, mask, at, reason)

    def error(
        self, frame: Frame, addresses: Array, mask: Array | None, index: int, reason: str
    ) -> InvalidPointerError:
        """`index`: position among the active lanes in row-major order."""
        flat = index if mask is None else int(np.flatnonzero(mask)[index])
        row, *place = np.unravel_index(flat, addresses.shape)
        lane = int(np.ravel_multi_index(place, addresses.shape[1:])) if place else 0
        return InvalidPointerError(
            f"kernel {frame.launch.kernel} {self.verb} {self.itemsize} bytes at {reason}; "
            f"program {frame.program(int(row))}, lane {lane}; statement {self.statement()}"
        )


def access(op: Op, lowering: Lowering, verb: str) -> Access:
    """The access of a memory op whose first operand is the pointer."""
    pointer = op.operands[0]
    arguments = lowering.origins.of(pointer)
    return Access(
        op.operand_types[0].pointee,
        verb,
        arguments,
        next(iter(sorted(a for a in arguments if a is not None)), None),
        lowering.origins.same_type(pointer),
        lambda: lowering.statement(op),
        memory_dtype(op.operand_types[0].pointee),
    )


def load(frame: Frame, at: Access, p: Array, mask: Array | None, other: Array | None) -> Array:
    """Values at addresses `p`; masked-off lanes hold `other` (0 without it)."""
    if mask is None or mask.all():
        low, high = int(p.min()), int(p.max())
        at.check(frame, p, None, low, high)
        memory, place = at.cells(p, low, high)
        return from_memory(memory[place], at.elem)
    shape = np.broadcast_shapes(p.shape, mask.shape, () if other is None else other.shape)
    p, mask = np.broadcast_to(p, shape), np.broadcast_to(mask, shape)
    if other is None:
        out = np.zeros(shape, register_dtype(at.elem))
    else:
        out = np.array(np.broadcast_to(other, shape))
    active = p[mask]
    if active.size:
        low, high = int(active.min()), int(active.max())
        at.check(frame, p, mask, low, high)
        memory, place = at.cells(active, low, high)
        out[mask] = from_memory(memory[place], at.elem)
    return out


def store(frame: Frame, at: Access, p: Array, value: Array, mask: Array | None) -> None:
    """Write `value` to addresses `p`; of several lanes with one address the last one wins."""
    cells = to_memory(value, at.elem)
    if mask is None or mask.all():
        shape = np.broadcast_shapes(p.shape, cells.shape)
        low, high = int(p.min()), int(p.max())
        at.check(frame, p, None, low, high)
        if p.shape != shape:
            p = np.broadcast_to(p, shape)
        memory, place = at.cells(p, low, high)
        memory[place] = cells
        return
    shape = np.broadcast_shapes(p.shape, cells.shape, mask.shape)
    p, mask = np.broadcast_to(p, shape), np.broadcast_to(mask, shape)
    active = p[mask]
    if active.size:
        low, high = int(active.min()), int(active.max())
        at.check(frame, p, mask, low, high)
        memory, place = at.cells(active, low, high)
        memory[place] = np.broadcast_to(cells, shape)[mask]


@rule("tt.load")
def _load(op: Op, lowering: Lowering) -> Step:
    at, out = access(op, lowering, "reads"), op.results[0]
    pointer, mask, other = (*op.operands, None, None)[:3]
    assert pointer is not None

    def step(frame: Frame) -> None:
        frame[out] = load(
            frame,
            at,
            frame[pointer],
            None if mask is None else frame[mask],
            None if other is None else frame[other],
        )

    return step


@rule("tt.store")
def _store(op: Op, lowering: Lowering) -> Step:
    at = access(op, lowering, "writes")
    pointer, value = op.operands[:2]
    mask = op.operands[2] if len(op.operands) > 2 else None

    def step(frame: Frame) -> None:
        store(frame, at, frame[pointer], frame[value], None if mask is None else frame[mask])

    return step


@rule("tt.atomic_load")
def _atomic_load(op: Op, lowering: Lowering) -> Step:
    at, out = access(op, lowering, "reads"), op.results[0]
    pointer, mask = (*op.operands, None)[:2]
    assert pointer is not None

    def step(frame: Frame) -> None:
        frame[out] = load(frame, at, frame[pointer], None if mask is None else frame[mask], None)

    return step


@rule("tt.atomic_store")
def _atomic_store(op: Op, lowering: Lowering) -> Step:
    return _store(op, lowering)
