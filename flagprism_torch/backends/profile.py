"""What a backend can lower. The rewriter asks a profile; it never asks for a backend's name."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

_MODULES = {"cuda": ".cuda", "hip": ".hip", "cpu": ".cpu.profile"}


@dataclass(frozen=True)
class Profile:
    """Abilities of one Triton backend.

    Attributes:
        name: `GPUTarget.backend`.
        multi_operand_reduce: `tl.reduce` may combine several tensors at once.
        pointer_bitcast: a pointer may be bit-cast to one of another element width.
        pointer_to_int: a tensor of pointers may be converted to integers.
        atomic_results: the value that an atomic returns may be used.
        clock: a program can read a clock.
        float64: float64 arithmetic exists.
        warp_size: lanes of a warp where the options do not say; None if a program is one thread.
        register_limits: registers per thread that a twin may use, (straight code, with loops, with
            dot products), None for as many as the compiler likes; None if it cannot be limited.
        moves: where the compiler contracts products and sums (instrument.contraction): bits of a
            float -> (instruction, constraints) of inline assembly that copies it unseen.
    """

    name: str
    multi_operand_reduce: bool
    pointer_bitcast: bool
    pointer_to_int: bool
    atomic_results: bool
    clock: bool
    float64: bool
    warp_size: int | None
    register_limits: tuple[int | None, int | None, int | None] | None = None
    moves: Mapping[int, tuple[str, str]] = field(default_factory=dict)

    def threads(self, options: Any) -> int:
        """Threads of one program: as many partial results a loop accumulator keeps.

        `options`: compile options or kernel metadata with `num_warps` (and `warp_size`), as an
        object or a mapping.
        """
        if self.warp_size is None:
            return 1

        def read(name: str, default: int) -> int:
            if isinstance(options, Mapping):
                return int(options.get(name, default))
            return int(getattr(options, name, default))

        return read("num_warps", 4) * read("warp_size", self.warp_size)

    def registers(self, options: Any, loops: bool, dots: bool) -> int | None:
        """Registers per thread that a twin may use, None for no limit. Branches that are hardly
        ever taken make the compiler use more than what programs in flight can share."""
        if self.register_limits is None or getattr(options, "maxnreg", None) is not None:
            return None
        limit = self.register_limits[2 if dots else 1 if loops else 0]
        return None if limit is None else min(limit, 65536 // self.threads(options))


def profile_of(target_backend: str) -> Profile:
    """The profile of a Triton backend, by `GPUTarget.backend`.

    Raises:
        ValueError: no profile of that name; the message lists those there are.
    """
    if target_backend not in _MODULES:
        known = ", ".join(repr(name) for name in _MODULES)
        raise ValueError(
            f"flagprism_torch cannot instrument kernels of the Triton backend {target_backend!r}; "
            f"known: {known}"
        )
    profile = importlib.import_module(_MODULES[target_backend], __package__).PROFILE
    assert isinstance(profile, Profile)
    return profile
