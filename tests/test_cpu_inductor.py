"""torch.compile through Inductor's Triton code on the CPU backend, against eager."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import torch.utils._pytree as pytree
from torch import nn

from flagprism_torch.backends.cpu import disable_cpu, enable_cpu, is_registered
from flagprism_torch.backends.cpu.kernel import Kernel

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the backend is off beside a GPU")


@pytest.fixture(autouse=True, scope="module")
def backend() -> Iterator[None]:
    import torch._inductor.config as config

    assert enable_cpu()
    with config.patch(
        force_disable_caches=True, deterministic=True
    ):  # deterministic: no autotuning
        yield
    disable_cpu()


@pytest.fixture(autouse=True)
def fresh() -> None:
    torch.manual_seed(0)
    torch._dynamo.reset()


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the kernels that ran, in order."""
    seen: list[str] = []
    call = Kernel.__call__

    def counting(self: Kernel, grid: tuple[int, int, int], args: Any) -> None:
        seen.append(self.name)
        call(self, grid, args)

    monkeypatch.setattr(Kernel, "__call__", counting)
    return seen


r = torch.randn
CASES: dict[str, tuple[Callable[..., Any], Callable[[], tuple[torch.Tensor, ...]]]] = {
    "pointwise": (
        lambda x, y: (
            torch.sin(x) * torch.sigmoid(y) + x.tanh().pow(2) - y.abs().log1p() + F.silu(x)
        ),
        lambda: (r(50, 33), r(50, 33)),
    ),
    "integers": (
        lambda a, b: (
            a // b,
            a % b,
            a & b,
            a << 2,
            a >> 1,
            torch.div(a, b, rounding_mode="trunc"),
            a.float() / b,
            (a > b).int(),
        ),
        lambda: (torch.randint(-100, 100, (333,)), torch.randint(1, 9, (333,))),
    ),
    "softmax": (lambda x: torch.softmax(x, -1), lambda: (r(64, 300),)),
    "split reductions": (
        lambda x: (x.sum(), x.mean(0), x.amax(1), x.std(1)),
        lambda: (r(100, 5000),),
    ),
    "welford": (lambda x: F.layer_norm(x, (5000,)), lambda: (r(4, 5000),)),
    "argmax": (
        lambda x: (x.argmax(1), x.argmin(0), x.max(1), x.min(1).indices),
        lambda: (r(50, 700),),
    ),
    "scans": (
        lambda x: (x.cumsum(1), x.cumprod(1), x.logcumsumexp(1), x.cummax(1)),
        lambda: (r(5, 300),),
    ),
    "look-back scan": (lambda x: x.cumsum(0), lambda: (r(20000),)),
    "sort": (lambda x: (x.sort(1), x.topk(5, 1).values), lambda: (r(4, 50),)),
    "bf16": (
        lambda x, w: F.gelu(F.layer_norm(x @ w, (64,))),
        lambda: (r(32, 48).bfloat16(), r(48, 64).bfloat16()),
    ),
    "fp16": (lambda x: (torch.softmax(x, -1) * 2).relu() + x, lambda: (r(32, 48).half(),)),
    "float64": (lambda x: torch.exp(x).sum(1), lambda: (r(32, 48).double(),)),
    "embedding": (
        lambda w, i: F.embedding(i, w).sum(1),
        lambda: (r(100, 16), torch.randint(0, 100, (8, 5))),
    ),
    "scatter": (
        lambda x, i, s: x.index_add(0, i, s).scatter_add(0, i[:, None].expand(-1, 16), s),
        lambda: (r(10, 16), torch.randint(0, 10, (50,)), r(50, 16)),
    ),
    "pooling": (
        lambda x: F.adaptive_avg_pool2d(F.max_pool2d(x.relu(), 2), 1),
        lambda: (r(2, 3, 16, 16),),
    ),
    "upsample": (
        lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"),
        lambda: (r(2, 3, 8, 8),),
    ),
    "cat and pad": (
        lambda x, y: F.pad(torch.cat([x, y.T], 1), (1, 2, 3, 0)),
        lambda: (r(20, 30), r(40, 20)),
    ),
    "where": (
        lambda x: torch.where(x > 0, x, torch.nan).nan_to_num(1.0).clamp(-1, 1),
        lambda: (r(1000),),
    ),
    "special functions": (
        lambda x: (
            torch.erf(x),
            torch.erfinv(x.clamp(-0.9, 0.9)),
            torch.lgamma(x.abs() + 1),
            torch.special.i0(x),
            torch.special.bessel_j0(x),
            torch.acosh(x.abs() + 1),
            torch.atan2(x, x + 1),
            torch.hypot(x, x + 1),
            torch.fmod(x, 0.7),
            torch.remainder(x, 0.7),
            torch.round(x),
            torch.floor(x),
            torch.digamma(x.abs() + 1),
            torch.expm1(x),
            torch.log2(x.abs()),
            torch.copysign(x, -x),
            torch.nextafter(x, x + 1),
            torch.isnan(x),
            torch.signbit(x),
            torch.xlogy(x.abs(), x.abs()),
            torch.frexp(x).mantissa,
        ),
        lambda: (r(200),),
    ),
    "fp8": (
        lambda x: (x.to(torch.float8_e4m3fn).float(), x.to(torch.float8_e5m2).float() * 2),
        lambda: (r(256),),
    ),
}


