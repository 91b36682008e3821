"""Calls that are no Triton launches are counted and left as they are."""

from __future__ import annotations

from typing import Any

import pytest

import flagprism_torch


def test_aot_inductor_models_are_counted(monkeypatch: pytest.MonkeyPatch):
    package: Any = pytest.importorskip("torch.export.pt2_archive._package")
    monkeypatch.setattr(package.AOTICompiledModel, "__call__", lambda self, x: x + 1)
    before = vars(package.AOTICompiledModel)["__call__"]
    model = package.AOTICompiledModel.__new__(package.AOTICompiledModel)
    with flagprism_torch.debug(logdir=False) as session:
        assert model(1) == 2
    assert vars(package.AOTICompiledModel)["__call__"] is before
    (entry,) = session.coverage.to_dict()["passed"]
    assert (entry["kernel"], entry["launches"]) == ("<AOTInductor model>", 1)


def test_cpp_wrapper_is_noted():
    import torch._inductor.config

    with (
        torch._inductor.config.patch(cpp_wrapper=True),
        pytest.warns(flagprism_torch.NoKernelWarning),
        flagprism_torch.debug(logdir=False) as session,
    ):
        pass
    assert any("cpp_wrapper" in note for note in session.coverage.to_dict()["notes"])


def test_extern_kernels_are_counted_and_restored():
    import torch._inductor.select_algorithm as select

    choice = "flagprism_probe"
    setattr(select.extern_kernels, choice, lambda x: x * 2)
    before = vars(select.extern_kernels)[choice]
    try:
        with (
            pytest.warns(flagprism_torch.NoKernelWarning),
            flagprism_torch.debug(logdir=False) as session,
        ):
            assert select.extern_kernels.flagprism_probe(3) == 6
        assert vars(select.extern_kernels)[choice] is before
    finally:
        delattr(select.extern_kernels, choice)
    assert session.coverage.to_dict()["extern"] == {f"aten.{choice}": 1}
