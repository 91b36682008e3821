"""How to compute a value once more at another place: the pure operations it comes from."""

from __future__ import annotations

import re
from collections.abc import Callable

from flagprism_torch.ir.masks import is_constant
from flagprism_torch.ir.module import Block, Op, Value

LONGEST = 40  # operations of one recipe

_PURE = re.compile(
    r"arith\.\w+|math\.\w+|"
    r"tt\.(splat|broadcast|expand_dims|reshape|trans|make_range|get_program_id|get_num_programs)"
)
_DIVISION = re.compile(r"arith\.(ceil|floor)?(div|rem)[su]i")


def is_pure(op: Op) -> bool:
    """Whether an operation may run anywhere, any number of times, with the same result.

    A division by what may be zero must stay behind the branch that guards it, and a reshape that
    may reorder lanes need not do so twice alike.
    """
    if not _PURE.fullmatch(op.name) or len(op.results) != 1 or op.regions:
        return False
    if _DIVISION.match(op.name):
        return is_constant(op.operands[1])
    return "allow_reorder" not in op.head


def recipe(value: Value, known: Callable[[Value], bool]) -> list[Op] | None:
    """The operations that compute a value from known ones, in order; None if there are none such,
    or too many."""
    found: dict[Op, None] = {}

    def visit(one: Value) -> bool:
        if known(one):
            return True
        op = one.op
        if op is None or not is_pure(op) or len(found) >= LONGEST:
            return False
        if op in found:
            return True
        if not all(visit(operand) for operand in op.operands):
            return False
        found[op] = None
        return len(found) <= LONGEST

    return list(found) if visit(value) else None


def enclosing(block: Block) -> list[Block]:
    """A block and the blocks around it, innermost first."""
    blocks = [block]
    while blocks[-1].parent is not None:
        blocks.append(blocks[-1].parent.block)
    return blocks


def is_inside(value: Value, op: Op) -> bool:
    """Whether a value is defined in a region of an operation."""
    block = value.op.block if value.op is not None else value.block
    return block is not None and any(around.parent is op for around in enclosing(block))


def outlives(value: Value, op: Op) -> bool:
    """Whether what a value is inside of a region operation can be said outside of it."""
    return recipe(value, lambda one: not is_inside(one, op)) is not None
