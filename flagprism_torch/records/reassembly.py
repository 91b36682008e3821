"""A tensor put together from the lanes of all programs that touch it."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from .address_model import TensorLayout

if TYPE_CHECKING:
    from .full_values import FullValue

Array = np.ndarray[Any, Any]
_MOST_ELEMENTS = 2  # of a tensor per lane, for it to be written to a file


class GlobalTensor(NamedTuple):
    """`values`: in the shape and with the strides of the kernel argument, 0 where nothing was
    written, in the type of `FullValue.array`; `written`: bool, which elements a lane touched. Both
    None if they cannot be had; `reason` says why."""

    values: Array | None
    written: Array | None
    reason: str = ""


def worth_writing(layout: TensorLayout, lanes: int) -> bool:
    """Whether a tensor is not much larger than what was recorded of it."""
    return math.prod(layout.shape) <= _MOST_ELEMENTS * lanes


class _Refused(Exception):
    pass


def assemble(value: FullValue) -> GlobalTensor:
    """The tensor behind a load or store.

    Of several executions in one program the last one counts. Refused where different lanes hold
    different bits for one element, where a lane is no element of the tensor, and where lanes are
    missing.
    """
    try:
        return GlobalTensor(*_assembled(value))
    except _Refused as error:
        return GlobalTensor(None, None, str(error))


def _assembled(value: FullValue) -> tuple[Array, Array]:
    offsets, active = value.offsets, value.active
    if value.role == "atomic":
        raise _Refused("an atomic gives what an element held before, not what it holds")
    if value.role == "value":
        raise _Refused(f"{value.entry.op} is no access to memory")
    if offsets is None or active is None:
        hint = "" if value.role == "store" else "; addr_level=2 records those of loads"
        raise _Refused(f"no offsets were recorded{hint}")
    if not value.complete:
        raise _Refused(
            f"incomplete: {int(value.executions.max())} executions, {value.capacity} recorded"
        )
    if len(value.entry.arguments) != 1:
        raise _Refused("the pointer is not that of one argument")
    layout = value.layout
    if layout is None:
        raise _Refused(f"nothing is known about the tensor of argument {value.argument}")
    array = value.array
    size = array.dtype.itemsize
    if size != layout.itemsize:
        raise _Refused(f"elements of {size} bytes in a tensor of {layout.dtype}")
    place, bits = offsets[active], array[active].view(f"u{size}")
    if place.size and (
        np.any(place % size) or place.min() < 0 or place.max() + size > layout.nbytes
    ):
        raise _Refused("lanes lie outside of the tensor")
    place = place // size
    flat = np.zeros(layout.nbytes // size, f"u{size}")
    written = np.zeros(len(flat), bool)
    strides = layout.strides
    elements = np.zeros(len(flat), bool)
    _view(elements, layout.shape, strides)[...] = True
    if not np.all(elements[place]):
        raise _Refused("lanes lie between the elements of the tensor")
    last = _last(place, active)
    place, bits = place[last], bits[last]
    flat[place] = bits
    if not np.array_equal(flat[place], bits):
        raise _Refused("lanes disagree about an element")
    written[place] = True
    values = _view(flat, layout.shape, strides).view(array.dtype)
    return values, _view(written, layout.shape, strides)


def _last(place: Array, active: Array) -> Array:
    """Of active lanes: whether no later execution of its program touches the same element."""
    rows, executions = (index.astype(np.int64) for index in np.nonzero(active)[:2])
    if not place.size or active.shape[1] < 2:
        return np.ones(len(place), bool)
    key = rows * (int(place.max()) + 1) + place
    _, group = np.unique(key, return_inverse=True)
    latest = np.zeros(int(group.max()) + 1, np.int64)
    np.maximum.at(latest, group, executions)
    return np.asarray(executions == latest[group])


def _view(flat: Array, shape: tuple[int, ...], strides: tuple[int, ...]) -> Array:
    size = flat.dtype.itemsize
    return np.lib.stride_tricks.as_strided(flat, shape, tuple(size * s for s in strides))
