"""The memory accesses of a kernel: which lanes go where, through which arguments."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from flagprism_torch.instrument.facts import LOADS
from flagprism_torch.ir.masks import ALL, NONE, Mask, is_constant, leaf
from flagprism_torch.ir.module import Module, Op, Value
from flagprism_torch.ir.pointers import Origins
from flagprism_torch.ir.types import parse_type

# operation -> (role, position of the mask among its operands)
_ACCESSES = {
    "tt.load": ("load", 1),
    "tt.store": ("store", 2),
    "tt.atomic_rmw": ("atomic", 2),
    "tt.atomic_cas": ("atomic", 3),
    "tt.atomic_load": ("load", 1),
    "tt.atomic_store": ("store", 2),
}
_DESCRIPTORS = re.compile(r"tt\.(experimental_)?descriptor_")


@dataclass(frozen=True, eq=False)
class Access:
    """One load, store or atomic.

    `mask`: its active lanes. `arguments`: the kernel arguments that its pointer may be derived
    from, none if it may come from elsewhere (memory, an integer). `size`: bytes of an element.
    `offsets`: a value that the rewriter defines before the operation: bytes from the first
    argument's pointer (from address 0 without one) to each lane's element, int64, in the shape of
    the pointer. `indexed_by`: the loads that its addresses depend on.
    """

    op: Op
    role: str
    mask: Mask
    arguments: tuple[Value, ...]
    size: int
    offsets: Value
    indexed_by: tuple[Op, ...] = ()

    @property
    def pointer(self) -> Value:
        return self.op.operands[0]


def accesses_of(module: Module, ops: Iterable[Op], left_out: Counter[str]) -> list[Access]:
    """The accesses among the operations of the kernel, in program order; what has no offsets is
    counted in `left_out`, reason -> number."""
    origins = Origins(module)
    found = []
    for op in ops:
        if _DESCRIPTORS.match(op.name):
            left_out["addresses of a descriptor"] += 1
        if op.name not in _ACCESSES:
            continue
        role, position = _ACCESSES[op.name]
        pointer, masks = op.operands[0], op.operands[position : position + 1]
        if not pointer.type.is_pointer or (size := _bytes(pointer.type.pointee)) is None:
            left_out[f"addresses of type {pointer.type.element}"] += 1
            continue
        if not op.frames:
            left_out["no source location"] += 1
            continue
        mask = ALL
        if masks and not (is_constant(masks[0]) and leaf(masks[0]) is ALL):
            mask = leaf(masks[0])
        if mask is NONE:
            continue
        kind = pointer.type.like("i64") if pointer.type.is_tensor else parse_type("i64")
        offsets = Value("", kind, None, op.block)
        loads = tuple(one for one in origins.behind(pointer, LOADS) if one.name in LOADS)
        found.append(Access(op, role, mask, origins.arguments(pointer), size, offsets, loads))
    return found


def _bytes(element: str) -> int | None:
    """Bytes of an element in memory, None for a type that has no whole number of them."""
    if element.startswith("!tt.ptr<"):
        return 8
    digits = re.match(r"(?:i|f|bf)(\d+)", element)
    bits = int(digits.group(1)) if digits else 0
    return 1 if bits == 1 else bits // 8 if bits and bits % 8 == 0 else None
