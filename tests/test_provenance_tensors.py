"""Names of memory: parameters and buffers by address, inputs of compiled code by argument."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._dynamo
from torch import nn
from torch.overrides import TorchFunctionMode

import flagprism_torch
from flagprism_torch.backends.cpu import disable_cpu, enable_cpu
from flagprism_torch.provenance import callsites, markers
from flagprism_torch.provenance.modules import ModuleNames
from flagprism_torch.provenance.tensors import tensor_name
from flagprism_torch.records.model import Launch


class Net(nn.Module):
    scale: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(4, 6), nn.Linear(6, 4)])
        self.register_buffer("scale", torch.full((4,), 2.0))
        self.plain = torch.ones(4)

    def forward(self, x: torch.Tensor, batch: dict[str, Any]) -> torch.Tensor:
        x = torch.relu(self.layers[0](x) * batch["mask"])
        return (self.layers[1](x) * self.scale + self.plain) / batch["parts"][1]


def test_every_parameter_and_buffer_is_found_at_each_of_its_bytes():
    model = Net()
    names = ModuleNames(model)
    wanted = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    assert len(wanted) == 5
    for name, tensor in wanted.items():
        for byte in (0, 5, tensor.nbytes - 1):
            assert tensor_name(tensor.data_ptr() + byte, names) == name
    assert tensor_name(model.plain.data_ptr(), names) is None
    assert tensor_name(0, names) is None


def test_a_tensor_itself_comes_before_one_that_shares_its_storage():
    flat = torch.zeros(10)
    model = nn.Module()
    model.first, model.second = nn.Parameter(flat[:4]), nn.Parameter(flat[6:].view(2, 2))
    names = ModuleNames(model)
    found = [tensor_name(flat.data_ptr() + 4 * n, names) for n in range(10)]
    assert found == ["first"] * 6 + ["second"] * 4  # 4 and 5: only the storage holds them


def test_strides_count():
    base = torch.zeros(4, 4)
    model = nn.Module()
    model.column = nn.Parameter(base[:, 1])
    place = ModuleNames(model).tensor_places()[0][1]["column"]
    assert (place.start - base.data_ptr(), place.end - base.data_ptr()) == (4, 4 * 14)


def test_a_tensor_that_moved_has_no_name():
    """What was at its old place, or is at its new one, is not told by it."""
    model = nn.Linear(64, 64)
    names = ModuleNames(model)
    old = model.weight.data_ptr()
    kept = model.weight.data
    model.weight.data = torch.zeros(64, 64)
    assert tensor_name(old, names) is None
    assert tensor_name(model.weight.data_ptr(), names) is None
    assert tensor_name(model.bias.data_ptr(), names) == "bias"
    model.weight.data = kept
    assert tensor_name(old, names) == "weight"


def test_models_are_held_weakly():
    model = nn.Linear(4, 4)
    names = ModuleNames(model)
    address = model.weight.data_ptr()
    del model
    assert tensor_name(address, names) is None


def test_wrappers_of_compile_do_not_appear():
    model = nn.Sequential(torch.compile(nn.Linear(4, 4)))
    names = ModuleNames(torch.compile(model))
    assert tensor_name(model[0].weight.data_ptr(), names) == "0.weight"


def test_tensors_without_memory_do_no_harm():
    model = nn.Module()
    model.lazy = nn.LazyLinear(4)
    model.meta = nn.Linear(2, 2, device="meta")
    model.empty = nn.Parameter(torch.ones(0))
    model.register_buffer("sparse", torch.eye(3).to_sparse())
    model.real = nn.Parameter(torch.ones(1))
    assert tensor_name(model.real.data_ptr(), ModuleNames(model)) == "real"


def test_modes_of_the_user_see_nothing():
    class Watch(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None):
            seen.append(func)
            return func(*args, **(kwargs or {}))

    seen: list[Any] = []
    model = nn.Linear(4, 4)
    address = model.weight.data_ptr()
    with Watch():
        assert tensor_name(address, ModuleNames(model)) == "weight"
    assert not seen


# -- inputs of compiled code


@pytest.fixture
def inductor() -> Iterator[None]:
    assert enable_cpu()
    yield
    torch._dynamo.reset()
    disable_cpu()


def passed(launches: list[Launch], tensors: dict[str, torch.Tensor]) -> set[tuple[str, str]]:
    """(name given to an argument, what was passed) for every argument with a name."""
    found = set()
    addresses = {tensor.data_ptr(): name for name, tensor in tensors.items()}
    for launch in launches:
        notes = {note.name: note for note in launch.tensors}
        for pointer, name in launch.site.origin.inputs.items():
            found.add((name, addresses.get(notes[pointer].address, "?")))
    return found


def noted(session: flagprism_torch.Session) -> list[Launch]:
    log = session._collector.tensors
    found = [log.launch(0, number) for number in range(next(session._collector.numbers))]
    return [one for one in found if one is not None]


def test_arguments_are_called_what_the_program_calls_them(inductor: None):
    """By address: each named argument was passed the tensor of that name, and none is missing."""
    model = Net()
    x, mask, part = torch.randn(3, 4), torch.ones(3, 6), torch.full((4,), 3.0)
    gradient = torch.ones(3, 4)
    compiled = torch.compile(model)
    with flagprism_torch.debug(logdir=False, model=model) as session:
        out = compiled(x, {"mask": mask, "parts": [1, part]})
        out.backward(gradient)
    tensors = {"x": x, "batch['mask']": mask, "batch['parts'][1]": part, "self.plain": model.plain,
               "gradient of output 0": gradient}  # fmt: skip
    assert passed(noted(session), tensors) == {(name, name) for name in tensors}


def test_a_graph_without_gradient(inductor: None):
    x, y = torch.randn(8), torch.randn(8)
    with flagprism_torch.debug(logdir=False) as session:
        torch.compile(lambda left, right: left / right)(x, y)
    assert passed(noted(session), {"left": x, "right": y}) == {("left",) * 2, ("right",) * 2}


def test_an_input_that_is_written_in_place(inductor: None):
    def add(total: torch.Tensor, x: torch.Tensor) -> None:
        total.add_(x)

    total, x = torch.zeros(8), torch.ones(8)
    with flagprism_torch.debug(logdir=False) as session:
        torch.compile(add)(total, x)
    found = passed(noted(session), {"total": total, "x": x})
    assert found == {("total", "total"), ("x", "x")}


def test_values_of_a_graph_break_have_no_name(inductor: None):
    def halves(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        torch._dynamo.graph_break()
        return y + 1

    x = torch.ones(8)
    with flagprism_torch.debug(logdir=False) as session:
        torch.compile(halves)(x)
    names = {name for name, _ in passed(noted(session), {"x": x})}
    assert names <= {"x", "y"} and "x" in names


@pytest.mark.parametrize("current", [True, False])
def test_names_of_another_process_hold_only_while_its_lines_do(tmp_path: Path, current: bool):
    """A renamed argument leaves the cached graph as it is, but not the line that uses it."""
    here = Path(__file__)
    owner = markers.Owner(None, "aten.mul", str(here), 1, "forward")
    marker = markers.Marker("k0", token="another", owners=[owner], inputs={"in_ptr0": "x"})
    text = markers.encode(marker)
    assert markers.decode(text) == marker
    if not current:
        text = text.replace('"t":[[0,1,', '"t":[[0,1,1')
    wrapper = tmp_path / "wrapper.py"
    wrapper.write_text(f"# AOT ID: ['0_inference']\n{text}\nk0.run(a)\n")
    origin = callsites.resolve(str(wrapper), 3, "k0")
    assert origin is not None
    assert origin.source == ("recorded" if current else "stale")
    assert dict(origin.inputs) == ({"in_ptr0": "x"} if current else {})
