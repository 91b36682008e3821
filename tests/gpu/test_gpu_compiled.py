"""A compiled two-layer transformer on an accelerator: forward, backward and AdamW, compiled and
warm before the session."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from live_cases import check_statistics, difference, large, normal
from torch import nn

import flagprism_torch
from flagprism_torch.records.model import Row


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.proj = nn.Linear(width, width, bias=False)
        up, down = nn.Linear(width, 4 * width, bias=False), nn.Linear(4 * width, width, bias=False)
        self.mlp = nn.Sequential(up, nn.GELU(), down)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(self.norm(x)).chunk(3, -1)
        scores = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5
        length = x.shape[1]
        keep = torch.ones(length, length, dtype=torch.bool, device=x.device).tril()
        x = x + self.proj(scores.masked_fill(~keep, float("-inf")).softmax(-1) @ v)
        return x + self.mlp(x)


class Model(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Block(width), Block(width)])
        self.last = nn.LayerNorm(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return self.last(x)


class Training:
    """A compiled training step that always starts from the same state."""

    def __init__(self, device: str) -> None:
        batch, length, width = (8, 256, 256) if large(device) else (2, 9, 16)
        torch.manual_seed(0)
        self.device = device
        self.model = Model(width).to(device)
        self.x = normal(device, batch, length, width).requires_grad_()
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(), lr=1e-3, foreach=True, capturable=device != "cpu"
        )
        self.forward = torch.compile(self.model)
        self.update = torch.compile(self.optimizer.step)
        self.run()
        self.start = [t.detach().clone() for t in self._state()]
        for _ in range(3):  # state of the optimizer, guards, autotuning, fast launch paths
            self.step()

    def _state(self) -> list[torch.Tensor]:
        states = [s for p in self.model.parameters() for s in self.optimizer.state[p].values()]
        return [*self.model.parameters(), *states]

    def run(self) -> dict[str, torch.Tensor]:
        self.model.zero_grad(set_to_none=True)
        self.x.grad = None
        y = self.forward(self.x)
        (y.square().mean() + y.sum() * 1e-4).backward()
        self.update()
        named = self.model.named_parameters()
        assert self.x.grad is not None
        return {
            "output": y.detach().clone(),
            "input gradient": self.x.grad.clone(),
            **{f"{name}.grad": p.grad.clone() for name, p in named if p.grad is not None},
            **{name: p.detach().clone() for name, p in self.model.named_parameters()},
        }

    def step(self) -> dict[str, torch.Tensor]:
        with torch.no_grad():
            for tensor, start in zip(self._state(), self.start, strict=True):
                tensor.copy_(start)
        return self.run()


@pytest.fixture(scope="module")
def training(device: str) -> Iterator[Training]:
    on_cpu = flagprism_torch.enable_cpu()
    yield Training(device)
    if on_cpu:
        flagprism_torch.disable_cpu()


def _synchronize(device: str) -> None:
    if device != "cpu":
        torch.accelerator.synchronize()


def _largest(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> tuple[float, str]:
    return max((difference(a[name], b[name]), name) for name in a)


def _launches(step: Callable[[], Any], device: str, monkeypatch: pytest.MonkeyPatch) -> int:
    """Triton launches of one step, counted by torch's profiler; on a CPU, which it does not see, by
    counting calls."""
    if device == "cpu":
        from torch._inductor.runtime.triton_heuristics import CachingAutotuner

        calls = []
        original = CachingAutotuner.run

        def counted(self: Any, *args: Any, **kwargs: Any) -> Any:
            calls.append(self)
            return original(self, *args, **kwargs)

        with monkeypatch.context() as patched:
            patched.setattr(CachingAutotuner, "run", counted)
            step()
        return len(calls)
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as found:
        step()
        _synchronize(device)
    on_device = torch.autograd.DeviceType.CUDA
    return sum(
        event.device_type == on_device
        and event.name.startswith("triton_")
        and not getattr(event, "is_user_annotation", False)
        for event in found.events()
    )


def _matches(row: Row, values: torch.Tensor) -> bool:
    try:
        check_statistics(row, values)
    except AssertionError:
        return False
    return True


def test_statistics_and_outputs(
    training: Training, device: str, say: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
):
    plain, again = training.step(), training.step()
    expected = _launches(training.step, device, monkeypatch)
    with flagprism_torch.debug(model=training.model, logdir=False) as session:
        training.step()
        session.step()
        inside = training.step()
        session.step()
    gap, where = _largest(plain, inside)
    own, own_where = _largest(plain, again)
    say(f"largest difference {gap:g} ({where}); of two plain runs {own:g} ({own_where})")
    say(session.coverage.line())
    coverage = session.coverage.to_dict()
    say(f"Triton launches of a step: {expected}, recorded {coverage['launches'] / 2:g}")
    assert not coverage["not_instrumented"] and not coverage["stepped_down"], str(session.coverage)

    table = session.table(step=1)
    stores = table.where(role="store")
    output = [row for row in stores if row.module == "last" and _matches(row, inside["output"])]
    assert output, "no store of module `last` has the statistics of the model's output"
    assert all(row.phase == "forward" for row in output)
    gradient = inside["input gradient"]
    backward = [row for row in stores if row.phase == "backward" and _matches(row, gradient)]
    assert backward, "no store of the backward pass has the statistics of the input's gradient"
    for name, parameter in training.model.named_parameters():
        found = [row for row in stores if _matches(row, inside[name])]
        assert found, f"no store has the statistics of the updated {name}"
        assert all(parameter.numel() == row.live for row in found)
    modules = {row.module for row in table}
    assert {"layers.0.norm", "layers.1.norm", "layers.0.mlp.1", "layers.1.mlp.1"} <= modules

    assert coverage["launches"] == 2 * expected
    # a probe is one more use of a value, which can change which multiply-adds are contracted
    assert gap <= max(own, 2e-5), f"{where} differs by {gap}, two plain runs differ by {own}"


def _kernels() -> list[Any]:
    from torch._inductor.runtime.triton_heuristics import CachingAutotuner

    gc.collect()
    return [each for each in gc.get_objects() if isinstance(each, CachingAutotuner)]


def _objects(autotuners: list[Any]) -> list[Any]:
    """Everything on the launch path that a session might leave changed."""
    from torch._inductor.runtime.triton_heuristics import CachingAutotuner
    from triton.compiler import CompiledKernel
    from triton.runtime.autotuner import Autotuner
    from triton.runtime.jit import JITFunction

    owners = [
        (CachingAutotuner, "run"),
        (JITFunction, "run"),
        (Autotuner, "_bench"),
        (CompiledKernel, "__getitem__"),
    ]
    objects: list[Any] = [vars(owner).get(name) for owner, name in owners]
    for kernel in autotuners:
        objects += [*kernel.launchers, getattr(kernel, "_cached_launcher", None)]
        objects += [vars(kernel).get("run"), *kernel.compile_results]
    return objects


def test_nothing_recompiles_and_nothing_stays_changed(
    training: Training, device: str, say: Callable[[str], None]
):
    from torch._dynamo.utils import counters

    training.step()
    autotuners = _kernels()
    before, compiled = _objects(autotuners), dict(counters["stats"])
    launchers = [launcher for kernel in autotuners for launcher in kernel.launchers]
    static = sum(bool(getattr(launcher, "_is_static", False)) for launcher in launchers)
    say(f"{len(launchers)} launchers, {static} of them static")
    with flagprism_torch.debug(model=training.model, logdir=False) as session:
        training.step()
    assert session.coverage.to_dict()["launches"] > 0
    training.step()
    after = _objects(autotuners)
    assert dict(counters["stats"]) == compiled
    assert len(before) == len(after) and len(autotuners) > 10
    assert all(a is b for a, b in zip(before, after, strict=True))


def _median_ms(step: Callable[[], Any], device: str, repeats: int) -> float:
    times = []
    for _ in range(repeats):
        _synchronize(device)
        start = time.perf_counter()
        step()
        _synchronize(device)
        times.append((time.perf_counter() - start) * 1e3)
    return sorted(times)[len(times) // 2]


def test_memory_over_fifty_steps(training: Training, device: str, say: Callable[[str], None]):
    steps = 50 if large(device) else 12
    held = []
    plain = _median_ms(training.step, device, 5)
    with flagprism_torch.debug(model=training.model, logdir=False) as session:
        training.step()
        start = time.perf_counter()
        for _ in range(steps):
            training.step()
            session.step()
            if device != "cpu":
                torch.accelerator.synchronize()
                held.append(torch.get_device_module(device).memory_allocated())
        seconds = (time.perf_counter() - start) / steps
    say(f"step {plain:.2f} ms plain, {seconds * 1e3:.2f} ms inside; {steps} steps")
    kept = session.table(step=steps - 1)
    assert len(kept) > 0
    if held:
        say(f"held after 10 steps {held[9]} bytes, after {steps} steps {held[-1]}")
        assert held[-1] <= held[9]
