"""Shape operations on descriptions of lanes (ir.masks)."""

from __future__ import annotations

import re
from collections.abc import Callable

from flagprism_torch.ir.masks import (
    ALL,
    CONSTANTS,
    NONE,
    UNKNOWN,
    Mask,
    attributes_of,
    axis_attribute,
    conjuncts,
    i1,
    leaf,
    leaves,
    merged,
    negated,
)
from flagprism_torch.ir.module import Value

Dims = tuple[int, ...]


def shaped(mask: Mask, name: str, attributes: str, dims: Dims) -> Mask:
    """A shape operation applied to a description; `dims` is the shape of the result."""
    if mask in CONSTANTS:
        return mask
    if mask.kind in ("and", "or"):
        result = shaped(mask.arguments[0], name, attributes, dims)
        for part in mask.arguments[1:]:
            result = merged(mask.kind, result, shaped(part, name, attributes, dims))
        return result
    if mask.kind == "not":
        return negated(shaped(mask.arguments[0], name, attributes, dims))
    if mask.kind == "op":
        inner, before, others = mask.arguments
        if (
            name == "tt.reshape"
            and inner.type.dims == dims
            and before
            in (
                "tt.reshape",
                "tt.expand_dims",
            )
        ):
            return inner
        if name == "tt.expand_dims" and before == "tt.reshape" and inner.type.dims == dims:
            return inner
        if name == "tt.reshape" and before == "tt.broadcast":
            for axis in range(len(mask.type.dims)):
                if mask.type.dims[axis] == 1 and _without(mask.type.dims, axis) == dims:
                    return spread(reshaped(inner, _without(inner.type.dims, axis)), dims)
        if name == "tt.expand_dims" and before == "tt.broadcast":
            return spread(expanded(inner, _axis_of(attributes)), dims)
        if name == before and name in ("tt.reshape", "tt.broadcast", "tt.splat"):
            return shaped(inner, name, attributes, dims)
        if name == before == "tt.trans" and _order_of(others) == _inverse(_order_of(attributes)):
            return inner
        if name == "tt.broadcast" and before == "tt.splat":
            return shaped(inner, "tt.splat", "", dims)
    if mask.kind == "value" and name == "tt.reshape":
        op = mask.arguments[0].op
        if op is not None and op.name == "tt.expand_dims" and op.operands[0].type.dims == dims:
            return leaf(op.operands[0])
    if mask.type.dims == dims and name != "tt.trans":
        return mask
    return Mask("op", i1(dims), (mask, name, attributes))


def reshaped(mask: Mask, dims: Dims) -> Mask:
    """The lanes in row-major order, in another shape."""
    return shaped(mask, "tt.reshape", "", dims)


def expanded(mask: Mask, axis: int) -> Mask:
    """One more axis of extent 1."""
    dims = mask.type.dims
    return shaped(mask, "tt.expand_dims", axis_attribute(axis), (*dims[:axis], 1, *dims[axis:]))


def spread(mask: Mask, dims: Dims) -> Mask:
    """Repeated along axes of extent 1; a scalar in all lanes."""
    if mask in CONSTANTS or mask.type.dims == dims:
        return mask
    return shaped(mask, "tt.broadcast" if mask.type.is_tensor else "tt.splat", "", dims)


def transposed(mask: Mask, order: Dims) -> Mask:
    """Axis i of the result is axis order[i]."""
    if mask in CONSTANTS:
        return mask
    dims = tuple(mask.type.dims[axis] for axis in order)
    listed = ", ".join(map(str, order))
    return shaped(mask, "tt.trans", f"{{order = array<i32: {listed}>}}", dims)


def order_of(head: str) -> Dims:
    """The permutation in the attributes of a tt.trans."""
    return _order_of(attributes_of(head))


def _without(dims: Dims, axis: int) -> Dims:
    return dims[:axis] + dims[axis + 1 :]


def _axis_of(attributes: str) -> int:
    return int(re.findall(r"\d+", attributes)[0])


def _order_of(attributes: str) -> Dims:
    return tuple(int(n) for n in re.findall(r"\d+(?=[,>])", attributes.partition(":")[2]))


def _inverse(order: Dims) -> Dims:
    return tuple(order.index(axis) for axis in range(len(order)))


def untransposed(mask: Mask, order: Dims) -> Mask:
    """The description before `transposed`."""
    return transposed(mask, _inverse(order))


# -- reductions


def collapsed(mask: Mask, axis: int) -> Mask:
    """Whether any lane along the axis is in; without the axis. A factor that is the same along the
    axis stands outside, so that the reduction itself is small."""
    if mask in CONSTANTS:
        return mask
    dims = mask.type.dims
    kept = _without(dims, axis)
    if mask.kind == "or":
        result = NONE
        for part in mask.arguments:
            result = merged("or", result, collapsed(part, axis))
        return result
    if dims[axis] == 1:
        return reshaped(mask, kept) if kept else _only(mask)
    source = _unspread(mask)
    if source is not None:
        inner = collapsed(source, axis)
        return spread(inner, kept) if kept else inner
    factors = list(_factors(mask))
    fixed = [part for part in factors if _repeats(part, axis)]
    if not fixed or not kept:
        return Mask("any", i1(kept), (mask, axis))
    result, moving = ALL, ALL
    for part in factors:
        if part in fixed:
            result = merged("and", result, collapsed(part, axis))
        else:
            moving = merged("and", moving, part)
    return merged("and", result, collapsed(moving, axis))


