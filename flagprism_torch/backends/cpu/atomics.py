"""Rules for atomic read-modify-write ops.

32- and 64-bit types use the atomics of Triton's own interpreter (libtriton.interpreter.atomic_rmw
and atomic_cas, present in Triton 3.6 to 3.9); they are real machine atomics, so programs in threads
may meet on one address. Other widths run under the launch's lock, one lane per address at a time.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import numpy as np

from ...ir.module import Op, Value
from .frame import Frame, LaunchAborted
from .lowering import Lowering, Step, rule
from .memory import Access, access, load
from .scalars import BINARY, Function
from .storages import window
from .types import Array, from_memory, memory_dtype, register_dtype, to_memory, unsigned

_KINDS = {
    "add": "ADD",
    "fadd": "FADD",
    "and": "AND",
    "or": "OR",
    "xor": "XOR",
    "exch": "XCHG",
    "max": "MAX",
    "min": "MIN",
    "umax": "UMAX",
    "umin": "UMIN",
}
_FUNCTIONS: dict[str, Function] = {
    "add": np.add,
    "fadd": np.add,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
    "exch": lambda old, new: new,
    "max": np.maximum,
    "min": np.minimum,
    "umax": BINARY["arith.maxui"],
    "umin": BINARY["arith.minui"],
}


def _native() -> Any:
    from triton._C.libtriton import interpreter

    return interpreter


def _tile(frame: Frame, value: Value, shape: tuple[int, ...]) -> Array:
    return np.ascontiguousarray(np.broadcast_to(frame[value], shape))


def _check(frame: Frame, at: Access, p: Array, mask: Array) -> bool:
    """Whether any lane is active; raises for one that must not touch its address."""
    active = p[mask]
    if not active.size:
        return False
    at.check(frame, p, mask, int(active.min()), int(active.max()))
    return True


def _turns(addresses: Array) -> Iterator[Array]:
    """Index sets within which every address is different; equal addresses keep their order."""
    order = np.argsort(addresses, kind="stable")
    ordered = addresses[order]
    first = np.searchsorted(ordered, ordered, side="left")
    rank = np.arange(len(ordered)) - first
    for turn in range(int(rank.max()) + 1):
        yield order[rank == turn]


@rule("tt.atomic_rmw")
def _rmw(op: Op, lowering: Lowering) -> Step:
    kind = op.head.split()[0].rstrip(",")
    if kind not in _KINDS:
        raise lowering.unsupported(op, kind)
    at, out = access(op, lowering, "updates"), op.results[0]
    pointer, operand = op.operands[:2]
    mask = op.operands[2] if len(op.operands) > 2 else None
    tile, dtype = op.operand_types[0].dims, register_dtype(at.elem)
    by_native = dtype.itemsize >= 4 and at.elem != "bf16" and dtype.kind in "if"
    interpreter = _native()
    code = getattr(interpreter.RMW_OP, _KINDS[kind])
    order = interpreter.MEM_SEMANTIC.ACQUIRE_RELEASE
    as_bits = kind == "exch" and dtype.kind == "f"

    def step(frame: Frame) -> None:
        shape = (frame.programs, *tile)
        p, value = _tile(frame, pointer, shape), _tile(frame, operand, shape)
        active = np.ones(shape, bool) if mask is None else _tile(frame, mask, shape)
        if not _check(frame, at, p, active):
            frame[out] = np.zeros(shape, dtype)
            return
        if not by_native:
            frame[out] = _locked(frame, at.elem, p, value, active, _FUNCTIONS[kind])
            return
        if kind in ("umax", "umin"):
            value = unsigned(value)
        elif as_bits:
            value = value.view(f"i{dtype.itemsize}")
        old = interpreter.atomic_rmw(code, p.astype(np.uint64), value, active, order)
        frame[out] = np.asarray(old).reshape(shape).view(dtype)

    return step


def _locked(
    frame: Frame, elem: str, p: Array, value: Array, active: Array, function: Function
) -> Array:
    """The values before, [programs, ...]; masked-off lanes 0."""
    dtype = memory_dtype(elem)
    old = np.zeros(p.shape, register_dtype(elem))
    before, operands, addresses = old[active], value[active], p[active]
    low, high = int(addresses.min()), int(addresses.max())
    cells, index = window(low, high, dtype), (addresses - low) // dtype.itemsize
    with frame.launch.lock:
        for turn in _turns(addresses):
            before[turn] = from_memory(cells[index[turn]], elem)
            cells[index[turn]] = to_memory(function(before[turn], operands[turn]), elem)
    old[active] = before
    return old


@rule("tt.atomic_cas")
def _cas(op: Op, lowering: Lowering) -> Step:
    at, out = access(op, lowering, "updates"), op.results[0]
    pointer, expected, wanted = op.operands
    tile, dtype, cell = op.operand_types[0].dims, register_dtype(at.elem), memory_dtype(at.elem)
    interpreter = _native()
    order = interpreter.MEM_SEMANTIC.ACQUIRE_RELEASE
    word = np.dtype(f"i{cell.itemsize}")

    def step(frame: Frame) -> None:
        shape = (frame.programs, *tile)
        p = _tile(frame, pointer, shape)
        _check(frame, at, p, np.ones(shape, bool))
        compare = to_memory(_tile(frame, expected, shape), at.elem).view(word)
        new = to_memory(_tile(frame, wanted, shape), at.elem).view(word)
        if word.itemsize >= 4:
            old = interpreter.atomic_cas(p.astype(np.uint64), compare, new, order)
        else:
            old = _locked_cas(frame, word, p, compare, new)
        old = np.ascontiguousarray(old).reshape(shape)
        frame[out] = from_memory(old.view(cell), at.elem).astype(dtype, copy=False)

    return step


def _locked_cas(frame: Frame, word: np.dtype[Any], p: Array, compare: Array, new: Array) -> Array:
    addresses, compare, new = p.ravel(), compare.ravel(), new.ravel()
    low, high = int(addresses.min()), int(addresses.max())
    cells, index = window(low, high, word), (addresses - low) // word.itemsize
    old = np.zeros(len(addresses), word)
    with frame.launch.lock:
        for turn in _turns(addresses):
            old[turn] = cells[index[turn]]
            cells[index[turn]] = np.where(old[turn] == compare[turn], new[turn], old[turn])
    return old


@rule("tt.atomic_poll")
def _poll(op: Op, lowering: Lowering) -> Step:
    """Triton 3.9: wait until memory holds the expected value, or a number of nanoseconds."""
    at, out = access(op, lowering, "reads"), op.results[0]
    pointer, expected = op.operands[:2]
    limit = op.operands[2] if len(op.operands) > 2 else None
    tile = op.operand_types[0].dims

    def step(frame: Frame) -> None:
        shape = (frame.programs, *tile)
        p, target = _tile(frame, pointer, shape), _tile(frame, expected, shape)
        end = None if limit is None else time.perf_counter_ns() + int(frame[limit].max())
        seen = np.zeros(shape, bool)
        while True:
            seen |= load(frame, at, p, ~seen, target) == target
            if seen.all() or (end is not None and time.perf_counter_ns() >= end):
                break
            if frame.launch.aborted:
                raise LaunchAborted
            time.sleep(0)
        frame[out] = seen

    return step
