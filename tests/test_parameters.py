"""Arguments of launches against what their kernels take for granted: what is found, and the many
healthy launches of which nothing may be said."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import pytest
import torch
import torch._dynamo
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

import flagprism_torch
import flagprism_torch.backends.cpu as cpu
from flagprism_torch.records.model import Anomaly
from flagprism_torch.session import Session

BLOCK = 16


@pytest.fixture(autouse=True, scope="module")
def backend() -> Iterator[None]:
    registered = cpu.register("parameters")  # False beside a GPU
    yield
    if registered:
        cpu.unregister("parameters")


def seen(call: Callable[[], Any], addr_level: int = 1, **options: Any) -> Session:
    with flagprism_torch.debug(addr_level=addr_level, logdir=False, **options) as session:
        call()
    return session


def told(session: Session) -> list[tuple[str, Any]]:
    """(kind, argument) of everything that was found."""
    notes = session.coverage.to_dict()["notes"]
    assert [note for note in notes if "not checked" in note] == []
    return [(one.kind, one.details.get("argument")) for one in session.anomalies]


def one(session: Session) -> Anomaly:
    (found,) = session.anomalies
    return found


# -- layouts: launches


@triton.jit
def scale_rows(x_ptr, o_ptr, N: tl.constexpr):
    row = tl.program_id(0)
    i = tl.arange(0, N)
    x = tl.load(x_ptr + row * N + i)
    tl.store(o_ptr + row * N + i, x * 2.0)


@triton.jit
def add_flat(x_ptr, y_ptr, o_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + i, mask=i < n)
    y = tl.load(y_ptr + i, mask=i < n)
    tl.store(o_ptr + i, x + y, mask=i < n)


@triton.jit
def scale_strided(x_ptr, o_ptr, stride_xm, stride_xn, stride_om, stride_on, N: tl.constexpr):
    row = tl.program_id(0)
    i = tl.arange(0, N)
    x = tl.load(x_ptr + row * stride_xm + i * stride_xn)
    tl.store(o_ptr + row * stride_om + i * stride_on, x * 2.0)


@triton.jit
def in_place(x_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + i, mask=i < n)
    tl.store(x_ptr + i, x * 2.0, mask=i < n)


@triton.jit
def row_norms(x_ptr, y_ptr, o_ptr, N: tl.constexpr):
    i = tl.arange(0, N)
    x = tl.load(x_ptr + tl.program_id(0) * N + i)
    y = tl.load(y_ptr + tl.program_id(0) * N + i)
    tl.store(o_ptr + tl.program_id(0), tl.sum(x) + tl.max(y))


def add(x: torch.Tensor, y: torch.Tensor, o: torch.Tensor) -> None:
    n = x.numel()
    add_flat[(triton.cdiv(n, BLOCK),)](x, y, o, n, BLOCK=BLOCK)


def test_transposed_input(device: str) -> None:
    x = torch.randn(8, 8, device=device).t()
    found = one(seen(lambda: scale_rows[(8,)](x, torch.zeros(8, 8, device=device), N=8)))
    assert (found.kind, found.verdict, found.severity) == ("noncontiguous_argument", "found",
                                                           "warning")  # fmt: skip
    assert (found.op, found.variable) == ("tt.load", "x")
    assert found.details == {"argument": "x_ptr", "shape": (8, 8), "strides": (1, 8),
                             "other": "o_ptr", "other_strides": (8, 1)}  # fmt: skip
    assert "argument x_ptr" in str(found)
    assert "(1, 8)" in found.cause and "(8, 1)" in found.cause


def test_transposed_output(device: str) -> None:
    o = torch.zeros(8, 8, device=device).t()
    found = one(seen(lambda: scale_rows[(8,)](torch.randn(8, 8, device=device), o, N=8)))
    assert (found.details["argument"], found.op) == ("o_ptr", "tt.store")


def test_padded_rows_and_channels(device: str) -> None:
    """A view of wider rows; a channels_last tensor beside a plain one."""
    wide = torch.randn(8, 16, device=device)[:, :8]
    plain = torch.zeros(8, 8, device=device)
    assert told(seen(lambda: scale_rows[(8,)](wide, plain, N=8))) == [
        ("noncontiguous_argument", "x_ptr")
    ]
    image = torch.randn(2, 3, 4, 4, device=device)
    last = image.to(memory_format=torch.channels_last)
    done = seen(lambda: add(image, last, torch.empty_like(image)))
    assert told(done) == [("noncontiguous_argument", "y_ptr")]


def test_first_row_of_a_wider_tensor(device: str) -> None:
    """One program reads one row: how far apart rows are does not matter. Two do."""
    wide = torch.randn(8, 16, device=device)[:, :8]
    out = torch.zeros(8, 8, device=device)
    assert told(seen(lambda: scale_rows[(1,)](wide, out, N=8))) == []
    assert told(seen(lambda: scale_rows[(2,)](wide, out, N=8))) == [
        ("noncontiguous_argument", "x_ptr")
    ]


def test_once_per_place(device: str) -> None:
    x, o = torch.randn(8, 8, device=device).t(), torch.zeros(8, 8, device=device)
    with flagprism_torch.debug(addr_level=1, logdir=False) as session:
        for _ in range(3):
            for _ in range(2):
                scale_rows[(8,)](x, o, N=8)
            session.step()
        scale_rows[(8,)](o, o, N=8)
        session.step()
    found = one(session)
    assert (found.step, found.last_step, found.occurrences, found.launch) == (0, 2, 3, 0)


def test_only_with_addresses(device: str) -> None:
    x, o = torch.randn(8, 8, device=device).t(), torch.zeros(8, 8, device=device)
    assert told(seen(lambda: scale_rows[(8,)](x, o, N=8), addr_level=0)) == []
    assert told(seen(lambda: scale_rows[(8,)](x, o, N=8), addr_level=0, guard=True)) == []


def healthy_layouts(device: str) -> dict[str, Callable[[], Any]]:
    x = torch.randn(8, 8, device=device)
    o = torch.zeros(8, 8, device=device)
    image = torch.randn(2, 3, 4, 4, device=device).to(memory_format=torch.channels_last)
    strides = (*x.t().stride(), *o.stride())
    wide = torch.randn(8, 16, device=device)[:, :8]
    return {
        "contiguous": lambda: add(x, x + 1, o),
        "strides": lambda: scale_strided[(8,)](x.t(), o, *strides, N=8),
        "strides of slices": lambda: scale_strided[(8,)](
            wide, o, *wide.stride(), *o.stride(), N=8
        ),
        "equally permuted": lambda: add(x.t(), x.t() + 1, torch.empty_like(x.t())),
        "equally channels_last": lambda: add(image, image * 2, torch.empty_like(image)),
        "one argument": lambda: in_place[(4,)](x.t(), 64, BLOCK=BLOCK),
        "same tensor twice": lambda: add(x.t(), x.t(), x.t()),
        "other shape": lambda: add(x.t(), x.view(-1), o.view(64)),
        "other type": lambda: add(x.t(), x.half(), o.double()),
        "axes of one": lambda: add(x[:, None].expand(8, 1, 8)[:, :1], x.view(8, 1, 8),
                                   o.view(8, 1, 8).transpose(0, 1).transpose(0, 1)),
        "column": lambda: add(x.view(64, 1), x.view(1, 64).t(), o.view(64, 1)),
        "reduced": lambda: row_norms[(8,)](x.t(), x, o, N=8),
        "nothing runs": lambda: scale_rows[(0,)](x.t(), o, N=8),
        "no element": lambda: add(x[:0].t(), x[:0].t(), o[:0]),
    }  # fmt: skip


@pytest.mark.parametrize("which", healthy_layouts("cpu"))
def test_healthy_layouts(which: str, device: str) -> None:
    assert told(seen(healthy_layouts(device)[which])) == []


def test_expanded_is_a_matter_of_bounds(device: str) -> None:
    """The flat index leaves the eight elements behind it."""
    x = torch.randn(8, device=device).expand(8, 8)
    o = torch.zeros(8, 8, device=device)
    assert told(seen(lambda: scale_rows[(8,)](x, o, N=8), guard=True)) == [("oob", "x_ptr")]


# -- autotuning


def benchmark(call: Callable[[], None], quantiles: Any = None) -> list[float]:
    for _ in range(3):
        call()
    return [1.0, 1.0, 1.0]


def tuned(fn: Any, blocks: tuple[int, ...] = (16, 32), hook: Any = None, **options: Any) -> Any:
    configs = [triton.Config({"BLOCK": block}, pre_hook=hook) for block in blocks]
    return triton.autotune(configs=configs, key=["n"], do_bench=benchmark, **options)(fn)


@triton.jit
def sums(x_ptr, o_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.atomic_add(o_ptr, tl.sum(tl.load(x_ptr + i, mask=i < n, other=0.0)))


@triton.jit
def clamp(x_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + i, mask=i < n)
    tl.store(x_ptr + i, tl.maximum(x, 0.0), mask=i < n)


def grid(meta: dict[str, int]) -> tuple[int]:
    return (triton.cdiv(64, meta["BLOCK"]),)


def test_autotuner_mutates(device: str) -> None:
    x, kernel = torch.ones(64, device=device), tuned(in_place)
    with flagprism_torch.debug(addr_level=1, logdir=False) as session:
        kernel[grid](x, 64)
        session.step()
        kernel[grid](x, 64)
    found = one(session)
    assert (found.kind, found.op, found.occurrences) == ("autotune_mutation", "tt.store", 1)
    assert found.statement == "tl.store(x_ptr + i, x * 2.0, mask=i < n)"
    assert found.details == {"argument": "x_ptr", "benchmark_launches": 6, "launches": 7,
                             "user_launches": 1}  # fmt: skip
    assert x[0] == 2.0**8


def test_autotuner_adds_up(device: str) -> None:
    total = torch.zeros(1, device=device)
    found = seen(lambda: tuned(sums)[grid](torch.ones(64, device=device), total, 64))
    assert told(found) == [("autotune_mutation", "o_ptr")] and total[0] == 7 * 64


def nothing(*arguments: Any, **named: Any) -> None:
    pass


HEALTHY_TUNING: dict[str, Callable[[], tuple[Any, int]]] = {
    "restored": lambda: (tuned(in_place, restore_value=["x_ptr"]), 1),
    "set to zero": lambda: (tuned(in_place, reset_to_zero=["x_ptr"]), 0),
    "hooks of the user": lambda: (tuned(in_place, pre_hook=nothing), 7),
    "hook after": lambda: (tuned(in_place, post_hook=nothing), 7),
    "hook of a configuration": lambda: (tuned(in_place, hook=nothing), 7),
    "one configuration": lambda: (tuned(in_place, blocks=(16,)), 1),
    "repeatable": lambda: (tuned(clamp), 0),
}


@pytest.mark.parametrize("which", HEALTHY_TUNING)
def test_healthy_tuning(which: str, device: str) -> None:
    """`doubled`: how often the kernel doubled the tensor that the caller sees."""
    x = torch.ones(64, device=device)
    kernel, doubled = HEALTHY_TUNING[which]()
    assert told(seen(lambda: kernel[grid](x, 64))) == []
    wanted = 0.0 if which == "set to zero" else 2.0**doubled
    assert x.unique().tolist() == [wanted]


def test_tuned_before_the_block(device: str) -> None:
    kernel = tuned(in_place)
    kernel[grid](torch.ones(64, device=device), 64)
    assert told(seen(lambda: kernel[grid](torch.ones(64, device=device), 64))) == []


def test_not_tuned(device: str) -> None:
    assert told(seen(lambda: in_place[(4,)](torch.ones(64, device=device), 64, BLOCK=16))) == []


def test_heuristics_between(device: str) -> None:
    inner = triton.heuristics({"BLOCK": lambda args: 16})(in_place)
    configs = [triton.Config({}, num_warps=warps) for warps in (2, 4)]
    kernel = triton.autotune(configs=configs, key=["n"], do_bench=benchmark)(inner)
    done = seen(lambda: kernel[(4,)](torch.ones(64, device=device), 64))
    assert told(done) == [("autotune_mutation", "x_ptr")]


# -- pipelined loops


@triton.jit
def reloads(p_ptr, o_ptr, n, STAGES: tl.constexpr, BARRIER: tl.constexpr):
    for at in tl.range(0, n, num_stages=STAGES):
        i = at * 16 + tl.arange(0, 16)
        value = i.to(tl.float32)
        tl.store(p_ptr + i, value)
        if BARRIER:
            tl.debug_barrier()
        back = tl.load(p_ptr + i)
        tl.store(o_ptr + i, back)


@pytest.mark.parametrize(("stages", "barrier"), [(1, False), (3, False), (3, True)])
def test_reloads(stages: int, barrier: bool, device: str) -> None:
    p, o = torch.zeros(64, device=device), torch.zeros(64, device=device)
    done = seen(lambda: reloads[(1,)](p, o, 4, STAGES=stages, BARRIER=barrier))
    if stages == 1 or barrier:
        assert told(done) == []
        return
    found = one(done)
    assert (found.kind, found.variable) == ("config_dependent", "back")
    assert found.details == {"argument": "p_ptr", "writer": "tl.store(p_ptr + i, value)",
                             "num_stages": 3}  # fmt: skip
    assert "stored in: tl.store(p_ptr + i, value)" in done.report()


@triton.jit
def matmul(a_ptr, b_ptr, o_ptr, K, stride_am, stride_bk, stride_om, B: tl.constexpr):
    i = tl.arange(0, B)
    a = a_ptr + (tl.program_id(0) * B + i)[:, None] * stride_am + i[None, :]
    b = b_ptr + i[:, None] * stride_bk + (tl.program_id(1) * B + i)[None, :]
    total = tl.zeros((B, B), tl.float32)
    for _ in range(0, K, B):
        total = tl.dot(tl.load(a), tl.load(b), total)
        a += B
        b += B * stride_bk
    o = o_ptr + (tl.program_id(0) * B + i)[:, None] * stride_om
    tl.store(o + (tl.program_id(1) * B + i)[None, :], total)


def test_healthy_matmul(device: str) -> None:
    """Slices of wider matrices; all strides are given."""
    a, b, o = (torch.randn(32, 48, device=device)[:, :32] for _ in range(3))

    def call() -> None:
        matmul[(2, 2)](a, b, o, 32, a.stride(0), b.stride(0), o.stride(0), B=16)

    assert told(seen(call)) == []
    torch.testing.assert_close(o, a @ b, rtol=1e-2, atol=1e-2)


# -- single arguments


def test_negative_stride(device: str) -> None:
    x, o = torch.randn(8, 8, device=device), torch.zeros(8, 8, device=device)
    done = seen(lambda: scale_strided[(8,)](x[7:], o, -8, 1, 8, 1, N=8), guard=True)
    kinds = told(done)
    assert ("parameter", "stride_xm") in kinds and {kind for kind, _ in kinds} == {
        "parameter", "oob",
    }  # fmt: skip
    found = next(a for a in done.anomalies if a.kind == "parameter")
    assert (found.severity, found.details["value"]) == ("info", -8)
    assert "argument stride_xm" in str(found)


def test_stride_of_zero(device: str) -> None:
    x, o = torch.randn(8, device=device), torch.zeros(8, 8, device=device)
    assert told(seen(lambda: scale_strided[(8,)](x, o, 0, 1, 8, 1, N=8))) == []


@triton.jit
def through(x_desc, o_ptr, B: tl.constexpr):
    i = tl.arange(0, B)
    x = x_desc.load([tl.program_id(0) * B, 0])
    tl.store(o_ptr + (tl.program_id(0) * B + i)[:, None] * B + i[None, :], x)


def descriptor(base: torch.Tensor, shape: list[int], strides: list[int]) -> TensorDescriptor:
    return TensorDescriptor(base, shape, strides, [8, 8])


def test_descriptors(device: str) -> None:
    whole = torch.randn(32, 8, device=device)
    o = torch.zeros(16, 8, device=device)

    def told_of(base: torch.Tensor, shape: list[int], strides: list[int]) -> list[Any]:
        given = descriptor(base, shape, strides)
        return told(seen(lambda: through[(2,)](given, o, B=8)))

    assert told_of(whole, [32, 8], [8, 1]) == []
    assert told_of(whole[:16], [16, 8], [8, 1]) == []
    assert told_of(whole[:16], [17, 8], [8, 1]) == [("parameter", "x_desc")]
    told_better = [("oob", "x_desc")] if device == "cpu" else [("parameter", "x_desc")]
    assert told_of(whole[:16], [16, 8], [16, 1]) == told_better
    # rows of a view may be read to their end
    view = torch.randn(16, 16, device=device)[:, :8]
    assert told_of(view, [16, 16], [16, 1]) == []
    assert told_of(view, [17, 8], [16, 1]) == [("parameter", "x_desc")]


# -- compiled models


@pytest.fixture
def inductor() -> Iterator[None]:
    assert cpu.enable_cpu()
    yield
    torch._dynamo.reset()
    cpu.disable_cpu()


@pytest.mark.slow
@pytest.mark.usefixtures("inductor")
def test_healthy_compiled_models() -> None:
    """Transposed and channels_last inputs, mixed with plain ones; in-place updates; a backward."""
    torch.manual_seed(0)
    image = torch.randn(2, 3, 4, 4)
    last = image.to(memory_format=torch.channels_last)
    x = torch.randn(8, 8, requires_grad=True)

    @torch.compile
    def mixed(x: torch.Tensor, image: torch.Tensor, last: torch.Tensor) -> torch.Tensor:
        return (x.t() * 2 + x).softmax(-1).sum() + (image * last + last.sigmoid()).sum()

    def call() -> None:
        mixed(x, image, last).backward()
        state = torch.ones(64)
        torch.compile(lambda t: t.mul_(2).add_(1))(state)
        assert state.unique().tolist() == [3.0]

    done = seen(call)
    assert told(done) == [] and len(done.addresses()) > 4


@pytest.mark.slow
@pytest.mark.usefixtures("inductor")
def test_user_kernel_in_compiled_code() -> None:
    """Its arguments are the user's: a view that the kernel takes for contiguous."""

    @torch.compile
    def model(x: torch.Tensor) -> torch.Tensor:
        o = torch.zeros(8, 8)
        scale_rows[(8,)](x.t(), o, N=8)
        return o + 1

    assert told(seen(lambda: model(torch.randn(8, 8)))) == [("noncontiguous_argument", "x_ptr")]


@pytest.mark.slow
@pytest.mark.usefixtures("inductor")
def test_compiled_for_aligned_memory() -> None:
    """Inductor compiled for buffers that 16 divides; another caller may bring others."""
    from torch._inductor.runtime.triton_heuristics import CachingAutotuner

    kernels: list[Any] = []
    original = CachingAutotuner.run

    def run(self: Any, *args: Any, **kwargs: Any) -> Any:
        kernels.append(self)
        return original(self, *args, **kwargs)

    with mock.patch.object(CachingAutotuner, "run", run):
        torch.compile(lambda x: x.sin() + 1)(torch.randn(64))
    (kernel,) = kernels
    x, o = torch.randn(64), torch.empty(65)
    assert told(seen(lambda: kernel.run(x, o[:64], 64, stream=0))) == []
    found = one(seen(lambda: kernel.run(x, o[1:], 64, stream=0)))
    assert (found.kind, found.details["problem"]) == ("parameter", "alignment")
    assert (found.details["argument"], found.details["remainder"]) == ("out_ptr0", 4)
    assert found.statement.startswith("tl.store(out_ptr0")