def _only(mask: Mask) -> Mask:
    """The one lane of a description of shape (1,), as a scalar."""
    if mask.kind == "op" and mask.arguments[1] == "tt.splat":
        inner: Mask = mask.arguments[0]
        return inner
    return Mask("any", i1(()), (mask, 0))


def _factors(mask: Mask) -> tuple[Mask, ...]:
    if mask.kind == "and":
        return tuple(piece for part in mask.arguments for piece in _factors(part))
    if mask.kind == "value":
        parts = [v for v in conjuncts(mask.arguments[0]) if not _is_conjunction(v)]
        if len(parts) > 1:
            return tuple(leaf(part) for part in parts)
    return (mask,)


def _is_conjunction(value: Value) -> bool:
    return value.op is not None and value.op.name == "arith.andi"


def _unspread(mask: Mask) -> Mask | None:
    """What a description repeats, None if it is no broadcast."""
    if mask.kind == "not":
        source = _unspread(mask.arguments[0])
        return None if source is None else negated(source)
    if mask.kind == "op" and mask.arguments[1] == "tt.broadcast":
        inner: Mask = mask.arguments[0]
        return inner
    if mask.kind == "value":
        op = mask.arguments[0].op
        if op is not None and op.name == "tt.broadcast":
            return leaf(op.operands[0])
    return None


def _repeats(mask: Mask, axis: int) -> bool:
    """Whether a description is seen to be the same along an axis."""
    source = _unspread(mask)
    return source in CONSTANTS or (source is not None and source.type.dims[axis] == 1)


def unspread(mask: Mask, dims: Dims) -> Mask:
    """Where a lane of shape `dims` is in anywhere it is repeated to: what `spread` came from."""
    if mask in CONSTANTS or mask.type.dims == dims:
        return mask
    for axis, extent in enumerate(dims):
        if extent != mask.type.dims[axis]:
            mask = collapsed(mask, axis)
            if mask in CONSTANTS:
                return mask
            mask = expanded(mask, axis) if mask.type.is_tensor else spread(mask, (1,))
    return mask


def along(mask: Mask, axis: int, dims: Dims) -> Mask:
    """Any lane along an axis, for all lanes of shape `dims`, which may differ along that axis."""
    if mask in CONSTANTS:
        return mask
    line = collapsed(mask, axis)
    if line in CONSTANTS:
        return line
    return spread(expanded(line, axis), dims) if line.type.is_tensor else spread(line, dims)


def across(mask: Mask, dims: Dims) -> Mask:
    """A description of columns [..., N], for all rows of [..., M, N]."""
    if mask in CONSTANTS:
        return mask
    return spread(expanded(mask, len(dims) - 2), dims)


def scanned(mask: Mask, axis: int, reverse: bool) -> Mask:
    """The lanes that a scan along the axis (from its end with `reverse`) takes up for `mask`."""
    if mask in CONSTANTS or _repeats(mask, axis):
        return mask
    return Mask("reverse_any", mask.type, (mask, axis, reverse))


# -- pairs


def paired(left: Mask, right: Mask, dims: Dims) -> Mask:
    """Two descriptions as halves of the last axis; `dims` is the shape of the result."""
    if left == right and left in CONSTANTS:
        return left
    if UNKNOWN in (left, right):
        return UNKNOWN
    if left.kind == "half" and right == Mask("half", left.type, (left.arguments[0], 1)):
        source: Mask = left.arguments[0]
        return source
    return Mask("join", i1(dims), (left, right))


def halved(mask: Mask, which: int) -> Mask:
    """Half 0 or 1 of the last axis, whose extent is 2."""
    if mask in CONSTANTS:
        return mask
    if mask.kind == "join":
        part: Mask = mask.arguments[which]
        return part
    if mask.kind in ("and", "or"):
        result = halved(mask.arguments[0], which)
        for piece in mask.arguments[1:]:
            result = merged(mask.kind, result, halved(piece, which))
        return result
    if mask.kind == "not":
        return negated(halved(mask.arguments[0], which))
    axis = len(mask.type.dims) - 1
    if _repeats(mask, axis):
        return collapsed(mask, axis)
    return Mask("half", i1(mask.type.dims[:-1]), (mask, which))


# -- supersets


def weakened(mask: Mask, holds: Callable[[Value], bool]) -> Mask:
    """The description, or one of more lanes, that only names values of which `holds` is true."""
    if all(holds(value) for value in leaves(mask)):
        return mask
    parts = [weakened(part, holds) for part in mask.arguments if isinstance(part, Mask)]
    if mask.kind in ("and", "or"):
        result = parts[0]
        for part in parts[1:]:
            result = merged(mask.kind, result, part)
        return result
    if mask.kind == "op":
        return shaped(parts[0], mask.arguments[1], mask.arguments[2], mask.type.dims)
    if mask.kind == "any":
        return collapsed(parts[0], mask.arguments[1])
    if mask.kind == "reverse_any":
        return scanned(parts[0], *mask.arguments[1:])
    if mask.kind == "half":
        return halved(parts[0], mask.arguments[1])
    if mask.kind == "join":
        return paired(parts[0], parts[1], mask.type.dims)
    return ALL
