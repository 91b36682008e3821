"""Lanes of descriptor accesses that lie inside of the tensor; the others are filled or dropped."""

from __future__ import annotations

import re

from flagprism_torch.ir.mask_shapes import expanded, reshaped, spread
from flagprism_torch.ir.masks import ALL, UNKNOWN, Mask, both, within
from flagprism_torch.ir.module import Function, Op, Value

_SHAPE = re.compile(r"!tt\.tensordesc<(?:tensor<)?((?:\d+x)+)")


def in_bounds(op: Op, function: Function) -> Mask:
    """The lanes of a descriptor operation that lie inside of the tensor, in the shape of its tile;
    UNKNOWN where the tensor's shape is not at hand."""
    if not op.operands:
        return UNKNOWN
    descriptor = op.operands[0]
    extents = _extents(descriptor, function)
    kind = op.results[0].type if op.results else _source(op).type
    if extents is None or not kind.is_tensor:
        return UNKNOWN
    if op.name in ("tt.descriptor_gather", "tt.descriptor_scatter"):
        rows, column = op.operands[1:3]
        if len(kind.dims) != 2 or len(extents) != 2:
            return UNKNOWN
        inside = within(rows, extents[0], kind.dims[0])
        across = within(column, extents[1], kind.dims[1])
        return both(spread(expanded(inside, 1), kind.dims), spread(expanded(across, 0), kind.dims))
    indices = op.operands[1:] if op.name == "tt.descriptor_load" else op.operands[2:]
    tile = _tile(descriptor)
    dropped = len(tile) - len(kind.dims)  # leading axes of extent 1 that the result lacks
    if (
        len(indices) != len(tile)
        or tile[dropped:] != kind.dims
        or any(extent != 1 for extent in tile[:dropped])
    ):
        return UNKNOWN
    result = ALL
    for axis, (index, extent) in enumerate(zip(indices, extents, strict=True)):
        line = within(index, extent, tile[axis])
        at = max(axis - dropped, 0)
        shape = tuple(tile[axis] if k == at else 1 for k in range(len(kind.dims)))
        if axis < dropped:
            shape = (1,) * len(kind.dims)
        result = both(result, spread(reshaped(line, shape), kind.dims))
    return result


def _source(op: Op) -> Value:
    """The tile that a descriptor operation writes."""
    return op.operands[3 if op.name == "tt.descriptor_scatter" else 1]


def _tile(descriptor: Value) -> tuple[int, ...]:
    match = _SHAPE.match(descriptor.type.text)
    return tuple(int(n) for n in match.group(1).split("x") if n) if match else ()


def _extents(descriptor: Value, function: Function) -> list[Value] | None:
    """The tensor's shape: operands of its making, or the arguments behind a descriptor argument."""
    rank = len(_tile(descriptor))
    op = descriptor.op
    if not rank:
        return None
    if op is not None:
        return op.operands[1 : 1 + rank] if op.name == "tt.make_tensor_descriptor" else None
    if descriptor not in function.arguments:
        return None
    # Triton passes a descriptor as itself, its shape (int32) and its strides (int64)
    at = function.arguments.index(descriptor) + 1
    parts = function.arguments[at : at + 2 * rank]
    kinds = [part.type.text for part in parts]
    # %desc_0, %desc_1, ...; since Triton 3.8 %desc.shape.0, ..., %desc.stride.0
    behind = re.compile(rf"{re.escape(descriptor.name)}(_\d+|\.(shape|stride)\.\d+)")
    named = all(behind.fullmatch(part.name) for part in parts)
    if kinds != ["i32"] * rank + ["i64"] * rank or not named:
        return None
    return parts[:rank]
