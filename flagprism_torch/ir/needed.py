"""Needed lanes: which lanes of a value can change a stored, atomic, addressed or branch value.

Descriptions are built backward, from what has an effect. They never miss a needed lane; they may
hold more, where

* a description would have more than LARGEST nodes (then ALL),
* a value is used inside of a loop or branch, under a mask that is not known outside of it (that
  factor is dropped: the lane may matter in another iteration), or in a branch not taken,
* the use has an effect or an unknown lane structure (all of its lanes),
* a value has one scalar use (all of its lanes, unless that is never needed).

UNKNOWN are values that blocks of a function with several hand to each other, and what stands in
front of an operation that reorders lanes.
"""

from __future__ import annotations

import re

from flagprism_torch.ir.bounds import in_bounds
from flagprism_torch.ir.mask_shapes import (
    along,
    collapsed,
    expanded,
    halved,
    order_of,
    paired,
    reshaped,
    scanned,
    spread,
    unspread,
    untransposed,
    weakened,
)
from flagprism_torch.ir.masks import (
    ALL,
    CONSTANTS,
    NONE,
    UNKNOWN,
    Mask,
    both,
    either,
    leaf,
    negated,
    size,
)
from flagprism_torch.ir.module import Block, Function, Op, Value, walk
from flagprism_torch.ir.recipes import enclosing, outlives, recipe
from flagprism_torch.ir.structure import is_elementwise, is_packed_across, roles

LARGEST = 24  # nodes of a description
_ROUNDS = 6  # of a loop, until its carried values settle

_MOVES = re.compile(
    r"tt\.(splat|unsplat|broadcast|expand_dims|reshape|trans|join|split|cat|reduce|scan|dot|"
    r"dot_scaled|gather|histogram)"
)
_INNER_EFFECTS = re.compile(
    r"(?!arith\.|math\.|scf\.|cf\.|tt\.map_elementwise\.return|tt\.extern_)"
)


