"""Modes of the user's program: they neither see nor disturb what the tool does with tensors."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import triton
import triton.language as tl
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import flagprism_torch
from flagprism_torch.backends.cpu import register, unregister


@triton.jit
def double(x_ptr, o_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + i, mask=i < n)
    tl.store(o_ptr + i, x * 2, mask=i < n)


@pytest.fixture(autouse=True)
def _driver() -> Iterator[None]:
    register("test_modes")
    yield
    unregister("test_modes")


def launch() -> torch.Tensor:
    x = torch.arange(100, dtype=torch.float32, device="cpu")
    out = torch.empty_like(x)
    double[(4,)](x, out, 100, BLOCK=32)
    return out


def stored(session: flagprism_torch.Session) -> Any:
    (row,) = session.table().where(role="store")
    return row


def test_inference_mode_then_normal_mode():
    with flagprism_torch.debug(logdir=False) as session:
        with torch.inference_mode():
            launch()
        session.step()
        launch()
        with torch.inference_mode():
            launch()
    assert (stored(session).live, stored(session).max) == (300, 198.0)


def test_default_device():
    with flagprism_torch.debug(logdir=False) as session, torch.device("meta"):
        launch()
        session.step()
        assert stored(session).live == 100


class _Dispatched(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(str(func))
        return func(*args, **(kwargs or {}))


class _Called(TorchFunctionMode):
    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(getattr(func, "__name__", str(func)))
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("mode", [_Dispatched, _Called])
def test_modes_see_what_they_see_without_a_session(mode: Any):
    with mode() as plain:
        launch()
    with flagprism_torch.debug(logdir=False) as session, mode() as inside:
        launch()
        session.step()
    reads = {"data_ptr", "untyped_storage", "nbytes", "__get__", "device"}  # by launchers
    assert [n for n in inside.names if n not in reads] == [n for n in plain.names if n not in reads]
    assert stored(session).live == 100


def test_grad_mode_leaves_no_graph():
    x = torch.ones(100, requires_grad=True)
    with flagprism_torch.debug(logdir=False) as session:
        out = torch.empty(100)
        double[(4,)](x, out, 100, BLOCK=32)
        assert torch.is_grad_enabled()
    assert stored(session).min == 2.0


def test_results_need_a_session_that_was_entered():
    session = flagprism_torch.debug(logdir=False)
    for read in (session.step, session.table, session.report, lambda: session.anomalies):
        with pytest.raises(RuntimeError, match="was not entered"):
            read()


def test_a_lost_logdir_does_not_end_the_program(tmp_path: Any, monkeypatch: pytest.MonkeyPatch):
    from flagprism_torch.exporters.tensorboard import TensorBoardWriter

    def write(*args: Any, **named: Any) -> None:
        raise FileNotFoundError("gone")

    with flagprism_torch.debug(logdir=tmp_path / "run") as session:
        monkeypatch.setattr(TensorBoardWriter, "write", write)
        launch()
        with pytest.warns(RuntimeWarning, match="TensorBoard files stop before step 0: gone"):
            session.step()
        launch()
        session.step()
    assert session.table().where(role="store")[0].live == 200
    assert any("gone" in note for note in session.coverage.to_dict()["notes"])
