"""What a session wrote down lane by lane: values, masks, offsets of selected statements."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, overload

import numpy as np
import torch

from .address_model import TensorLayout
from .full_model import FullEntry
from .reassembly import GlobalTensor, assemble

Array = np.ndarray[Any, Any]

# Triton's name of a type -> (NumPy type of its bits, torch type)
_TYPES: dict[str, tuple[Any, torch.dtype]] = {
    "fp64": (np.float64, torch.float64),
    "fp32": (np.float32, torch.float32),
    "fp16": (np.float16, torch.float16),
    "bf16": (np.uint16, torch.bfloat16),
    "fp8e4nv": (np.uint8, torch.float8_e4m3fn),
    "fp8e5": (np.uint8, torch.float8_e5m2),
    "fp8e4b8": (np.uint8, torch.float8_e4m3fnuz),
    "fp8e5b16": (np.uint8, torch.float8_e5m2fnuz),
    "int1": (np.bool_, torch.bool),
    **{
        f"{sign}int{bits}": (getattr(np, f"{sign}int{bits}"), getattr(torch, f"{sign}int{bits}"))
        for sign in ("", "u")
        for bits in (8, 16, 32, 64)
    },
}


def stored_as(dtype: str) -> np.dtype[Any]:
    """The NumPy type that holds the bits of a Triton type."""
    return np.dtype(_TYPES[dtype][0])


@dataclass(frozen=True)
class FullLaunch:
    """The launch that full values are of. `programs`: linear ids, int64 [rows]."""

    number: int
    step: int
    kernel: str
    site: str
    call: int
    grid: tuple[int, int, int]
    programs: Array


@dataclass(frozen=True)
class Owner:
    """Where a value belongs in the model, as in a row of the table."""

    module: str
    modules: tuple[str, ...]
    phase: str
    aten: str | None
    model_file: str | None
    model_line: int | None


@dataclass(eq=False)
class FullValue:
    """All lanes of one value in one launch.

    `executions`: how often each program ran the statement, int64 [rows]. `capacity`: executions
    that there was room for. `complete`: whether all of them are there. `layout`: of the tensor that
    a load, store or atomic goes through, None if it is not known. `path`: the `.npy` file of the
    values, None if they are in memory.
    """

    about: FullLaunch
    entry: FullEntry
    owner: Owner
    executions: Array
    capacity: int
    layout: TensorLayout | None = None
    path: Path | None = None
    _arrays: dict[str, Array] = field(default_factory=dict, repr=False)
    _files: dict[str, Path] = field(default_factory=dict, repr=False)

    def __repr__(self) -> str:
        name = self.variable or self.entry.op
        lost = "" if self.complete else ", INCOMPLETE"
        return (
            f"FullValue({self.kernel}, {name}, {self.dtype}, {self.array.shape}, "
            f"launch {self.launch}{lost})"
        )

    # -- which one

    @property
    def launch(self) -> int:
        """Number of the launch, as in an anomaly."""
        return self.about.number

    @property
    def kernel(self) -> str:
        return self.about.kernel

    @property
    def step(self) -> int:
        return self.about.step

    @property
    def module(self) -> str:
        return self.owner.module

    @property
    def statement(self) -> str:
        return self.entry.statement

    @property
    def variable(self) -> str | None:
        return self.entry.variable

    @property
    def role(self) -> str:
        return self.entry.role

    @property
    def line(self) -> int:
        return self.entry.line

    @property
    def dtype(self) -> str:
        """Triton's name of the type."""
        return self.entry.dtype

    @property
    def mask_kind(self) -> str:
        """Which lanes `mask` marks: "live", "valid", "all", or "unknown" (all that ran)."""
        return self.entry.mask

    @property
    def programs(self) -> Array:
        """Linear ids of the programs along the first axis, int64."""
        return self.about.programs

    @property
    def complete(self) -> bool:
        return int(self.executions.max(initial=0)) <= self.capacity

    # -- the data

    @property
    def array(self) -> Array:
        """[programs, executions, *tile], in a type that keeps every bit: bf16 is uint16, fp8 is
        uint8 (`tensor` has them as they are). 0 where a program ran the statement less often."""
        return self._load("values")

    @property
    def mask(self) -> Array:
        """The lanes that count, bool, in the shape of `array` (`mask_kind`)."""
        return self._load("mask") if self.has("mask") else self._ran()

    @property
    def active(self) -> Array | None:
        """The lanes that the access touches, bool; None if that was not recorded."""
        if not self.has("offsets"):
            return None
        return self._load("active") if self.has("active") else self._ran()

    @property
    def offsets(self) -> Array | None:
        """Where each lane goes, int64: bytes from the start of the argument `argument`, or an
        address without one; None if it was not recorded. Meaningful in `active` lanes."""
        return self._load("offsets") if self.has("offsets") else None

    @property
    def argument(self) -> str | None:
        """The kernel argument that offsets count from."""
        return self.entry.arguments[0] if self.entry.arguments else None

    def tensor(self) -> torch.Tensor:
        """`array` as a torch tensor of the value's own type (a copy)."""
        kept = torch.from_numpy(np.array(self.array))
        return kept.view(_TYPES[self.dtype][1])

    def global_tensor(self) -> GlobalTensor:
        """The tensor that the access goes through, put together over the grid; see
        `GlobalTensor`."""
        return assemble(self)

    def has(self, what: str) -> bool:
        """Whether there is an array of that name: values, mask, active or offsets."""
        return what in self._arrays or what in self._files

    def move(self, files: dict[str, Path]) -> None:
        """Read arrays from `.npy` files from now on."""
        self._files, self._arrays, self.path = dict(files), {}, files["values"]

    def _load(self, what: str) -> Array:
        if what in self._arrays:
            return self._arrays[what]
        found: Array = np.load(self._files[what], mmap_mode="r")
        return found

    def _ran(self) -> Array:
        """The lanes of executions that took place."""
        array = self.array
        ran = np.arange(array.shape[1]) < self.executions[:, None]
        return np.broadcast_to(ran.reshape(*ran.shape, *[1] * (array.ndim - 2)), array.shape)


