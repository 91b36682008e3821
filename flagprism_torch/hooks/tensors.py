"""Tensor arguments of a launch, under the names that the op table of its twin uses for pointers.

Triton numbers the members of tuples and the parts of descriptors differently from version to
version, so the names are read from the twin's TTIR: its n-th pointer (or descriptor) is the n-th
argument that has memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch

from flagprism_torch.ir.text import header_arguments, split_top
from flagprism_torch.records.address_model import TensorLayout
from flagprism_torch.records.model import TensorNote

_PLAIN = frozenset((torch.Tensor, torch.nn.Parameter))
_NUMBERS = frozenset((int, float, bool, str, type(None)))


def pointer_names(ttir: str) -> tuple[str, ...]:
    """Names of the pointer and descriptor arguments of a module's kernel, in order."""
    for line in ttir.splitlines():
        if line.lstrip().startswith("tt.func public"):
            start, end = header_arguments(line)
            pairs = (part.partition(":") for part in split_top(line[start:end], ","))
            return tuple(
                name.strip().lstrip("%")
                for name, _, kind in pairs
                if kind.lstrip().startswith(("!tt.ptr", "!tt.tensordesc"))
            )
    return ()


def tensor_notes(names: Sequence[str], values: Iterable[Any]) -> tuple[TensorNote, ...]:
    """The tensors among the arguments `values` of a launch.

    Args:
        names: of the pointer arguments, in order (`pointer_names`); those behind the last argument
            with memory are not used.

    What has no memory of its own that torch knows (integers as pointers, fake tensors) is left out.
    """
    notes = []
    at = 0
    with torch._C.DisableTorchFunction():  # modes of the user do not see us
        for value in values:
            kind = type(value)
            if kind in _NUMBERS:
                continue
            for base in (value,) if kind in _PLAIN else _bases(value):
                if at == len(names):  # an argument that is no pointer in the kernel
                    return ()
                try:
                    address = base.data_ptr() if isinstance(base, torch.Tensor) else 0
                except RuntimeError:  # no storage: sparse, packed, fake
                    address = 0
                if address:
                    size = base.nbytes if base.is_contiguous() else _extent(base)
                    notes.append(TensorNote(names[at], address, size))
                at += 1
    return tuple(notes)


def tensor_layouts(names: Sequence[str], values: Iterable[Any]) -> tuple[TensorLayout, ...]:
    """How the tensors among the arguments of a launch lie in memory; arguments as in
    `tensor_notes`. Left out is what torch does not know the memory of."""
    layouts: list[TensorLayout] = []
    at = 0
    with torch._C.DisableTorchFunction():
        for value in values:
            for base in () if type(value) in _NUMBERS else _bases(value):
                if at == len(names):
                    return tuple(layouts)
                layout = _layout(names[at], base)
                if layout is not None:
                    layouts.append(layout)
                at += 1
    return tuple(layouts)


def extents(names: Sequence[str], layouts: Iterable[TensorLayout]) -> list[int]:
    """For each pointer argument the bytes from its first element to the end of the last one, -1
    where that is not known."""
    known = {layout.name: layout.nbytes for layout in layouts}
    return [known.get(name, -1) for name in names]


def _layout(name: str, tensor: Any) -> TensorLayout | None:
    if not isinstance(tensor, torch.Tensor):
        return None
    try:
        address, storage = tensor.data_ptr(), tensor.untyped_storage()
        start, size = storage.data_ptr(), storage.nbytes()
    except (RuntimeError, NotImplementedError):  # sparse, packed, fake
        return None
    if not address and tensor.numel():
        return None
    return TensorLayout(
        name,
        address,
        _extent(tensor),
        tuple(tensor.shape),
        tensor.stride(),
        tensor.itemsize,
        str(tensor.dtype).removeprefix("torch."),
        (start - address, start - address + size),
    )


def _bases(value: Any) -> Iterator[Any]:
    """What stands behind one argument: tensors of tuples, bases of descriptors and of wrappers
    made by triton.reinterpret."""
    if isinstance(value, (tuple, list)):
        for member in value:
            yield from _bases(member)
    elif isinstance(value, torch.Tensor):
        yield value
    elif isinstance(getattr(value, "base", None), torch.Tensor):
        yield value.base
    elif hasattr(value, "data_ptr"):
        yield value


def _extent(tensor: torch.Tensor) -> int:
    """Bytes from the first element to the end of the last one."""
    if not tensor.numel():
        return 0
    last = sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))
    return (last + 1) * tensor.itemsize
