"""Valid lanes: which lanes of a value were computed without a masked-off load lane.

Note [Loops]
A loop is a reduction over its iterations: a value that it carries, computed from itself, is valid
where its initial value or a contribution is; so is, if it starts valid everywhere, what a single
iteration makes of it. A carried value that is replaced in each iteration is
known only if what replaces it is valid in the same lanes.

Note [Padding that is data]
Inductor's `constant_pad_nd` and `cat` load under a condition of the model (`tmpN`) besides the
bounds of the tile (`xmask`, `rmask`); `other` is then what the model says is there, and valid.
"""

from __future__ import annotations

import re

from flagprism_torch.ir.bounds import in_bounds
from flagprism_torch.ir.flow import edges
from flagprism_torch.ir.mask_shapes import (
    across,
    along,
    collapsed,
    halved,
    order_of,
    paired,
    reshaped,
    shaped,
    spread,
    transposed,
)
from flagprism_torch.ir.masks import (
    ALL,
    CONSTANTS,
    UNKNOWN,
    Mask,
    attributes_of,
    both,
    chosen,
    conjuncts,
    either,
    is_constant,
    leaf,
    leaves,
    size,
)
from flagprism_torch.ir.module import Block, Function, Op, Value
from flagprism_torch.ir.recipes import outlives
from flagprism_torch.ir.structure import is_elementwise, is_packed_across, roles

LARGEST = 24  # nodes of a description
_ROUNDS = 4  # of a loop, until its carried values settle

_SHAPES = ("tt.expand_dims", "tt.broadcast", "tt.reshape", "tt.trans", "tt.splat", "tt.join",
           "tt.split")  # fmt: skip
_APART = ("tt.load", "tt.atomic_rmw", "tt.atomic_cas", "arith.select")  # operand 0 is no data
_MASK_OPERAND = {"tt.load": 1, "tt.store": 2, "tt.atomic_rmw": 2}
_NUMEL = re.compile(r"[xyzr]\d*_?numel")
_TEMPORARY = re.compile(r"tmp\d+")


def is_uniform(value: Value) -> bool:
    """Whether a tile repeats one scalar."""
    op = value.op
    while op is not None and op.name in ("tt.broadcast", "tt.expand_dims", "tt.reshape"):
        op = op.operands[0].op
    return op is not None and op.name == "tt.splat"


