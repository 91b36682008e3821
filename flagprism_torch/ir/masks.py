"""Valid lanes: which lanes of a value were computed without a masked-off load lane.

The analysis only describes masks; `instrument.rewrite` turns a description into operations where a
probe needs it. A description is one of

* `ALL`: every lane is valid;
* `UNKNOWN`: not derivable, the probe counts all lanes and the row says so;
* `Mask(kind, arguments)`: an expression over i1 values of the module. All its leaves dominate the
  value, because a description never leaves the region that its leaves live in.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from flagprism_torch.ir.module import Block, Function, Op, Value
from flagprism_torch.ir.types import Type, tensor_type


@dataclass(frozen=True)
class Mask:
    """`kind` and arguments:

    value (Value) | and (Mask, Mask) | select (Value, Mask, Mask) | any (Mask, axis)
    | op (Mask, head, attributes): a shape operation applied to the mask.
    """

    kind: str
    type: Type
    arguments: tuple[Any, ...] = ()


ALL = Mask("all", tensor_type((), "i1"))
UNKNOWN = Mask("unknown", tensor_type((), "i1"))

_ELEMENTWISE = re.compile(
    r"^(arith|math)\.(?!constant|select)|^tt\.(fp_to_fp|extern_elementwise|bitcast|clampf|precise_\w+|"
    r"mulhiui|addptr|int_to_ptr|ptr_to_int|elementwise_inline_asm|map_elementwise)$"
)
_CONSTANT_SHAPES = ("tt.splat", "tt.broadcast", "tt.expand_dims", "tt.reshape")
_MASK_OPERAND = {"tt.load": 1, "tt.store": 2, "tt.atomic_rmw": 2}


def leaf(value: Value) -> Mask:
    return Mask("value", value.type, (value,))


def both(left: Mask, right: Mask) -> Mask:
    """Lanes valid in both descriptions."""
    if left is UNKNOWN or right is UNKNOWN:
        return UNKNOWN
    if left is ALL or left == right:
        return right
    if right is ALL:
        return left
    if left.type.dims != right.type.dims:
        return UNKNOWN
    return Mask("and", left.type, (left, right))


def is_constant(value: Value) -> bool:
    """Whether a value is a constant, possibly splat or broadcast."""
    op = value.op
    while op is not None and op.name in _CONSTANT_SHAPES:
        op = op.operands[0].op
    return op is not None and op.name == "arith.constant"


def _is_uniform(value: Value) -> bool:
    """Whether a tile repeats one scalar."""
    op = value.op
    while op is not None and op.name in ("tt.broadcast", "tt.expand_dims", "tt.reshape"):
        op = op.operands[0].op
    return op is not None and op.name == "tt.splat"


def _conjuncts(value: Value) -> set[int]:
    """Identities of the i1 values whose conjunction `value` is."""
    if value.op is not None and value.op.name == "arith.andi":
        return {id(value)}.union(*(_conjuncts(v) for v in value.op.operands))
    return {id(value)}


def _leaves(value: Value) -> set[int]:
    if value.op is not None and value.op.name == "arith.andi":
        return set().union(*(_leaves(v) for v in value.op.operands))
    return {id(value)}


def _implies(condition: Value, mask: Mask) -> bool:
    """Whether the mask is surely true wherever the condition is true."""
    if mask is ALL:
        return True
    if mask.kind == "and":
        return all(_implies(condition, part) for part in mask.arguments)
    return mask.kind == "value" and id(mask.arguments[0]) in _conjuncts(condition)


def implied_by(condition: Value, mask: Mask) -> bool:
    """Whether the condition is surely true wherever the mask is."""
    if mask.kind == "and":
        return any(implied_by(condition, part) for part in mask.arguments)
    return mask.kind == "value" and _leaves(condition) <= _conjuncts(mask.arguments[0])


class ValidLanes:
    """Descriptions for every value of a kernel's entry function."""

    def __init__(self, function: Function) -> None:
        self._masks: dict[int, Mask] = {}
        self._access: set[int] = set()  # i1 values whose conjunctions mask loads, stores, atomics
        for op in function.walk():
            position = _MASK_OPERAND.get(op.name)
            if position is not None and len(op.operands) > position:
                self._access |= _conjuncts(op.operands[position])
        for block in function.blocks[1:]:
            for argument in block.arguments:
                self._masks[id(argument)] = UNKNOWN
        for block in function.blocks:
            self._block(block)

    def of(self, value: Value) -> Mask:
        """Valid lanes of a value; values without tensor operands are valid everywhere."""
        return self._masks.get(id(value), ALL)

    def _block(self, block: Block) -> None:
        for op in block.ops:
            if op.name == "scf.for":
                self._loop(op)
            elif op.name == "scf.while":
                self._all_unknown(op)
            elif op.name == "scf.if":
                self._branch(op)
            else:
                for value in op.results:
                    mask = self._result(op, value)
                    if mask is not ALL:
                        self._masks[id(value)] = mask

    def _all_unknown(self, op: Op) -> None:
        for region in op.regions:
            for block in region:
                for argument in block.arguments:
                    self._masks[id(argument)] = UNKNOWN
                self._block(block)
        for value in op.results:
            self._masks[id(value)] = UNKNOWN

    def _loop(self, op: Op) -> None:
        """Loop-carried values are valid everywhere if they start and stay so, else unknown."""
        body = op.regions[0][0]
        initial, carried = op.operands[3:], body.arguments[1:]
        state = [ALL if self.of(value) is ALL else UNKNOWN for value in initial]
        while True:
            for argument, mask in zip(carried, state, strict=True):
                self._masks[id(argument)] = mask
            self._block(body)
            yielded = body.ops[-1].operands if body.ops else []
            settled = [
                mask if mask is UNKNOWN or self.of(value) is ALL else UNKNOWN
                for mask, value in zip(state, yielded, strict=False)
            ]
            if settled == state:
                break
            state = settled
        for value, mask in zip(op.results, state, strict=True):
            self._masks[id(value)] = mask

    def _branch(self, op: Op) -> None:
        for region in op.regions:
            for block in region:
                self._block(block)
        for index, value in enumerate(op.results):
            sides = [region[-1].ops[-1].operands[index] for region in op.regions]
            if not all(self.of(side) is ALL for side in sides):
                self._masks[id(value)] = UNKNOWN

    def _result(self, op: Op, value: Value) -> Mask:
        name, operands = op.name, op.operands
        if name in ("arith.constant", "tt.splat", "tt.make_range"):
            return ALL
        if name == "tt.load" or name == "tt.atomic_rmw":
            position = 1 if name == "tt.load" else 2
            own = leaf(operands[position]) if len(operands) > position else ALL
            if own is not ALL and is_constant(operands[position]):
                own = ALL
            pointer = self.of(operands[0])
            return both(own, pointer)
        if name == "tt.atomic_cas":  # has no mask, and its result is what memory held
            return self.of(operands[0])
        if "descriptor_" in name:  # lanes outside the tensor are filled, and nothing says which
            return UNKNOWN
        if not value.type.is_tensor:  # also a sum of all lanes: the program has one value to use
            return ALL
        masks = [self.of(v) for v in operands]
        if name == "arith.select":
            return self._select(op, masks)
        if _ELEMENTWISE.match(name):
            result = ALL
            for mask in masks:
                result = both(result, mask)
            return result
        if name in ("tt.expand_dims", "tt.broadcast", "tt.reshape", "tt.trans"):
            mask = masks[0]
            if mask in (ALL, UNKNOWN) or "allow_reorder" in op.head:
                return ALL if mask is ALL else UNKNOWN
            return Mask("op", value.type.like("i1"), (mask, name, _attributes(op.head)))
        if name == "tt.reduce":
            axis = op.int_attr("axis")
            combined = ALL
            for mask in masks:
                combined = both(combined, mask)
            if combined in (ALL, UNKNOWN):
                return combined
            body = op.regions[0][0].ops
            if axis is None or any(inner.name == "arith.xori" for inner in body):
                return UNKNOWN  # tl.flip and tl.sort exchange lanes by exclusive or
            return Mask("any", value.type.like("i1"), (combined, axis))
        if name == "tt.scan":
            combined = ALL
            for mask in masks:
                combined = both(combined, mask)
            return combined
        if name in ("tt.dot", "tt.dot_scaled"):
            return self._dot(op, masks)
        return ALL if all(mask is ALL for mask in masks) else UNKNOWN

    def _select(self, op: Op, masks: list[Mask]) -> Mask:
        condition, yes, no = op.operands
        if is_constant(yes):
            return masks[2]
        if is_constant(no):
            if id(condition) in self._access and _is_uniform(yes):
                # Inductor's `where(xmask, scalar, 0.0)`: the tile has no more lanes than xmask
                return both(masks[1], leaf(condition))
            return masks[1]
        if masks[1] == masks[2]:
            return masks[1]
        if UNKNOWN in masks[1:] or not condition.type.is_tensor:
            return UNKNOWN
        if masks[2] is ALL and _implies(condition, masks[1]):
            return ALL
        return Mask("select", condition.type, (condition, masks[1], masks[2]))

    def _dot(self, op: Op, masks: list[Mask]) -> Mask:
        """A product is valid where its row and its column have a valid element, and its addend."""
        left, right, addend = masks[:3]
        if UNKNOWN in (left, right, addend) or op.name == "tt.dot_scaled":
            return UNKNOWN
        shape = op.results[0].type.dims
        result = addend
        for mask, axis in ((left, len(shape) - 1), (right, len(shape) - 2)):
            if mask is ALL:
                continue
            dims = mask.type.dims
            kept = tensor_type(dims[:axis] + dims[axis + 1 :], "i1")
            line = Mask("any", kept, (mask, axis))
            column = tensor_type((*dims[:axis], 1, *dims[axis + 1 :]), "i1")
            spread = Mask("op", column, (line, "tt.expand_dims", f"{{axis = {axis} : i32}}"))
            full = Mask("op", tensor_type(shape, "i1"), (spread, "tt.broadcast", ""))
            result = both(result, full)
        return result


def _attributes(head: str) -> str:
    """The `{...}` part of an operation's head, without inherent ones that follow in `<{...}>`."""
    match = re.search(r"\{.*\}", head)
    return match.group(0) if match else ""
