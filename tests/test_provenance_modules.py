"""Names of running modules: eager launches, forward and backward, without hooks."""

from __future__ import annotations

import gc
import sys
import threading

import pytest
import torch
import torch.utils.checkpoint

from flagprism_torch.provenance import modules
from flagprism_torch.provenance.modules import ModuleNames


class Recorder:
    """Stands for a launch hook: `launch()` is where a kernel would be launched."""

    def __init__(self) -> None:
        self.names = ModuleNames()
        self.log: list = []

    def launch(self) -> None:
        self.log.append(self.names.locate(sys._getframe(1)))

    def take(self) -> list[tuple[str, str]]:
        out = [(origin.module, origin.phase) for origin in self.log]
        self.log.clear()
        return out


HOOK = Recorder()


@pytest.fixture(autouse=True)
def _fresh():
    HOOK.names = ModuleNames()
    HOOK.log.clear()


class Double(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        HOOK.launch()
        ctx.save_for_backward(x)
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        _ = ctx.saved_tensors  # makes non-reentrant checkpointing recompute
        HOOK.launch()
        return grad * 2


@torch.library.custom_op("flagprism_test::double", mutates_args=())
def double(x: torch.Tensor) -> torch.Tensor:
    HOOK.launch()
    return x * 2


double.register_fake(torch.empty_like)


def _double_backward(ctx, grad):
    HOOK.launch()
    return grad * 2


double.register_autograd(_double_backward)


class Layer(torch.nn.Module):
    def __init__(self, op=Double.apply) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)
        self.op = op

    def forward(self, x):
        return self.op(self.linear(x))


class Net(torch.nn.Module):
    def __init__(self, op=Double.apply, checkpoint: bool | None = None) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList([Layer(op), Layer(op)])
        self.checkpoint = checkpoint  # use_reentrant, None for no checkpoint

    def forward(self, x):
        for layer in self.layers:
            if self.checkpoint is None:
                x = layer(x)
            else:
                x = torch.utils.checkpoint.checkpoint(layer, x, use_reentrant=self.checkpoint)
        return Double.apply(x)


def _input() -> torch.Tensor:
    return torch.ones(2, 4, requires_grad=True)


FORWARD = [("layers.0", "forward"), ("layers.1", "forward"), ("<Net>", "forward")]
BACKWARD = [("<Net>", "backward"), ("layers.1", "backward"), ("layers.0", "backward")]


def _line(marker: str) -> int:
    with open(__file__) as file:  # noqa: PTH123
        return next(i for i, line in enumerate(file, 1) if f"# {marker}" in line)


@pytest.mark.parametrize("op", [Double.apply, double], ids=["function", "custom op"])
@pytest.mark.parametrize("given", [True, False], ids=["root given", "root discovered"])
def test_forward_and_backward_name_the_same_module(op, given):
    net = Net(op)
    if given:
        HOOK.names = ModuleNames(net)
    net(_input()).sum().backward()
    assert HOOK.take() == FORWARD + BACKWARD


def test_model_line_is_the_one_of_the_forward():
    def launch(x):
        return Double.apply(x)

    Net(launch)(_input()).sum().backward()
    assert {origin.source for origin in HOOK.log} == {"frames"}
    assert {origin.model_file for origin in HOOK.log} == {__file__}
    first, last = HOOK.log[0], HOOK.log[-1]
    # Innermost user frame of a forward launch: the line of Double.forward that launches.
    assert first.model_line == Double.forward.__code__.co_firstlineno + 2
    assert last.phase == "backward" and last.model_line == first.model_line


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpoint_recomputes_in_forward(reentrant):
    Net(checkpoint=reentrant)(_input()).sum().backward()
    found = HOOK.take()
    assert found[:4] == [*FORWARD, BACKWARD[0]]
    rest = found[4:]
    assert [f for f in rest if f[1] == "backward"] == BACKWARD[1:]
    assert [f for f in rest if f[1] == "forward"] == [FORWARD[1], FORWARD[0]]


def test_outside_of_modules():
    HOOK.launch()  # OUTSIDE
    (origin,) = HOOK.log
    assert (origin.module, origin.modules, origin.phase) == ("<none>", (), "none")
    assert (origin.model_file, origin.model_line) == (__file__, _line("OUTSIDE"))
    assert origin.aten == ()


def test_backward_of_a_function_outside_of_modules():
    Double.apply(_input()).sum().backward()
    assert HOOK.take() == [("<none>", "none"), ("<none>", "backward")]


