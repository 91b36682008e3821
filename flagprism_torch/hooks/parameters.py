"""Arguments of a launch against what its kernel takes for granted.

Note [Arguments]
Looked at are launches with a twin, before they run, where addresses are recorded:
* hints of the kernel's IR (instrument.hints) that these arguments make true;
* pointers and integers that are not multiples of what the kernel was compiled for. Triton
  specializes hand-written kernels at each launch; Inductor does once;
* tensors on another device than the launch. Triton itself refuses memory of the host that the
  device cannot read;
* negative strides, which no tensor has. A stride of 0 may belong to an expanded tensor or to one
  that is not used;
* tensor descriptors made on the host that reach behind the end of their tensor: of the tensor
  itself if it is contiguous, else of the memory behind it, as the rows of a view may be padded.
  Extents of 2**30 and more are a device of ragged descriptors and mean no extent.
Layouts are not looked at in kernels that Inductor generated: it knows the strides of its tensors.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from flagprism_torch.instrument.twin import Twin
from flagprism_torch.records.address_model import TensorLayout
from flagprism_torch.records.hint_model import Hint
from flagprism_torch.records.model import Launch
from flagprism_torch.records.remarks import Remark, Remarks

_DIVISIBLE = "tt.divisibility"
_NO_EXTENT = 1 << 30
_KEPT = 1024  # combinations of layouts that are remembered for one kernel


@dataclass(frozen=True)
class Tuned:
    """What an autotuner did before a launch. `launches`: benchmarks that ran on its arguments;
    `restored`: arguments that it restores or sets to zero after each."""

    launches: int
    restored: frozenset[str]


@dataclass(frozen=True)
class _Facts:
    """Of a twin. `passed`: names of what a launch may pass: the arguments of Inductor's launcher,
    all arguments of the kernel, those that are no constexpr; `divisors`: argument -> what it was
    compiled to be a multiple of; `known`: answers of `_mixed`."""

    passed: tuple[tuple[str, ...], ...]
    divisors: Mapping[str, int]
    hints: Mapping[str, tuple[Hint, ...]]
    known: dict[Any, tuple[tuple[Hint, TensorLayout, TensorLayout], ...]]

    @classmethod
    def of(cls, twin: Twin) -> _Facts:
        source = twin.kernel.src
        names = tuple(name for name in source.fn.arg_names if name not in source.hidden)
        signature = source.signature
        divisors: dict[str, int] = {}
        for path, marks in source.attrs.items():
            divisor = dict(map(tuple, marks)).get(_DIVISIBLE)
            if divisor and isinstance(path, tuple) and len(path) == 1:
                divisors[names[path[0]]] = divisor
        hints: dict[str, tuple[Hint, ...]] = {}
        for hint in twin.table.hints:
            hints[hint.kind] = (*hints.get(hint.kind, ()), hint)
        variable = tuple(name for name in names if signature.get(name) != "constexpr")
        launcher = tuple(getattr(twin.launcher, "def_args", ()))
        return cls((launcher, names, variable), divisors, hints, {})

    def named(self, values: Sequence[Any]) -> dict[str, Any]:
        """The arguments by name; {} if they are not those of the kernel."""
        for names in self.passed:
            if len(names) == len(values):
                return dict(zip(names, values, strict=True))
        return {}


class Parameters:
    """Owned by a collector. `remarks`: what it found."""

    def __init__(self) -> None:
        self.remarks = Remarks()
        self._facts: weakref.WeakKeyDictionary[Twin, _Facts] = weakref.WeakKeyDictionary()

    def check(
        self,
        launch: Launch,
        twin: Twin,
        values: Iterable[Any],
        device: torch.device,
        generated: bool = False,
        tuned: Tuned | None = None,
    ) -> None:
        """Look at a launch that is about to run.

        Args:
            values: its arguments, in the order of the kernel's.
            generated: whether Inductor wrote the kernel.
            tuned: benchmarks that an autotuner of Triton made for this launch.
        """
        if not launch.programs:
            return
        facts = self._facts.get(twin)
        if facts is None:
            facts = self._facts[twin] = _Facts.of(twin)
        with torch._C.DisableTorchFunction():  # modes of the user do not see us
            named = facts.named(list(values))
            found = [
                *_hinted(launch, facts, generated, tuned),
                *_plain(launch, facts, named, device),
            ]
        for remark in found:
            self.remarks.add(remark)


def _hinted(
    launch: Launch, facts: _Facts, generated: bool, tuned: Tuned | None
) -> Iterator[Remark]:
    hints = facts.hints
    for hint in hints.get("reload", ()):
        stages = hint.details["num_stages"]
        cause = f"pipelining in {stages} stages may move the load before the store to its place"
        yield Remark(
            "config_dependent", hint.arguments[0] if hint.arguments else "", launch, cause,
            hint=hint, details={"writer": hint.details["writer"], "num_stages": stages},
        )  # fmt: skip
    if "layout" in hints and not generated:
        for hint, odd, plain in _mixed(launch, facts):
            cause = (
                f"{odd.name} has strides {odd.strides} and {plain.name} {plain.strides}, "
                "but both are accessed at the same offsets"
            )
            details = {"shape": odd.shape, "strides": odd.strides, "other": plain.name,
                       "other_strides": plain.strides}  # fmt: skip
            yield Remark("noncontiguous_argument", odd.name, launch, cause, hint=hint,
                         details=details)  # fmt: skip
    layouts = {layout.name: layout for layout in launch.layouts}
    for hint in hints.get("unmasked", ()):
        layout = layouts.get(hint.arguments[0])
        if layout is not None and 0 in layout.shape:
            cause = f"{layout.name} has no elements, and all lanes access it"
            yield Remark("parameter", layout.name, launch, cause, "empty", hint=hint,
                         details={"shape": layout.shape})  # fmt: skip
    for hint in hints.get("inplace", ()) if tuned is not None else ():
        name = hint.arguments[0]
        if tuned is not None and name not in tuned.restored:
            cause = "each benchmark of the autotuner ran the kernel on the live tensor"
            counts = {"benchmark_launches": tuned.launches, "launches": tuned.launches + 1,
                      "user_launches": 1}  # fmt: skip
            yield Remark("autotune_mutation", name, launch, cause, hint=hint, details=counts)


def _mixed(launch: Launch, facts: _Facts) -> tuple[tuple[Hint, TensorLayout, TensorLayout], ...]:
    """Layout hints that come true: (hint, the tensor that is not contiguous, one that is)."""
    key = tuple((one.name, one.shape, one.strides, one.itemsize) for one in launch.layouts)
    found = facts.known.get(key)
    if found is None:
        layouts = {layout.name: layout for layout in launch.layouts}
        pairs: dict[str, tuple[Hint, TensorLayout, TensorLayout]] = {}
        for hint in facts.hints["layout"]:
            odd = layouts.get(hint.arguments[0])
            others = [layouts[name] for name in hint.arguments[1:] if name in layouts]
            size = hint.details["itemsize"]
            plain = next((o for o in others if odd and read_flat(odd, o, size)), None)
            if odd is not None and plain is not None:
                pairs.setdefault(odd.name, (hint, odd, plain))
        found = tuple(pairs.values())
        if len(facts.known) < _KEPT:
            facts.known[key] = found
    return found


def read_flat(odd: TensorLayout, plain: TensorLayout, itemsize: int) -> bool:
    """Whether accesses at the same offsets, in units of `itemsize`, take `odd`, which is not
    contiguous, for contiguous like `plain`. Where that leaves the tensor (expanded and overlapping
    ones), it is a matter of its bounds."""
    if odd.shape != plain.shape or {odd.itemsize, plain.itemsize} != {itemsize}:
        return False
    numel = 1
    contiguous = []
    for extent in odd.shape[::-1]:
        contiguous.append(numel)
        numel *= extent
    axes = [
        (wanted, s, other)
        for n, wanted, s, other in zip(
            odd.shape, contiguous[::-1], odd.strides, plain.strides, strict=True
        )
        if n != 1
    ]
    if not numel or numel * itemsize > odd.nbytes or any(not s for _, s, _ in axes):
        return False
    return all(other == wanted for wanted, _, other in axes) and any(
        s != wanted for wanted, s, _ in axes
    )


def _plain(
    launch: Launch, facts: _Facts, named: Mapping[str, Any], device: torch.device
) -> Iterator[Remark]:
    """What the arguments tell without the IR."""
    addresses = {layout.name: layout.address for layout in launch.layouts}
    for name, value in named.items():
        if isinstance(value, torch.Tensor):
            address = addresses.get(name, 0)
            yield from _tensor(launch, name, value, address, facts.divisors.get(name), device)
        elif isinstance(value, int) and not isinstance(value, bool):
            yield from _integer(launch, name, value, facts.divisors.get(name))
        elif isinstance(getattr(value, "base", None), torch.Tensor):
            yield from _descriptor(launch, name, value)


def _tensor(
    launch: Launch,
    name: str,
    tensor: torch.Tensor,
    address: int,
    divisor: int | None,
    device: torch.device,
) -> Iterator[Remark]:
    if divisor and address % divisor:
        cause = f"the address of {name} is not a multiple of {divisor}, as it was compiled for"
        yield Remark(
            "parameter",
            name,
            launch,
            cause,
            "alignment",
            details={"divisor": divisor, "remainder": address % divisor},
        )
    if tensor.device.type != "cpu" and tensor.device != device:
        cause = f"{name} lies on {tensor.device}, the kernel runs on {device}"
        yield Remark(
            "parameter",
            name,
            launch,
            cause,
            "device",
            details={"device": str(tensor.device), "launch_device": str(device)},
        )


def _integer(launch: Launch, name: str, value: int, divisor: int | None) -> Iterator[Remark]:
    if divisor and value % divisor:
        cause = f"{name}={value} is not a multiple of {divisor}, as it was compiled for"
        details = {"divisor": divisor, "value": value}
        yield Remark("parameter", name, launch, cause, "alignment", details=details)
    if value < 0 and "stride" in name.lower():
        cause = f"{name}={value} is negative; no tensor has such a stride"
        yield Remark("parameter", name, launch, cause, "stride", "info", details={"value": value})


def _descriptor(launch: Launch, name: str, value: Any) -> Iterator[Remark]:
    base = value.base
    shape, strides = getattr(value, "shape", None), getattr(value, "strides", None)
    if shape is None or strides is None or len(shape) != len(strides):
        return
    sizes = [int(extent) for extent in shape]
    if any(extent <= 0 or extent >= _NO_EXTENT for extent in sizes):
        return
    reach = 1 + sum((n - 1) * int(s) for n, s in zip(sizes, strides, strict=True))
    if base.is_contiguous():
        held = base.numel()
    else:
        held = base.untyped_storage().nbytes() // base.itemsize - base.storage_offset()
    if reach > held:
        cause = f"{name} reaches {reach - held} elements behind the end of its tensor"
        details = {"shape": tuple(sizes), "strides": tuple(int(s) for s in strides),
                   "elements": held, "reach": reach}  # fmt: skip
        yield Remark("parameter", name, launch, cause, "descriptor", details=details)
