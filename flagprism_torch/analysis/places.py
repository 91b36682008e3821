"""From an offset in bytes to an index of the argument's own shape."""

from __future__ import annotations

from collections.abc import Sequence

from ..records.address_model import TensorLayout
from ..records.model import Launch


def layout_of(launch: Launch, argument: str | None) -> TensorLayout | None:
    """How an argument of a launch lay in memory."""
    return next((one for one in launch.layouts if one.name == argument), None)


def index_of(element: int, shape: Sequence[int], strides: Sequence[int]) -> tuple[int, ...] | None:
    """The index of the element that lies `element` elements behind the first one, in a tensor of
    this shape and these strides. Before the start and behind the end the axis of the largest stride
    counts on, below 0 or beyond its extent. None where no index leads there (a gap between rows, a
    tensor without axes) or where axes overlap.
    """
    axes = [axis for axis, (n, s) in enumerate(zip(shape, strides, strict=True)) if s and n != 1]
    axes.sort(key=lambda axis: -strides[axis])
    index = [0] * len(shape)
    if not axes:
        # only axes of one element: the last of them counts on
        if not shape:
            return None if element else ()
        index[-1] = element
        return tuple(index)
    left = element
    for position, axis in enumerate(axes):
        index[axis], left = divmod(left, strides[axis])
        if position and index[axis] >= shape[axis]:
            return None
    return None if left else tuple(index)