class NeededLanes:
    """Descriptions for every value of a kernel's entry function, except inside of reductions."""

    def __init__(self, function: Function) -> None:
        self._function = function
        self._needs: dict[int, Mask] = {}
        self._handed: set[int] = set()  # passed from one block of a function to another
        self._wider: set[int] = set()  # ALL for want of a short description, or behind such a value
        order = {block.label: index for index, block in enumerate(function.blocks)}
        for index, block in enumerate(function.blocks):
            for op in block.ops:
                for label, values in op.successors:
                    self._handed.update(id(value) for value in values)
                    if order.get(label, 0) <= index:  # a loop of blocks
                        return
        for block in reversed(function.blocks):
            self._block(block)
            for argument in block.arguments:
                self._needs[id(argument)] = self._need(argument)

    def of(self, value: Value) -> Mask:
        """Needed lanes of a value: an i1 description of its shape, ALL, NONE or UNKNOWN."""
        return self._needs.get(id(value), UNKNOWN)

    def is_wider(self, value: Value) -> bool:
        """Whether the description of a value may hold lanes only because it grew too large."""
        return id(value) in self._wider

    def _block(self, block: Block) -> None:
        for op in reversed(block.ops):
            for value in op.results:
                self._needs[id(value)] = self._need(value)
            if op.name == "scf.for":
                self._loop(op)
            elif op.name == "scf.while":
                self._while(op)
            elif op.name == "scf.if":
                for region in op.regions:
                    for inner in region:
                        self._block(inner)

    def _need(self, value: Value) -> Mask:
        """Lanes needed by any use. All users further down are done."""
        result = UNKNOWN if id(value) in self._handed else NONE
        for user, position in value.uses:
            one = self._from(user, position, value)
            if one is not NONE and any(map(self.is_wider, user.results)):
                self._wider.add(id(value))
            result = either(result, one)
            if result is ALL:
                return ALL
        if size(result) <= LARGEST:
            return result
        self._wider.add(id(value))
        return ALL

    def _from(self, user: Op, position: int, value: Value) -> Mask:
        """What one use needs, as said where the value is defined."""
        home = value.op.block if value.op is not None else value.block
        mask = self._use(user, position)
        for block in enclosing(user.block):
            if block is home or block.parent is None:
                break
            if not block.parent.name.startswith("scf."):
                return ALL  # read by the body of a reduction
            mask = _outside(block.parent, mask)
        return mask

    # -- regions

    def _loop(self, op: Op) -> None:
        body = op.regions[0][0]
        self._settle(op, [(body, body.arguments[1:])])
        self._needs[id(body.arguments[0])] = self._need(body.arguments[0])

    def _while(self, op: Op) -> None:
        before, after = op.regions[0][0], op.regions[1][0]
        self._settle(op, [(after, after.arguments), (before, before.arguments)])

    def _settle(self, loop: Op, bodies: list[tuple[Block, list[Value]]]) -> None:
        """Visit blocks, backward, until what their arguments need in any iteration is known."""
        arguments = [argument for _, carried in bodies for argument in carried]
        for argument in arguments:
            self._needs[id(argument)] = NONE
        for _ in range(_ROUNDS):
            changed = False
            for block, carried in bodies:
                self._block(block)
                changed |= self._widen(loop, carried)
            if not changed:
                return
        for argument in arguments:
            self._needs[id(argument)] = ALL
        for block, _ in bodies:
            self._block(block)

    def _widen(self, loop: Op, arguments: list[Value]) -> bool:
        """Add to the needs of loop arguments what one more iteration needs; whether any grew."""
        changed = False
        for argument in arguments:
            known = self._needs[id(argument)]
            grown = either(known, _outside(loop, self._need(argument)))
            if grown != known:
                self._needs[id(argument)] = ALL if size(grown) > LARGEST else grown
                changed = True
        return changed

    # -- uses

    def _use(self, op: Op, position: int) -> Mask:
        """Lanes of an operand that can matter through an operation."""
        name = op.name
        if name in ("tt.store", "tt.atomic_rmw"):
            return ALL if position == 2 else _access(op, 2)
        if name == "tt.load":
            if position == 2:
                return both(self.of(op.results[0]), negated(_access(op, 1)))
            return ALL if position == 1 else _access(op, 1)
        if name in ("tt.descriptor_store", "tt.descriptor_reduce", "tt.descriptor_scatter"):
            source = 3 if name == "tt.descriptor_scatter" else 1
            return in_bounds(op, self._function) if position == source else ALL
        if name.startswith("scf."):
            return self._structured(op, position)
        if not op.results or _has_effect(op):
            return ALL
        result = NONE
        for value in op.results:
            result = either(result, self.of(value))
        if result is NONE:
            return NONE
        target = op.operands[position].type
        if name == "arith.select":
            return self._select(op, position, result)
        if op.name in ("arith.andi", "arith.ori") and target.element == "i1":
            return both(result, _open(op, op.operands[1 - position]))
        if is_elementwise(op):
            return result
        if not target.is_tensor:
            return ALL
        return self._through(op, position, result, target.dims)

    def _structured(self, op: Op, position: int) -> Mask:
        """Operands of loops, branches and their terminators."""
        if op.name == "scf.for" and position >= 3:
            argument = op.regions[0][0].arguments[position - 2]
            return either(self.of(op.results[position - 3]), self.of(argument))
        if op.name == "scf.while":
            return self.of(op.regions[0][0].arguments[position])
        parent = op.block.parent
        if op.name == "scf.condition" and position and parent is not None:
            argument = parent.regions[1][0].arguments[position - 1]
            return either(self.of(parent.results[position - 1]), self.of(argument))
        if op.name == "scf.yield" and parent is not None:
            if parent.name == "scf.while":
                return self.of(parent.regions[0][0].arguments[position])
            if parent.name in ("scf.if", "scf.for"):
                result = self.of(parent.results[position])
                if parent.name == "scf.if":
                    return result
                return either(result, self.of(parent.regions[0][0].arguments[position + 1]))
        return ALL  # bounds and conditions

    def _select(self, op: Op, position: int, result: Mask) -> Mask:
        condition, kind = op.operands[0], op.results[0].type
        if position == 0:
            return result if condition.type.dims == kind.dims else ALL
        taken = leaf(condition)
        if kind.is_tensor:
            taken = spread(taken, kind.dims)
        return both(taken if position == 1 else negated(taken), result)

    def _through(self, op: Op, position: int, result: Mask, dims: tuple[int, ...]) -> Mask:
        """Lanes of a tile of shape `dims` behind an operation that moves or combines lanes."""
        name, axis = op.name, op.int_attr("axis") or 0
        if name == "tt.broadcast":
            return unspread(result, dims)
        if name in ("tt.expand_dims", "tt.reshape") and "allow_reorder" not in op.head:
            return reshaped(result, dims)
        if name == "tt.trans":
            return untransposed(result, order_of(op.head))
        if name == "tt.unsplat":
            return spread(result, dims)
        if name == "tt.join":
            return halved(result, position)
        if name == "tt.split":
            left, right = (self.of(value) for value in op.results)
            return paired(left, right, dims)
        if name == "tt.reduce":
            whole = expanded(result, axis) if result.type.is_tensor else result
            return spread(whole, dims)
        if name == "tt.scan":
            return scanned(result, axis, "reverse = true" in op.head)
        if name in ("tt.dot", "tt.dot_scaled"):
            return _factor(op, position, result, dims)
        if name == "tt.gather":
            return result if position == 1 else along(result, axis, dims)
        if name == "tt.histogram":
            return ALL if position == 1 else _access(op, 1)
        return result if result is ALL else UNKNOWN  # reordered


