"""Plain data about addresses: the accesses of a kernel, how tensors lie, where accesses went."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple


@dataclass(frozen=True)
class AccessEntry:
    """One load, store or atomic whose addresses are recorded; its index in `OpTable.accesses` is
    its number.

    `role`: load | store | atomic. `dtype`: Triton's name of the element in memory, `itemsize` its
    bytes. `masked`: whether lanes may be inactive. `arguments`: the kernel arguments that it may go
    through, none if its pointer comes from memory or an integer. `record`: index of the record on
    the device, of offsets in bytes from the first of them (from address 0 without one). `op_id`:
    the entry of the value, -1 if it has none. `indexed_by`: statements that load what its addresses
    depend on.
    """

    number: int
    op: str
    role: str
    dtype: str
    itemsize: int
    shape: tuple[int, ...]
    masked: bool
    file: str
    line: int
    variable: str | None
    statement: str
    arguments: tuple[str, ...]
    record: int
    op_id: int = -1
    indexed_by: tuple[str, ...] = ()

    @property
    def numel(self) -> int:
        """Lanes of one execution."""
        return math.prod(self.shape)


class TensorLayout(NamedTuple):
    """How a tensor argument of a launch lies in memory: `name` as in TTIR, `address` of the first
    element, `nbytes` from there to the end of the last one, `storage`: (first byte, end) of the
    memory behind it, relative to `address`. Strides are in elements."""

    name: str
    address: int
    nbytes: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    itemsize: int
    dtype: str
    storage: tuple[int, int]


@dataclass(frozen=True)
class AddressRow:
    """Where one access of a call site went over one step (or all: step is None).

    `argument`: the kernel argument that it goes through, None if it is not known or one of several
    (`arguments`). `shape`, `strides` (in elements): of its tensor at the first launch, () without
    one. Places are offsets in bytes from its first element, of `itemsize` bytes each; without an
    argument they are addresses. `min`, `max`: over the active lanes of all launches; `first`,
    `last`: of the first launch, the first active lane of the first program and the last active lane
    of the last one. None: no active lane, or not known. `outside`: active lanes outside of every
    tensor that the access may go to, None where that cannot be told.

    `pattern` of the lanes of one execution: "scalar", "contiguous", "strided", "broadcast" (one
    element for all), "scattered", or "unknown"; `lane_strides`: bytes from lane to lane along the
    last three axes. `alignment`: the largest power of two, at most 256, that divides the address of
    `first`.
    """

    step: int | None
    site: str
    call: int
    module: str
    phase: str
    kernel: str
    file: str
    line: int
    variable: str | None
    statement: str
    op: str
    access: int
    role: str
    dtype: str
    itemsize: int
    argument: str | None
    arguments: tuple[str, ...]
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    launches: int
    executions: int
    lanes: int
    active: int
    min: int | None
    max: int | None
    first: int | None
    last: int | None
    pattern: str
    lane_strides: tuple[int, ...] | None
    alignment: int | None
    outside: int | None
    aten: str | None
    modules: tuple[str, ...]
    model_file: str | None
    model_line: int | None

    @property
    def span(self) -> int | None:
        """Bytes from the first to the end of the last element that is touched."""
        if self.min is None or self.max is None:
            return None
        return self.max - self.min + self.itemsize