class ValidLanes:
    """Descriptions for every value of a kernel's entry function.

    The values that a description names can be had next to the described value, or computed there
    once more (ir.recipes). Descriptions of more than LARGEST nodes are UNKNOWN.
    """

    def __init__(self, function: Function) -> None:
        self._function = function
        self._masks: dict[int, Mask] = {}
        self._generated = any(_NUMEL.fullmatch(label) for label in function.labels)
        self._ways = _Ways(function)
        self._reduced: set[int] = set()  # on the way of a carried value that starts valid
        self._access: set[int] = set()  # i1 values whose conjunctions mask loads, stores, atomics
        for op in function.walk():
            position = _MASK_OPERAND.get(op.name)
            if position is not None and len(op.operands) > position:
                self._access |= {id(value) for value in conjuncts(op.operands[position])}
        for block in function.blocks[1:]:
            for argument in block.arguments:
                self._masks[id(argument)] = UNKNOWN
        for block in function.blocks:
            self._block(block)

    def of(self, value: Value) -> Mask:
        """Valid lanes of a value; values without tensor operands are valid everywhere."""
        return self._masks.get(id(value), ALL)

    def _set(self, value: Value, mask: Mask) -> None:
        if mask is ALL or id(value) in self._reduced:
            self._masks.pop(id(value), None)
        else:
            self._masks[id(value)] = UNKNOWN if size(mask) > LARGEST else mask

    def _block(self, block: Block) -> None:
        for op in block.ops:
            if op.name == "scf.for":
                self._loop(op)
            elif op.name == "scf.while":
                self._while(op)
            elif op.name == "scf.if":
                self._branch(op)
            else:
                for value in op.results:
                    self._set(value, self._result(op, value))

    # -- regions

    def _loop(self, op: Op) -> None:
        body = op.regions[0][0]
        carried = body.arguments[1:]
        yielded = body.ops[-1].operands if body.ops else []
        state = [self.of(value) for value in op.operands[3:]]
        self._start(state, carried, yielded)
        for _ in range(_ROUNDS):
            for argument, mask in zip(carried, state, strict=True):
                self._set(argument, mask)
            self._block(body)
            settled = [
                self._turned(op, mask, argument, value)
                for mask, argument, value in zip(state, carried, yielded, strict=False)
            ]
            if settled == state:
                break
            state = settled
        else:
            state = [UNKNOWN for _ in state]
            for argument in carried:
                self._set(argument, UNKNOWN)
            self._block(body)
        for value, mask in zip(op.results, state, strict=True):
            self._set(value, mask)

    def _while(self, op: Op) -> None:
        before, after = op.regions[0][0], op.regions[1][0]
        passed = before.ops[-1].operands[1:]
        yielded = after.ops[-1].operands
        state = [self.of(value) for value in op.operands]
        self._start(state, before.arguments, yielded)
        for _ in range(_ROUNDS):
            for argument, mask in zip(before.arguments, state, strict=True):
                self._set(argument, mask)
            self._block(before)
            for argument, value in zip(after.arguments, passed, strict=True):
                self._set(argument, self._outside(op, self.of(value)))
            self._block(after)
            settled = [
                self._turned(op, mask, argument, value)
                for mask, argument, value in zip(state, before.arguments, yielded, strict=True)
            ]
            if settled == state:
                break
            state = settled
        else:
            for region in (before, after):
                for argument in region.arguments:
                    self._set(argument, UNKNOWN)
                self._block(region)
        for value, source in zip(op.results, passed, strict=True):
            self._set(value, self._outside(op, self.of(source)))

    def _start(self, state: list[Mask], carried: list[Value], yielded: list[Value]) -> None:
        """Note what loops compute from values that start valid everywhere (Note [Loops])."""
        for mask, argument, value in zip(state, carried, yielded, strict=False):
            if mask is ALL:
                self._reduced |= self._ways.between(argument, value)

    def _turned(self, loop: Op, known: Mask, argument: Value, value: Value) -> Mask:
        """Lanes of a carried value after one more iteration (Note [Loops])."""
        if value is argument:
            return known
        new = self.of(value)
        if self._ways.between(argument, value):
            return self._outside(loop, either(known, new))
        return known if new == known else UNKNOWN

    @staticmethod
    def _outside(op: Op, mask: Mask) -> Mask:
        """A description of something in a region of an operation, as one that holds behind it."""
        return mask if all(outlives(value, op) for value in leaves(mask)) else UNKNOWN

    def _branch(self, op: Op) -> None:
        for region in op.regions:
            for block in region:
                self._block(block)
        condition = leaf(op.operands[0])
        for index, value in enumerate(op.results):
            yes, no = (
                self._outside(op, self.of(region[-1].ops[-1].operands[index]))
                for region in op.regions
            )
            self._set(value, chosen(_over(condition, value), yes, no))

    # -- operations

    def _result(self, op: Op, value: Value) -> Mask:
        name, operands = op.name, op.operands
        masks = [self.of(operand) for operand in operands]
        if name in ("arith.constant", "tt.make_range"):
            return ALL
        if name in ("tt.load", "tt.atomic_rmw"):
            return both(self._access_mask(op), masks[0])
        if name == "tt.atomic_cas":  # has no mask, and its result is what memory held
            return masks[0]
        if name in ("tt.descriptor_load", "tt.descriptor_gather"):
            return in_bounds(op, self._function)
        if "descriptor_" in name:
            return UNKNOWN
        if not value.type.is_tensor:  # also a sum of all lanes: the program has one value to use
            return ALL
        if name == "arith.select":
            return self._select(op, masks)
        if is_elementwise(op) or name == "tt.scan":
            return _all(masks)
        if name in _SHAPES:
            return _shape(op, masks, value)
        if name == "tt.reduce":
            return _reduction(op, _all(masks))
        if name in ("tt.dot", "tt.dot_scaled"):
            return self._dot(op)
        if name == "tt.gather":
            return _gathered(op, masks)
        if name == "tt.histogram":  # a sum over all lanes, in every bin
            return spread(collapsed(_all(masks), 0), value.type.dims)
        return ALL if all(mask is ALL for mask in masks) else UNKNOWN

    def _access_mask(self, op: Op) -> Mask:
        """The lanes that a load or an atomic reads."""
        position = _MASK_OPERAND[op.name]
        if len(op.operands) <= position:
            return ALL
        if self._generated and len(op.operands) > 2 and op.name == "tt.load":
            return _bounds(op.operands[position])
        return leaf(op.operands[position])

    def _select(self, op: Op, masks: list[Mask]) -> Mask:
        condition, yes, no = op.operands
        if is_constant(yes):
            return masks[2]
        if is_constant(no):
            if id(condition) in self._access and is_uniform(yes):
                # Inductor's `where(xmask, scalar, 0.0)`: the tile has no more lanes than xmask
                return both(masks[1], leaf(condition))
            return masks[1]
        return chosen(_over(leaf(condition), op.results[0]), masks[1], masks[2])

    def _dot(self, op: Op) -> Mask:
        """A product is valid where its row and its column have a valid element, and its addend."""
        dims = op.results[0].type.dims
        rows, columns = len(dims) - 2, len(dims) - 1
        parts = [
            (role, self.of(value)) for role, value in zip(roles(op), op.operands, strict=False)
        ]
        if is_packed_across(op):
            return _unless_all([mask for _, mask in parts])
        result = ALL
        for role, mask in parts:
            if role == "right":
                mask = along(mask, rows, dims)
            elif role == "right_scale":  # [columns, groups]
                mask = across(collapsed(mask, columns), dims)
            elif role != "addend":
                mask = along(mask, columns, dims)
            result = both(result, mask)
        return result