def _outside(op: Op, mask: Mask) -> Mask:
    """A description of what is needed in a region, as one that holds outside of it."""
    return weakened(mask, lambda value: outlives(value, op))


def _access(op: Op, position: int) -> Mask:
    return leaf(op.operands[position]) if len(op.operands) > position else ALL


def _open(op: Op, other: Value) -> Mask:
    """Where a conjunction or disjunction is not decided by its other operand. Only an operand made
    of indices counts: what comes from the same data may change together with this one."""
    if recipe(other, _is_index) is None:
        return ALL
    return leaf(other) if op.name == "arith.andi" else negated(leaf(other))


def _is_index(value: Value) -> bool:
    """Whether a value is an argument of the kernel or a loop's induction variable."""
    block = value.block
    if value.op is not None or block is None:
        return False
    return (block.parent is None and block.label == "entry") or (
        block.parent is not None and block.parent.name == "scf.for" and value.index == 0
    )


def _has_effect(op: Op) -> bool:
    """Whether an operation with results does more than compute them, or mixes lanes at will."""
    if "pure = false" in op.head or (op.int_attr("packed_element") or 1) > 1:
        return True
    if op.name == "tt.map_elementwise":
        inner = (o.name for region in op.regions for o in walk(region))
        return (op.int_attr("pack") or 1) > 1 or any(_INNER_EFFECTS.match(n) for n in inner)
    return not (_MOVES.fullmatch(op.name) or op.name == "arith.select" or is_elementwise(op))


def _factor(op: Op, position: int, result: Mask, dims: tuple[int, ...]) -> Mask:
    """A factor matters where any lane of its row, or column, of the product does."""
    role = roles(op)[position]
    if role == "addend" or result in CONSTANTS:
        return result
    if is_packed_across(op):
        return ALL
    rows, columns = len(dims) - 2, len(dims) - 1
    line = collapsed(result, columns if role.startswith("left") else rows)
    return spread(expanded(line, rows if role == "right" else columns), dims)
