"""Facts about a kernel's values that flow forward from its arguments and loads."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from flagprism_torch.ir.flow import edges
from flagprism_torch.ir.module import Module, Op, Value

LOADS = ("tt.load", "tt.descriptor_load", "tt.descriptor_gather", "tt.experimental_descriptor_load")
STORES = {"tt.store": 1, "tt.descriptor_store": 1, "tt.descriptor_scatter": 3,
          "tt.experimental_descriptor_store": 1, "tt.descriptor_reduce": 1}  # fmt: skip
ATOMICS = ("tt.atomic_rmw", "tt.atomic_cas")
_SIGNED = re.compile(r"arith\.(divsi|remsi|maxsi|minsi|shrsi|extsi|fptosi|cmpi|index_cast)$")


class Facts:
    """Which values depend on loaded data, which integers are unsigned, whose memory a pointer is.

    Args:
        signature: kernel argument name -> Triton type (`*fp32`, `*u8`, `i32`, a tuple of them), for
            the signedness that TTIR types do not have.
    """

    def __init__(self, module: Module, ops: list[Op], signature: Mapping[str, Any]) -> None:
        self._entry = module.entry
        self._types = _types(module, signature)
        self._data: set[int] = set()
        self._unsigned: set[int] = set()
        while True:
            before = len(self._data) + len(self._unsigned)
            for op in ops:
                self._visit(op)
            if len(self._data) + len(self._unsigned) == before:
                return

    def is_data(self, value: Value) -> bool:
        """Whether a value depends on something that was loaded."""
        return id(value) in self._data

    def is_unsigned(self, value: Value) -> bool:
        return id(value) in self._unsigned

    def argument(self, pointer: Value) -> str | None:
        """Name of the kernel argument that a pointer is derived from, None if not traceable."""
        seen = set()
        while id(pointer) not in seen:
            seen.add(id(pointer))
            op = pointer.op
            if op is None:
                block = pointer.block
                if block is not None and block.parent is None and block is self._entry.blocks[0]:
                    return pointer.name.lstrip("%")
                if block is None or block.parent is None or block.parent.name != "scf.for":
                    return None
                if pointer.index == 0:
                    return None
                pointer = block.parent.operands[2 + pointer.index]
            elif op.name == "scf.for":
                pointer = op.operands[3 + pointer.index]
            elif op.operands and op.name.startswith("tt."):
                pointer = op.operands[0]
            else:
                return None
        return None

    def _visit(self, op: Op) -> None:
        if op.name in LOADS or op.name in ATOMICS:
            unsigned = self._to_unsigned(op.operands[0])
            for value in op.results:
                self._data.add(id(value))
                if unsigned:
                    self._unsigned.add(id(value))
        for source, target in edges(op):
            if id(source) in self._data:
                self._data.add(id(target))
            same = source.type.element == target.type.element
            if same and id(source) in self._unsigned and not _SIGNED.match(op.name):
                self._unsigned.add(id(target))
        if op.name == "tt.store" and self._to_unsigned(op.operands[0]):
            self._unsigned.add(id(op.operands[1]))

    def _to_unsigned(self, pointer: Value) -> bool:
        name = self.argument(pointer)
        return self._types.get(name or "", "").lstrip("*k").startswith("u")


def _types(module: Module, signature: Mapping[str, Any]) -> dict[str, str]:
    """TTIR argument -> Triton type. The members of a tuple are arguments of their own (`ptrs`,
    `ptrs_0`), in order."""
    flat = [kind for value in signature.values() for kind in members(value)]
    names = [argument.name.lstrip("%") for argument in module.entry.arguments]
    if len(names) == len(flat):
        return dict(zip(names, flat, strict=True))
    return {name: kind for name, kind in signature.items() if isinstance(kind, str)}


def members(kind: Any) -> list[str]:
    """The types of the TTIR arguments behind one entry of a signature."""
    if isinstance(kind, tuple):
        return [member for part in kind for member in members(part)]
    return [] if kind == "constexpr" else [kind]