class _Ways:
    """What values are computed from, apart from addresses and conditions."""

    def __init__(self, function: Function) -> None:
        self._sources: dict[int, list[Value]] = {}
        for op in function.walk():
            others = op.operands[:1] if op.name in _APART else []
            for source, target in edges(op):
                if source not in others:
                    self._sources.setdefault(id(target), []).append(source)

    def between(self, argument: Value, value: Value) -> set[int]:
        """Identities of the values on the ways from a loop argument to the value that replaces it;
        empty if there is none."""
        users: dict[int, list[int]] = {}
        todo, seen = [value], {id(value)}
        while todo:
            target = todo.pop()
            if target is argument:
                continue
            for source in self._sources.get(id(target), ()):
                users.setdefault(id(source), []).append(id(target))
                if id(source) not in seen:
                    seen.add(id(source))
                    todo.append(source)
        found: set[int] = set()
        ready = [id(argument)]
        while ready:
            for user in users.get(ready.pop(), ()):
                if user not in found:
                    found.add(user)
                    ready.append(user)
        return found


def _all(masks: list[Mask]) -> Mask:
    result = ALL
    for mask in masks:
        result = both(result, mask)
    return result


def _over(mask: Mask, value: Value) -> Mask:
    """A condition, which may be one for all lanes, in the shape of a value."""
    return spread(mask, value.type.dims) if value.type.is_tensor else mask


def _bounds(mask: Value) -> Mask:
    """An access mask without conditions of the model (Note [Padding that is data])."""
    op = mask.op
    if op is None:
        return leaf(mask)
    if op.name == "arith.andi":
        parts = [_bounds(operand) for operand in op.operands]
        if parts == [leaf(operand) for operand in op.operands]:
            return leaf(mask)
        return both(*parts)
    if op.name in _SHAPES:
        inner = _bounds(op.operands[0])
        return leaf(mask) if inner == leaf(op.operands[0]) else _shape(op, [inner], mask)
    named = op.frames[0].name if op.frames else None
    return ALL if named and _TEMPORARY.fullmatch(named) else leaf(mask)


def _shape(op: Op, masks: list[Mask], value: Value) -> Mask:
    dims = value.type.dims
    if op.name in ("tt.broadcast", "tt.splat"):
        return spread(masks[0], dims)
    if op.name == "tt.expand_dims":
        return shaped(masks[0], op.name, attributes_of(op.head), dims)
    if op.name == "tt.trans":
        return transposed(masks[0], order_of(op.head))
    if op.name == "tt.reshape":
        return _unless_all(masks) if "allow_reorder" in op.head else reshaped(masks[0], dims)
    if op.name == "tt.join":
        return paired(masks[0], masks[1], dims)
    return halved(masks[0], value.index)


def _unless_all(masks: list[Mask]) -> Mask:
    return ALL if all(mask is ALL for mask in masks) else UNKNOWN


def _reduction(op: Op, combined: Mask) -> Mask:
    axis = op.int_attr("axis")
    if axis is None or (combined is not ALL and _exchanges(op)):
        return UNKNOWN
    return collapsed(combined, axis)


def _exchanges(op: Op) -> bool:
    """Whether a reduction is the exclusive or by which tl.flip lets lanes change places."""
    return [inner.name for inner in op.regions[0][0].ops] == ["arith.xori", "tt.reduce.return"]


def _gathered(op: Op, masks: list[Mask]) -> Mask:
    source, index = masks
    axis = op.int_attr("axis")
    if source in CONSTANTS or axis is None:
        return both(index, source) if source in CONSTANTS else UNKNOWN
    kind = op.results[0].type.like("i1")
    return both(index, Mask("gather", kind, (source, op.operands[1], axis)))
