"""torch.compile in unusual settings: equal results with and without a session, no false alarm."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch._dynamo
import torch._inductor.config
import triton
import triton.language as tl

import flagprism_torch
import flagprism_torch.backends.cpu as cpu
from flagprism_torch.session import Session


@pytest.fixture(scope="module", autouse=True)
def inductor() -> Iterator[None]:
    assert cpu.enable_cpu()
    yield
    torch._dynamo.reset()
    cpu.disable_cpu()


@triton.jit
def scale(x, o, n, s, B: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B)
    m = i < n
    tl.store(o + i, tl.load(x + i, m) * s, m)


def in_place(**options: Any) -> Callable[[], Any]:
    step = torch.compile(lambda x, y: x.add_(y).mul_(2))

    def call() -> torch.Tensor:
        z = torch.ones(100)
        step(z, torch.arange(100.0))
        step(z, torch.arange(100.0))
        return z

    return call


def optimizer() -> Callable[[], Any]:
    torch.manual_seed(0)
    parameters = [torch.nn.Parameter(torch.randn(n)) for n in (5, 33)]
    adam = torch.optim.AdamW(parameters, lr=0.1, foreach=True)
    step = torch.compile(lambda: adam.step())

    def call() -> list[torch.Tensor]:
        for parameter in parameters:
            parameter.grad = torch.ones_like(parameter)
        step()
        step()
        return [parameter.detach().clone() for parameter in parameters]

    return call


def user_kernel() -> Callable[[], Any]:
    def model(x: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(x)
        n = x.numel()
        scale[lambda meta: (triton.cdiv(n, meta["B"]),)](x, out, n, 2.5, B=16)
        return out + 1

    compiled = torch.compile(model, dynamic=True, fullgraph=True)
    return lambda: [compiled(torch.arange(float(n))) for n in (10, 40)]


def graph_break() -> Callable[[], Any]:
    def model(x: torch.Tensor) -> torch.Tensor:
        y = torch.exp(x) * 2
        torch._dynamo.graph_break()
        return y.sum(1) + 1

    compiled = torch.compile(model)
    return lambda: compiled(torch.arange(12.0).view(3, 4) / 12)


@pytest.mark.parametrize(
    ("make", "config", "launched"),
    [
        (in_place, {}, 2),
        (in_place, {"max_autotune": True, "max_autotune_pointwise": True}, 2),
        (in_place, {"coordinate_descent_tuning": True}, 2),
        (optimizer, {"combo_kernels": True}, 4),
        (user_kernel, {}, 4),
        (graph_break, {}, 2),
    ],
    ids=["in-place", "autotuned", "descent", "AdamW", "user kernel", "graph break"],
)
def test_cold_compilation_inside_the_block(make: Any, config: dict[str, Any], launched: int):
    """Everything compiles inside: in-place kernels must not run once more than without us."""

    def result(session: Session | None) -> list[torch.Tensor]:
        torch._dynamo.reset()
        with torch._inductor.config.patch(fx_graph_cache=False, **config):
            call = make()
            if session is None:
                got = call()
            else:
                with session:
                    got = call()
        return got if isinstance(got, list) else [got]

    session = flagprism_torch.debug(logdir=False)
    plain, seen = result(None), result(session)
    assert all(torch.equal(a, b) for a, b in zip(plain, seen, strict=True))
    assert session.coverage.to_dict()["launches"] == launched
    assert not session.coverage.to_dict()["not_instrumented"]
    assert session.anomalies == ()


def test_step_and_results_inside_a_compiled_function():
    def model(x: torch.Tensor) -> torch.Tensor:
        y = x.sin() * 2
        session.step()
        return y + len(session.table())

    x = torch.arange(8.0)
    torch._dynamo.reset()
    with flagprism_torch.debug(logdir=False) as session:
        out = torch.compile(model)(x)
    assert session.steps >= 1
    assert torch.allclose(out, x.sin() * 2 + len(session.table(0)))


def test_entering_inside_a_compiled_function():
    def model(x: torch.Tensor) -> torch.Tensor:
        with flagprism_torch.debug(logdir=False):
            return x.sin()

    torch._dynamo.reset()
    with pytest.raises(torch._dynamo.exc.Unsupported, match="put the with block around"):
        torch.compile(model, fullgraph=True)(torch.ones(8))
    with flagprism_torch.debug(logdir=False):  # nothing was left active
        torch.compile(lambda x: x.cos() + 3)(torch.ones(8))
