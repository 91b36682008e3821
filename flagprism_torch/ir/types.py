"""Types of TTIR: scalars, pointers and tensors of them, read from their printed form."""

from __future__ import annotations

import re
from dataclasses import dataclass

from flagprism_torch.ir.text import split_top

_TENSOR = re.compile(r"tensor<((?:\d+x)*)(.*)>$", re.S)
_POINTER = re.compile(r"!tt\.ptr<(.*?)(?:, \d+)?>$")


@dataclass(frozen=True)
class Type:
    """`element` is the MLIR element ("f32", "i1", "bf16", "f8E4M3FN", "!tt.ptr<f32>"), `shape` is
    () for scalars; `text` is the type as printed, encoding included."""

    text: str
    element: str
    shape: tuple[int, ...] | None

    @property
    def is_tensor(self) -> bool:
        return self.shape is not None

    @property
    def is_pointer(self) -> bool:
        return self.element.startswith("!tt.ptr<")

    @property
    def pointee(self) -> str:
        """The element that a pointer points to; ValueError for other types."""
        match = _POINTER.match(self.element)
        if match is None:
            raise ValueError(f"{self.text} is no pointer")
        return match.group(1)

    @property
    def dims(self) -> tuple[int, ...]:
        return self.shape or ()

    @property
    def numel(self) -> int:
        lanes = 1
        for extent in self.dims:
            lanes *= extent
        return lanes

    def like(self, element: str) -> Type:
        """The same shape with another element type."""
        if self.shape is None:
            return Type(element, element, None)
        return tensor_type(self.shape, element)


def tensor_type(shape: tuple[int, ...], element: str) -> Type:
    return Type(f"tensor<{''.join(f'{d}x' for d in shape)}{element}>", element, tuple(shape))


def parse_type(text: str) -> Type:
    text = text.strip()
    match = _TENSOR.match(text)
    if not match:
        return Type(text, text, None)
    shape = tuple(int(d) for d in match.group(1).split("x") if d)
    return Type(text, split_top(match.group(2), ", ")[0], shape)


def parse_types(text: str) -> list[Type]:
    text = text.strip()
    if text.startswith("(") and text.endswith(")"):
        text = text[1:-1]
    return [parse_type(part) for part in split_top(text, ", ") if part.strip()]
