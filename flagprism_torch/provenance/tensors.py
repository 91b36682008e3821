"""Names of memory that no launch wrote: parameters and buffers of the modules that are known.

An address is looked up long after the launch, when other tensors may live there. So a name is given
only to a tensor that was at its place when its root was last scanned (`ModuleNames`) and still is.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, NamedTuple

import torch

from flagprism_torch.records.modes import unseen

if TYPE_CHECKING:
    from flagprism_torch.provenance.modules import ModuleNames


class Place(NamedTuple):
    """Bytes [start, end) of a tensor, and of the storage it is part of."""

    start: int
    end: int
    storage_start: int
    storage_end: int


def tensor_name(address: int, names: ModuleNames) -> str | None:
    """Name, as in `named_parameters()` and `named_buffers()`, of what holds an address; None if no
    known root has such a tensor. A tensor that holds it itself comes before one whose storage
    does."""
    for root, before in names.tensor_places():
        now = {name: place for name, place in places(root).items() if before.get(name) == place}
        for name, place in now.items():
            if place.start <= address < place.end:
                return name
        for name, place in now.items():
            if place.storage_start <= address < place.storage_end:
                return name
    return None


def places(root: torch.nn.Module) -> dict[str, Place]:
    """Where the parameters and buffers of a module are; without those that have no memory."""
    found = {}
    with unseen():
        for name, tensor in itertools.chain(root.named_parameters(), root.named_buffers()):
            place = _place(tensor)
            if place is not None:
                plain = ".".join(part for part in name.split(".") if part != "_orig_mod")
                found[plain] = place
    return found


def _place(tensor: torch.Tensor) -> Place | None:
    try:
        storage = tensor.untyped_storage()
        start, first = tensor.data_ptr(), storage.data_ptr()
    except (RuntimeError, ValueError, NotImplementedError):  # uninitialised, sparse, a wrapper
        return None
    if not start or not tensor.numel():
        return None
    last = sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))
    return Place(start, start + (last + 1) * tensor.itemsize, first, first + storage.nbytes())
