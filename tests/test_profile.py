"""Backend profiles: abilities, threads, and the error for unknown backends."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, fields
from types import SimpleNamespace

import pytest

from flagprism_torch.backends.profile import Profile, profile_of


@pytest.mark.parametrize("name", ["cuda", "hip", "cpu"])
def test_known_backends_can_do_everything(name: str) -> None:
    profile = profile_of(name)
    assert profile.name == name
    assert all(getattr(profile, f.name) is True for f in fields(Profile) if f.type == "bool")
    assert sum(f.type == "bool" for f in fields(Profile)) == 6


@pytest.mark.parametrize(
    "name,options,threads",
    [
        ("cuda", SimpleNamespace(num_warps=8, warp_size=32), 256),
        ("cuda", {"num_warps": 2}, 64),
        ("hip", {"num_warps": 4}, 256),
        ("hip", SimpleNamespace(num_warps=4, warp_size=32), 128),
        ("cpu", SimpleNamespace(num_warps=8, warp_size=32), 1),
    ],
)
def test_threads(name: str, options: object, threads: int) -> None:
    assert profile_of(name).threads(options) == threads


def test_options_classes_of_triton_agree() -> None:
    from triton.backends.amd.compiler import HIPOptions
    from triton.backends.nvidia.compiler import CUDAOptions

    assert profile_of("cuda").threads(CUDAOptions(num_warps=4)) == 128
    assert profile_of("hip").threads(HIPOptions(num_warps=4, arch="gfx942")) == 256
    assert profile_of("hip").threads(HIPOptions(num_warps=4, arch="gfx1100")) == 128


def test_unknown_backend() -> None:
    with pytest.raises(ValueError, match=r"'npu'; known: 'cuda', 'hip', 'cpu'"):
        profile_of("npu")


def test_profiles_are_frozen() -> None:
    with pytest.raises(FrozenInstanceError):
        profile_of("cpu").clock = False  # type: ignore[misc]