@dataclass(frozen=True)
class Refused:
    """A launch whose values were selected and not written down. `needed`: bytes (at least, where
    loops have no known end); `left`: bytes of the budget that were left."""

    launch: int
    step: int
    kernel: str
    site: str
    needed: int
    left: int
    reason: str

    def __str__(self) -> str:
        return f"launch {self.launch} of {self.kernel}: {self.reason}"


class FullValues(Sequence[FullValue]):
    """The full values of a session, in order of launches and of op ids.

    `refused`: launches that were selected and had no room.
    """

    def __init__(self, values: Iterable[FullValue] = (), refused: Iterable[Refused] = ()) -> None:
        self._values, self.refused = tuple(values), tuple(refused)

    def __len__(self) -> int:
        return len(self._values)

    def __iter__(self) -> Iterator[FullValue]:
        return iter(self._values)

    @overload
    def __getitem__(self, index: int) -> FullValue: ...

    @overload
    def __getitem__(self, index: slice) -> FullValues: ...

    def __getitem__(self, index: int | slice) -> FullValue | FullValues:
        if isinstance(index, slice):
            return FullValues(self._values[index], self.refused)
        return self._values[index]

    def __repr__(self) -> str:
        return f"FullValues({len(self)} values, {len(self.refused)} launches refused)"

    def where(self, **conditions: Any) -> FullValues:
        """The values that meet every condition: `where(kernel="softmax", variable="x", step=3)`.
        A condition names an attribute of a value; a callable is a predicate on it.

        Raises:
            TypeError: a condition names no attribute.
        """
        for name in conditions:
            known = name in FullValue.__dataclass_fields__ or hasattr(FullValue, name)
            if name.startswith("_") or not known:
                raise TypeError(f"where({name}=...): a full value has no attribute {name!r}")

        def fits(value: FullValue, name: str, wanted: Any) -> bool:
            found = getattr(value, name)
            return bool(wanted(found)) if callable(wanted) else bool(found == wanted)

        kept = (v for v in self._values if all(fits(v, *one) for one in conditions.items()))
        return FullValues(kept, self.refused)
