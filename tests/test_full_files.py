"""`debug(level=2)`: what the filters select, what the budget refuses, and the files."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from torch import nn

import flagprism_torch
from flagprism_torch.backends.cpu import disable_cpu, enable_cpu
from flagprism_torch.config import Config
from flagprism_torch.records.full_values import FullValues
from flagprism_torch.session import Session


@pytest.fixture(autouse=True, scope="module")
def backend() -> Iterator[None]:
    enabled = enable_cpu()  # False beside a GPU
    yield
    torch._dynamo.reset()
    if enabled:
        disable_cpu()


def session_of(launch: Callable[[], Any], **options: Any) -> Session:
    with flagprism_torch.debug(**{"level": 2, "logdir": False, **options}) as session:
        launch()
    return session


def notes(session: Session) -> list[str]:
    found: list[str] = session.coverage.to_dict()["notes"]
    return found


def names(values: FullValues) -> list[str]:
    return [value.variable or value.entry.op for value in values]


@triton.jit
def double(x_ptr, o_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + i, mask=i < n)
    y = x * 2
    tl.store(o_ptr + i, y, mask=i < n)


@triton.jit
def negate(x_ptr, o_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(o_ptr + i, -tl.load(x_ptr + i, mask=i < n), mask=i < n)


def both(device: str) -> Callable[[], None]:
    x, o = torch.randn(50, device=device), torch.zeros(50, device=device)

    def call() -> None:
        double[(4,)](x, o, 50, BLOCK=16)
        negate[(4,)](x, o, 50, BLOCK=16)

    return call


# -- options

WRONG = [
    (TypeError, {"kernels": 3}, "kernels=3 has type int; allowed: a pattern"),
    (TypeError, {"modules": ["a", 1]}, "modules=['a', 1]"),
    (ValueError, {"statements": ""}, "statements='' can match nothing"),
    (ValueError, {"statements": []}, "statements=[] can match nothing"),
    (ValueError, {"kernels": ["a", ""]}, "can match nothing"),
    (TypeError, {"programs": "all"}, "programs='all' has type str; allowed: an int from 0"),
    (TypeError, {"programs": [1.5]}, "has the member 1.5"),
    (TypeError, {"programs": True}, "has the member True"),
    (ValueError, {"programs": [0, -1]}, "has the member -1"),
    (TypeError, {"programs": [(0, 1)]}, "has the member (0, 1)"),
    (ValueError, {"programs": []}, "is empty"),
    (TypeError, {"steps": slice(3)}, "steps=slice(None, 3, None) has type slice"),
    (TypeError, {"steps": [(0, 0, 0)]}, "has the member (0, 0, 0)"),
    (ValueError, {"steps": -1}, "has the member -1"),
    (TypeError, {"full_value_budget": 1e9}, "full_value_budget=1000000000.0 has type float"),
    (ValueError, {"full_value_budget": 0}, "full_value_budget=0 is out of range"),
    (ValueError, {"level": 1, "kernels": "a"}, "kernels='a' selects full values; allowed with l"),
    (ValueError, {"level": 1, "addr_level": 2}, "addr_level=2 is part of full values"),
    (ValueError, {"level": 3}, "level=3 is not supported; allowed: "),
]


@pytest.mark.parametrize(("kind", "options", "text"), WRONG)
def test_wrong_options(kind: type[Exception], options: dict[str, Any], text: str) -> None:
    with pytest.raises(kind) as raised:
        flagprism_torch.debug(**{"level": 2, **options})
    assert text in str(raised.value)


def test_right_options() -> None:
    for programs in (0, [3, 4], [(1, 0, 0), 2], range(4), slice(None, None, 2), (1, 2, 3)):
        assert Config(level=2, programs=programs).programs == programs
    Config(level=2, kernels=("a", "b*"), steps=range(2, 5), full_value_budget=1)


# -- filters

SELECTED = [
    ({}, ["x", "y", "tt.store", "tt.load", "tt.store"]),
    ({"kernels": "double"}, ["x", "y", "tt.store"]),
    ({"kernels": ["neg*", "nothing"]}, ["tt.load", "tt.store"]),
    ({"statements": "y"}, ["y"]),
    ({"statements": ["x", "tl.store(o_ptr + i, y, mask=i < n)"]}, ["x", "tt.store"]),
    ({"statements": "*tl.store*"}, ["tt.store", "tt.load", "tt.store"]),
    ({"statements": "y", "kernels": "negate"}, []),
    ({"steps": 0, "kernels": "double"}, ["x", "y", "tt.store"]),
    ({"steps": 1}, []),
]


@pytest.mark.parametrize(("options", "wanted"), SELECTED)
def test_what_is_selected(options: dict[str, Any], wanted: list[str], device: str) -> None:
    session = session_of(both(device), **options)
    found = session.full_values
    # the load and the store of `negate` share a line
    assert sorted(names(found)) == sorted(wanted)
    assert len(session.table()) == 5  # what the filters leave out has its statistics
    unmatched = [text for text in notes(session) if "matched nothing" in text]
    if options.get("kernels") == ["neg*", "nothing"]:
        assert unmatched == ["kernels='nothing' matched nothing: no full values of it"]
    elif options == {"statements": "y", "kernels": "negate"}:
        assert unmatched == ["statements='y' matched nothing: no full values of it"]
    elif options == {"steps": 1}:
        assert unmatched == ["steps=1 matched nothing: no full values of it"]
        assert unmatched[0] in session.report()
    else:
        assert not unmatched


PROGRAMS = [
    (2, [2]),
    ([3, 0, 3, 99], [0, 3]),
    (range(1, 3), [1, 2]),
    (slice(-1, None), [3]),
    (slice(None, None, 2), [0, 2]),
    ([(1, 0, 0), (0, 1, 0)], [1]),
]


@pytest.mark.parametrize(("programs", "rows"), PROGRAMS)
def test_programs(programs: Any, rows: list[int], device: str) -> None:
    x, o = torch.randn(64, device=device), torch.zeros(64, device=device)
    session = session_of(
        lambda: double[(4,)](x, o, 64, BLOCK=16), programs=programs, statements="x"
    )
    (value,) = session.full_values
    assert value.programs.tolist() == rows
    assert np.array_equal(value.array[:, 0], x.cpu().view(4, 16).numpy()[rows])
    assert torch.equal(o, x * 2)


def test_programs_that_no_launch_has(device: str) -> None:
    session = session_of(both(device), programs=[(0, 0, 1), 4])
    assert not session.full_values and not session.full_values.refused
    assert notes(session) == ["programs=[(0, 0, 1), 4] matched nothing: no full values of it"]


def test_steps(device: str) -> None:
    x, o = torch.zeros(16, device=device), torch.zeros(16, device=device)
    with flagprism_torch.debug(level=2, logdir=False, steps=[1, 3], statements="y") as session:
        for _ in range(5):
            double[(1,)](x, o, 16, BLOCK=16)
            x += 1
            session.step()
    assert [(value.step, value.array[0, 0, 0]) for value in session.full_values] == [(1, 2), (3, 6)]
    assert len(session.table().where(variable="y")) == 1  # one twin for all of them
    assert session.table()[0].launches == 5


# -- budget


def test_a_launch_that_does_not_fit(device: str) -> None:
    x = torch.randn(1024, device=device)
    o = torch.zeros(1024, device=device)
    launch = lambda: double[(8,)](x, o, 1024, BLOCK=128)  # noqa: E731
    whole = session_of(launch)
    assert not whole.full_values.refused and len(whole.full_values) == 3
    session = session_of(launch, full_value_budget=1000)
    assert torch.equal(o, x * 2)
    assert len(session.full_values) == 0
    (refused,) = session.full_values.refused
    assert (refused.kernel, refused.launch, refused.left) == ("double", 0, 1000)
    # values of x and y, the mask they share, offsets of the store; a header and counters
    lanes = 1024 * (4 + 4 + 1 + 8)
    assert lanes < refused.needed < lanes + 512
    text = f"full values need {refused.needed} bytes, 1000 of full_value_budget=1000 are left"
    assert text in refused.reason and text in session.report()
    assert len(session.table()) == 3
    # exactly enough
    assert len(session_of(launch, full_value_budget=refused.needed).full_values) == 3
    assert not session_of(launch, full_value_budget=refused.needed - 1).full_values


def test_the_budget_is_that_of_the_session(device: str) -> None:
    call = both(device)
    (once,) = session_of(call, full_value_budget=1, kernels="double").full_values.refused
    session = session_of(
        lambda: [call() for _ in range(5)],
        full_value_budget=3 * once.needed + 10,
        kernels="double",
    )
    launches = sorted({value.launch for value in session.full_values})
    assert launches == [0, 2, 4]
    refused = session.full_values.refused
    assert [one.launch for one in refused] == [6, 8]
    assert len([text for text in notes(session) if "full values need" in text]) == 1
    assert all(one.needed == once.needed for one in refused)


@triton.jit
def shrink(x_ptr, o_ptr, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + i)
    while tl.max(x, 0) > 1:
        x = x * 0.5
        tl.store(o_ptr + i, x)


def test_room_that_was_not_needed_is_given_back(device: str) -> None:
    """A loop of unknown length reserves more than it takes."""
    x, o = torch.full((64,), 8.0, device=device), torch.zeros(64, device=device)

    def often() -> None:
        for _ in range(40):
            shrink[(1,)](x, o, BLOCK=64)
            session.step()

    with flagprism_torch.debug(
        level=2, logdir=False, full_value_budget=100_000, statements="x = x * 0.5"
    ) as session:
        often()
    found = session.full_values.where(role="value")
    assert len(found) == 40 and all(value.complete for value in found)
    assert all(np.array_equal(value.array[0, :, 5], [4, 2, 1]) for value in found)


def test_a_refused_loop_says_at_least(device: str) -> None:
    x, o = torch.full((64,), 8.0, device=device), torch.zeros(64, device=device)
    session = session_of(lambda: shrink[(1,)](x, o, BLOCK=64), full_value_budget=300)
    (refused,) = session.full_values.refused
    assert "full values need at least" in refused.reason
    assert o[0] == 1


# -- files


def test_files(tmp_path: Path, device: str) -> None:
    x = torch.randn(50, device=device).bfloat16()
    o = torch.zeros(2, 50, device=device, dtype=torch.bfloat16)[:, ::2].T
    flat = torch.zeros(50, device=device, dtype=torch.bfloat16)
    session = session_of(lambda: double[(4,)](x, flat, 50, BLOCK=16), logdir=tmp_path)
    folder = tmp_path / "full_values" / "000000_double"
    index = json.loads((folder / "tensor_index.json").read_text())
    assert (index["schema_version"], index["kernel"], index["grid"]) == (1, "double", [4, 1, 1])
    assert np.load(folder / index["programs"]).tolist() == [0, 1, 2, 3]
    loaded, doubled, stored = index["entries"]
    assert [e["variable"] for e in index["entries"]] == ["x", "y", None]
    assert stored["statement"] == "tl.store(o_ptr + i, y, mask=i < n)"
    for entry, tensor in ((loaded, x), (doubled, x * 2), (stored, x * 2)):
        array = np.load(folder / entry["files"]["values"])
        assert (entry["dtype"], entry["stored_as"], array.dtype) == ("bf16", "uint16", np.uint16)
        assert entry["shape"] == list(array.shape) == [4, 1, 16] and entry["complete"] is True
        mask = np.load(folder / entry["files"]["mask"])
        assert mask.sum() == 50
        assert np.array_equal(array[mask], tensor.cpu().view(torch.int16).numpy().view(np.uint16))
        assert np.load(folder / entry["files"]["executions"]).tolist() == [1, 1, 1, 1]
    # one file for what two entries share
    assert doubled["files"]["values"] == stored["files"]["values"]
    assert "offsets" not in loaded["files"] and loaded["global"] is None
    assert np.array_equal(np.load(folder / stored["files"]["offsets"]).reshape(-1),
                          2 * np.arange(64))  # fmt: skip
    assert stored["argument"] == {
        "name": "o_ptr", "shape": [50], "strides": [1], "dtype": "bfloat16",
    }  # fmt: skip
    whole = np.load(folder / stored["global"]["values"])
    assert np.array_equal(whole, flat.cpu().view(torch.int16).numpy().view(np.uint16))
    assert np.load(folder / stored["global"]["written"]).all()
    assert stored["global"]["elements_written"] == 50
    # a session that is read later takes its arrays from the files
    value = session.full_values.where(role="store")[0]
    assert value.path == folder / stored["files"]["values"]
    assert torch.equal(value.tensor()[torch.from_numpy(np.array(value.mask))], flat.cpu())
    assert value.global_tensor().values is not None
    assert not (tmp_path / "full_values" / "refused.json").exists()
    del o


def test_two_sessions_in_one_folder(tmp_path: Path, device: str) -> None:
    for _ in range(2):
        session_of(both(device), logdir=tmp_path, kernels="negate")
    found = sorted(p.parent.relative_to(tmp_path) for p in tmp_path.rglob("tensor_index.json"))
    assert found == [Path("full_values/000001_negate"), Path("full_values-2/000001_negate")]


def test_refused_launches_are_listed_beside_the_files(tmp_path: Path, device: str) -> None:
    session = session_of(both(device), logdir=tmp_path, full_value_budget=500)
    listed = json.loads((tmp_path / "full_values" / "refused.json").read_text())
    assert [one["kernel"] for one in listed["refused"]] == ["double", "negate"]
    assert [one["needed"] for one in listed["refused"]] == [
        one.needed for one in session.full_values.refused
    ]
    assert not list(tmp_path.rglob("*.npy"))


def test_a_tensor_much_larger_than_what_was_recorded(tmp_path: Path, device: str) -> None:
    """It is not written out, but can be put together."""
    x, o = torch.randn(16, device=device), torch.zeros(5000, device=device)
    session = session_of(lambda: double[(1,)](x, o, 16, BLOCK=16), logdir=tmp_path)
    (path,) = tmp_path.rglob("tensor_index.json")
    stored = json.loads(path.read_text())["entries"][-1]
    assert stored["global"] == {
        "reason": "the tensor has far more elements than lanes that were recorded"
    }
    made = session.full_values.where(role="store")[0].global_tensor()
    assert made.values is not None and np.array_equal(made.values, o.cpu().numpy())


def test_a_disk_that_fails(tmp_path: Path, device: str) -> None:
    with flagprism_torch.debug(level=2, logdir=tmp_path, kernels="double") as session:
        (tmp_path / "full_values").write_text("")  # no folder can be made here
        (tmp_path / "full_values-2").mkdir()
        (tmp_path / "full_values-3").symlink_to(tmp_path / "nowhere" / "deeper")
        both(device)()
    assert len(session.full_values) == 3
    assert all(value.path is None and value.array.size for value in session.full_values)
    assert any("full values of double could not be written to files" in n for n in notes(session))


# -- compiled models


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(24), nn.Sequential(nn.LayerNorm(24), nn.ReLU())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        torch._dynamo.graph_break()
        return self.second(x)


def test_modules_of_a_compiled_model(device: str) -> None:
    torch._dynamo.reset()
    model = Model().to(device)
    with torch.no_grad():
        model.second[0].weight.normal_()
    compiled = torch.compile(model)
    x = torch.randn(10, 24, device=device)
    results: list[torch.Tensor] = []
    with torch.no_grad():
        plain = compiled(x)
        session = session_of(lambda: results.append(compiled(x)), modules="second")
    assert torch.equal(results[0], plain)
    values = session.full_values
    assert values and {value.module.split(".")[0] for value in values} == {"second"}
    assert any(module.startswith("first") for module in session.table().modules())
    stored = [value.global_tensor() for value in values.where(role="store")]
    assert any(
        made.values is not None and np.array_equal(made.values, plain.cpu().numpy())
        for made in stored
    )


def test_a_long_reduction_of_a_compiled_model(device: str) -> None:
    """Inductor's loops end with a scalar argument: their executions are known before a launch."""
    torch._dynamo.reset()
    compiled = torch.compile(lambda x: torch.softmax(x, -1))
    x = torch.randn(3, 20000, device=device)
    results: list[torch.Tensor] = []
    plain = compiled(x)
    session = session_of(lambda: results.append(compiled(x)), addr_level=2)
    assert torch.equal(results[0], plain)
    looped = session.full_values.where(capacity=lambda n: n > 1)
    assert looped and all(set(value.executions) == {value.capacity} for value in looped)
    made = [value.global_tensor().values for value in session.full_values]
    assert any(m is not None and np.array_equal(m, plain.cpu().numpy()) for m in made)
    assert any(m is not None and np.array_equal(m, x.cpu().numpy()) for m in made)


def test_modules_that_are_not_there(device: str) -> None:
    session = session_of(both(device), modules=["layers.*"])
    assert not session.full_values
    assert "modules='layers.*' matched nothing: no full values of it" in notes(session)