@pytest.mark.parametrize("name", CASES)
@torch.no_grad()
def test_operators_equal_eager(name: str, launches: list[str]) -> None:
    function, make = CASES[name]
    args = make()
    want = pytree.tree_leaves(function(*args))
    got = pytree.tree_leaves(torch.compile(function)(*args))
    assert launches, "no Triton kernel ran"
    assert len(got) == len(want)
    for w, g in zip(want, got, strict=True):
        half = w.dtype in (torch.bfloat16, torch.float16)
        tolerance = 2e-2 if half else 1e-4
        torch.testing.assert_close(g, w, equal_nan=True, rtol=tolerance, atol=tolerance)


def test_dynamic_shapes(launches: list[str]) -> None:
    compiled = torch.compile(lambda x: (x * 2).sum(-1) + 1, dynamic=True)
    for shape in ((17, 33), (5, 12)):
        x = r(*shape)
        torch.testing.assert_close(compiled(x), (x * 2).sum(-1) + 1)
    assert len(launches) == 2


def test_dropout_statistics(launches: list[str]) -> None:
    y = torch.compile(lambda x: F.dropout(x, 0.3))(torch.ones(10000))
    assert abs((y != 0).float().mean().item() - 0.7) < 0.03
    assert abs(y.mean().item() - 1) < 0.05
    assert launches


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(F.gelu(self.up(self.norm(x)), approximate="tanh"))


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(50, 16)
        self.block = Block(16)
        self.head = nn.Linear(16, 50, bias=False)

    def forward(self, tokens: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        logits = self.head(self.block(self.embed(tokens)))
        return F.cross_entropy(logits.view(-1, 50), target.view(-1))


def test_training_step(launches: list[str]) -> None:
    model = Model()
    tokens, target = torch.randint(0, 50, (2, 2, 12)).unbind()

    def gradients(call: Callable[..., torch.Tensor]) -> list[torch.Tensor]:
        model.zero_grad()
        loss = call(tokens, target)
        loss.backward()
        return [loss.detach(), *(p.grad.clone() for p in model.parameters() if p.grad is not None)]

    want, got = gradients(model), gradients(torch.compile(model))
    assert len(got) == len(want) == 1 + len(list(model.parameters()))
    for w, g in zip(want, got, strict=True):
        torch.testing.assert_close(g, w, rtol=1e-4, atol=1e-5)
    assert any("backward" in name or "embedding" in name for name in launches)


def test_autotuning_inside_inductor(launches: list[str]) -> None:
    """Without `deterministic`, Inductor benchmarks configurations by real launches."""
    import torch._inductor.config as config

    x, y = r(40, 40), r(40, 40)
    with config.patch(deterministic=False):
        got = torch.compile(lambda a, b: a.T * b + 1)(x, y)
    torch.testing.assert_close(got, x.T * y + 1)
    assert len(launches) > 2


def test_enable_and_disable_restore_inductor() -> None:
    import torch._inductor.config as config
    from torch.utils._triton import has_triton

    assert (config.cpu_backend, config.compile_threads) == ("triton", 1)
    assert has_triton()
    assert enable_cpu()  # the same as once
    disable_cpu()
    assert config.cpu_backend == "cpp"
    assert not is_registered()
    assert not has_triton()
    disable_cpu()  # nothing to undo
    threads = config.compile_threads
    with config.patch(compile_threads=3):
        assert enable_cpu()
        assert config.compile_threads == 1
        disable_cpu()
        assert config.compile_threads == 3
    assert config.compile_threads == threads
    assert enable_cpu()
    assert has_triton()


def test_compiled_functions_outlive_disable(launches: list[str]) -> None:
    compiled = torch.compile(lambda x: torch.softmax(x, -1) * 2)
    x = r(8, 32)
    compiled(x)
    first = len(launches)
    disable_cpu()
    try:
        torch.testing.assert_close(compiled(x), torch.softmax(x, -1) * 2)
        assert len(launches) == first + 1
    finally:
        assert enable_cpu()


def test_no_change_beside_an_accelerator(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch._inductor.config as config
    import triton.backends

    disable_cpu()
    try:
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        assert not enable_cpu()
        assert config.cpu_backend == "cpp"
        assert "cpu" not in triton.backends.backends
    finally:
        monkeypatch.undo()
        assert enable_cpu()
