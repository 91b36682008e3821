"""Calls that are no Triton launches: results of `extern_kernels` are recorded, others counted."""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._dynamo
from session_rows import check, row_of
from torch import nn
from torch.overrides import TorchFunctionMode

import flagprism_torch
from flagprism_torch.backends.cpu import disable_cpu, enable_cpu
from flagprism_torch.hooks import externs
from flagprism_torch.records.model import Launch


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


# -- results that are recorded


@pytest.fixture
def inductor() -> Iterator[None]:
    assert enable_cpu()
    yield
    torch._dynamo.reset()
    disable_cpu()


@pytest.fixture
def extern(request: pytest.FixtureRequest) -> Iterator[Callable[[Any], Callable[..., Any]]]:
    """Adds a function to `extern_kernels`; the result calls it as a wrapper does."""
    import torch._inductor.select_algorithm as select

    def add(function: Any) -> Callable[..., Any]:
        select.extern_kernels.flagprism_probe = function
        return lambda *args, **kwargs: select.extern_kernels.flagprism_probe(*args, **kwargs)

    yield add
    del select.extern_kernels.flagprism_probe


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(16, 24), nn.Linear(24, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(torch.relu(self.first(x))).softmax(-1)


def session_of(call: Callable[..., Any], *args: Any, **options: Any) -> flagprism_torch.Session:
    with flagprism_torch.debug(logdir=False, **options) as session:
        call(*args)
    return session


def launches(session: flagprism_torch.Session) -> list[Launch]:
    log = session._collector.tensors
    found = [log.launch(0, number) for number in range(next(session._collector.numbers))]
    return [one for one in found if one is not None]


def test_a_matrix_product_has_a_row(inductor: None):
    """Against the same modules run eagerly, whose outputs hooks keep."""
    model = Net()
    x = torch.randn(10, 16)
    x[3, 5] = math.nan
    x[7, 0] = math.inf
    kept: dict[str, torch.Tensor] = {}
    for name in ("first", "second"):
        layer = getattr(model, name)
        layer.register_forward_hook(lambda m, i, o, name=name: kept.update({name: o}))
    model(x)
    for layer in (model.first, model.second):
        layer._forward_hooks.clear()
    compiled = torch.compile(model)
    with flagprism_torch.debug(logdir=False, model=model) as session, torch.no_grad():
        for _ in range(2):
            compiled(x)
            session.step()
    for step in (0, 1):
        table = session.table(step)
        for name in ("first", "second"):
            row = row_of(table, kernel="extern_kernels.addmm", module=name)
            check(row, kept[name], executions=1, mask="all", values_rel=1e-6)
            assert (row.op, row.role, row.aten, row.phase) == (
                "extern", "store", "aten.addmm", "forward",
            )  # fmt: skip
            bad = (~torch.isfinite(kept[name])).nonzero()[0]
            assert row.first_nonfinite == ((0, 0, 0), 0, tuple(bad.tolist()))
            assert row.model_file == __file__ and row.statement == "extern_kernels.addmm"
    assert row_of(session.table(), kernel="extern_kernels.addmm", module="first").launches == 2
    assert session.coverage.to_dict()["extern"] == {}


def test_a_nan_is_followed_to_the_product_that_made_it(inductor: None):
    model = Net()
    with torch.no_grad():
        model.first.weight[2, 3] = math.nan
    session = session_of(torch.compile(model), torch.randn(10, 16), model=model)
    log = session._collector.tensors
    first, relu, second, softmax = launches(session)
    assert [one.table.kernel for one in (first, second)] == ["extern_kernels.addmm"] * 2
    nan = {row.kernel: row.nan for row in session.table() if row.role == "load"}
    assert nan[relu.table.kernel] == 10 and nan[softmax.table.kernel] == 80
    for reader, writer in ((relu, first), (softmax, second)):
        loads = {op.pointer for op in reader.table.ops if op.role == "load"}
        (pointer,) = loads
        found = log.writer_before(reader, str(pointer))
        assert found is not None and found.certain
        assert (found.launch, found.pointer) == (writer, "out")
    found = log.writer_before(second, "in1")  # what the second product was given
    assert found is not None and found.launch is relu
    assert log.writer_before(first, "in1") is None  # the batch
    (row,) = [r for r in session.table() if r.site == first.site.key]
    assert (row.nan, row.module) == (10, "first")


def test_without_checks_calls_are_noted_but_not_read(inductor: None):
    model = Net()
    session = session_of(torch.compile(model), torch.randn(10, 16), extern_checks=False)
    assert not session.table().where(op="extern")
    assert session.coverage.to_dict()["extern"] == {"aten.addmm": 2}
    first, relu = launches(session)[:2]
    found = session._collector.tensors.writer_before(relu, relu.tensors[0].name)
    assert found is not None and found.launch is first


def test_the_first_call_of_a_fresh_process_is_seen(tmp_path: Path):
    """Inductor loads and fills `extern_kernels` inside the block."""
    script = """
import torch, flagprism_torch
assert flagprism_torch.enable_cpu()
f = torch.compile(lambda x: torch.relu(x @ x))
with flagprism_torch.debug(logdir=False) as session:
    f(torch.ones(4, 4))
(row,) = session.table().where(op="extern")
assert (row.kernel, row.live, row.max, row.launches) == ("extern_kernels.mm", 16, 4.0, 1), row
assert session.coverage.to_dict()["extern"] == {}, session.coverage
"""
    file = tmp_path / "script.py"
    file.write_text(script)
    result = subprocess.run(
        [sys.executable, file], capture_output=True, text=True, cwd=Path(__file__).parents[1]
    )
    assert result.returncode == 0, result.stderr


@pytest.mark.filterwarnings("ignore::flagprism_torch.NoKernelWarning")
class TestOneCall:
    def test_out_and_returned_results(self, extern: Any):
        call = extern(lambda x, out=None: torch.mul(x, 2, out=out))
        out = torch.empty(5, 3)
        x = torch.arange(15.0).reshape(5, 3)
        with flagprism_torch.debug(logdir=False) as session:
            call(x)
            session.step()
            call(x, out=out)
        one, two = session.table(0)[0], session.table(1)[0]
        for row in (one, two):
            check(row, x * 2, executions=1)
        noted = session._collector.tensors.launch(1, 1)
        assert noted is not None and [t.name for t in noted.tensors] == ["out", "in0"]
        assert [t.address for t in noted.tensors] == [out.data_ptr(), x.data_ptr()]

    def test_a_view_is_read_in_the_order_of_its_shape(self, extern: Any):
        base = torch.zeros(6, 8)
        base[4, 2] = math.nan
        view = base.t()[1:, ::2]
        session = session_of(extern(lambda: view))
        (row,) = session.table()
        check(row, view)
        assert row.first_nonfinite == ((0, 0, 0), 0, (1, 2))

    @pytest.mark.parametrize(
        "make",
        [
            lambda: torch.ones(3, dtype=torch.int32),
            lambda: torch.ones(0),
            lambda: torch.eye(3).to_sparse(),
            lambda: torch.ones(3, device="meta"),
            lambda: None,
            lambda: "text",
        ],
    )
    def test_other_results_are_counted(self, extern: Any, make: Any):
        result = make()
        call = extern(lambda: result)
        with flagprism_torch.debug(logdir=False) as session:
            assert call() is result
        assert len(session.table()) == 0
        assert session.coverage.to_dict()["extern"] == {"aten.flagprism_probe": 1}
        assert session.coverage.to_dict()["notes"] == []

    def test_several_results(self, extern: Any):
        results = (torch.ones(3), torch.zeros(4, dtype=torch.int64), [torch.full((2, 2), -1.5)])
        call = extern(lambda: results)
        with flagprism_torch.debug(logdir=False) as session:
            assert call() is results
        assert [(row.live, row.max) for row in session.table()] == [(3, 1.0), (4, -1.5)]
        assert [one.tensors[0].name for one in launches(session)] == ["out", "out1", "out2"]
        assert session.coverage.to_dict()["extern"] == {"aten.flagprism_probe": 1}  # not all of it

    def test_shapes_are_bounded(self, extern: Any, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setattr(externs, "SHAPES_OF_A_CALL", 3)
        call = extern(torch.ones)

        def run() -> None:
            for n in (1, 2, 3, 4, 5, 1):
                call(n)

        session = session_of(run)
        assert [(row.live, row.launches) for row in session.table()] == [(2, 2), (2, 1), (3, 1)]
        assert session.coverage.to_dict()["extern"] == {"aten.flagprism_probe": 2}

    def test_an_error_of_the_call_is_the_users(self, extern: Any):
        def fail() -> None:
            raise ZeroDivisionError

        call = extern(fail)
        with flagprism_torch.debug(logdir=False) as session, pytest.raises(ZeroDivisionError):
            call()
        assert len(session.table()) == 0

    def test_an_error_of_the_check_is_not(self, extern: Any, monkeypatch: pytest.MonkeyPatch):
        def fail(*args: Any) -> None:
            raise RuntimeError("no room\nmore")

        monkeypatch.setattr(externs.outputs, "write", fail)
        call = extern(lambda: torch.ones(3))
        with flagprism_torch.debug(logdir=False) as session:
            assert call().sum() == 3
        (note,) = session.coverage.to_dict()["notes"]
        assert "extern_kernels.flagprism_probe" in note and note.endswith("RuntimeError: no room")
        assert session.coverage.to_dict()["extern"] == {"aten.flagprism_probe": 1}

    def test_modes_of_the_user_see_nothing(self, extern: Any):
        class Watch(TorchFunctionMode):
            def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None):
                seen.append(func)
                return func(*args, **(kwargs or {}))

        seen: list[Any] = []
        x = torch.ones(4, 4)
        call = extern(lambda x: x)
        with flagprism_torch.debug(logdir=False) as session, Watch():
            call(x)
        assert not seen and len(session.table()) == 1


@pytest.mark.parametrize("value", [1, None, "yes"])
def test_extern_checks_is_a_bool(value: Any):
    with pytest.raises(TypeError, match=f"extern_checks={value!r} .* allowed: True, False"):
        flagprism_torch.debug(extern_checks=value)