def test_optimizer_step():
    class Descend(torch.optim.SGD):
        def step(self, closure=None):
            loss = closure() if closure is not None else None
            HOOK.launch()  # STEP
            return loss

    net = Net()
    optimizer = Descend(net.parameters(), lr=0.1)
    optimizer.step(lambda: net(_input()).sum())
    last = HOOK.log[-1]
    # The closure runs a forward inside of step: the innermost of the two wins.
    assert HOOK.take() == [*FORWARD, ("<none>", "optimizer")]
    assert last.model_line == _line("STEP")


def test_backward_called_inside_a_forward_is_not_that_module():
    class Outer(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = Net()

        def forward(self, x):
            self.net(x).sum().backward()
            HOOK.launch()
            return x

    Outer()(_input())
    names = ["net.layers.0", "net.layers.1", "net"]
    assert HOOK.take() == [
        *((n, "forward") for n in names),
        *((n, "backward") for n in reversed(names)),
        ("<Outer>", "forward"),
    ]


def test_part_of_a_model_run_before_the_whole():
    net = Net()
    net.layers[1](_input())
    net(_input())
    net.layers[1](_input())
    assert HOOK.take() == [("<Layer>", "forward"), *FORWARD, ("<Layer>", "forward")]


def test_given_root_names_a_part_run_alone():
    net = Net()
    HOOK.names = ModuleNames(net)
    net.layers[1](_input())
    Layer()(_input())  # not part of it
    assert HOOK.take() == [("layers.1", "forward"), ("<Layer>", "forward")]


def test_module_added_later_is_found():
    net = Net()
    HOOK.names = ModuleNames(net)
    net.layers.append(Layer())
    net(_input())
    assert HOOK.take()[2] == ("layers.2", "forward")


def test_threads_count_their_own_sequence_numbers():
    nets = [Net(), Net()]
    nets[1].layers[0] = torch.nn.Sequential(Layer())
    found: list = [None, None]
    barrier = threading.Barrier(2)

    def work(index: int) -> None:
        loss = nets[index](_input()).sum()
        barrier.wait()
        start = len(HOOK.log)
        with lock:
            start = len(HOOK.log)
            loss.backward()
            found[index] = [(o.module, o.phase) for o in HOOK.log[start:]]

    lock = threading.Lock()
    threads = [threading.Thread(target=work, args=(i,)) for i in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found[0] == BACKWARD
    assert found[1] == [BACKWARD[0], BACKWARD[1], ("layers.0.0", "backward")]


def test_backward_on_another_thread():
    loss = Net()(_input()).sum()
    HOOK.log.clear()
    thread = threading.Thread(target=loss.backward)
    thread.start()
    thread.join()
    assert HOOK.take() == BACKWARD


def test_ambiguous_number_names_nothing():
    """Two threads used the number for two modules, and the backward runs on a third thread."""
    losses: list = [None, None]
    layers = [Layer(), Layer()]  # held: the id of a freed one may come back

    def work(index: int) -> None:
        losses[index] = layers[index](_input()).sum()

    for index in range(2):
        thread = threading.Thread(target=work, args=(index,))
        thread.start()
        thread.join()
    HOOK.log.clear()
    losses[0].backward()
    (origin,) = HOOK.log
    assert (origin.module, origin.phase) == ("<none>", "backward")


def test_memory_is_bounded(monkeypatch):
    monkeypatch.setattr(modules, "_NOTED_PER_THREAD", 8)
    layer = Layer()
    for _ in range(50):
        layer(_input())
    (noted,) = HOOK.names._noted.values()
    assert len(noted) == 8


def test_modules_are_held_weakly():
    net = Net()
    names = ModuleNames(net)
    number = id(net.layers[0])
    assert names.by_id(number, "Layer") == ("layers.0", "Net")
    assert names.by_id(number, "Other") is None  # the id of something else by now
    del net
    gc.collect()
    assert names.by_id(number, "Layer") is None


def test_wrapper_of_torch_compile_does_not_show():
    net = Net()
    net.layers[0] = torch.compile(net.layers[0], backend="eager")
    names = ModuleNames(torch.compile(net, backend="eager"))
    assert names.root_label() == "<Net>"
    inner = net.layers[0]._orig_mod
    assert names.by_id(id(inner.linear), "Linear") == ("layers.0.linear", "Net")
    assert names.by_id(id(inner), "Layer") == ("layers.0", "Net")
