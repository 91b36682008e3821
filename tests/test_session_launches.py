"""Which launches a session records, what it leaves behind, and what steps keep."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import triton
import triton.language as tl
from session_rows import check, row_of
from triton.compiler import CompiledKernel
from triton.runtime.autotuner import Autotuner
from triton.runtime.interpreter import InterpretedFunction
from triton.runtime.jit import JITFunction

import flagprism_torch
from flagprism_torch.backends.cpu import register, unregister
from flagprism_torch.errors import NestedSessionError, NoKernelWarning, PatchConflictWarning
from flagprism_torch.session import Session

BLOCK = 64
PATCHED = [
    (JITFunction, "run"),
    (Autotuner, "run"),
    (Autotuner, "_bench"),
    (CompiledKernel, "__getitem__"),
    (InterpretedFunction, "run"),
]


@pytest.fixture(autouse=True, scope="module")
def backend() -> Iterator[None]:
    registered = register("session launches")  # False beside a GPU
    yield
    if registered:
        unregister("session launches")


def session() -> Session:
    return flagprism_torch.debug(level=1, logdir=False)


def attributes() -> list[Any]:
    return [vars(owner).get(name) for owner, name in PATCHED]


def passed(done: Session) -> dict[tuple[str, str], int]:
    found = done.coverage.to_dict()["passed"]
    return {(entry["kernel"], entry["reason"]): entry["launches"] for entry in found}


@triton.jit
def add(x_ptr, y_ptr, o_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + i, mask=i < n)
    y = tl.load(y_ptr + i, mask=i < n)
    z = x + y
    tl.store(o_ptr + i, z, mask=i < n)


def launch_add(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    o, n = torch.empty_like(x), x.numel()
    add[(triton.cdiv(n, BLOCK),)](x, y, o, n, BLOCK=BLOCK)
    return o


def pair(device: str, n: int = 100) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(n, device=device), torch.randn(n, device=device)


# ------------------------------------------------------------------ kernels people write


@triton.jit
def softmax(x_ptr, o_ptr, n, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    i = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * n + i, mask=i < n, other=-float("inf"))
    shifted = x - tl.max(x, 0)
    e = tl.exp(shifted)
    p = e / tl.sum(e, 0)
    tl.store(o_ptr + row * n + i, p, mask=i < n)


@triton.jit
def layernorm(x_ptr, w_ptr, b_ptr, o_ptr, n, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    i = tl.arange(0, BLOCK)
    inside = i < n
    x = tl.load(x_ptr + row * n + i, mask=inside, other=0.0).to(tl.float32)
    mean = tl.sum(x, 0) / n
    centred = tl.where(inside, x - mean, 0.0)
    var = tl.sum(centred * centred, 0) / n
    normed = centred * tl.rsqrt(var + eps)
    w = tl.load(w_ptr + i, mask=inside)
    b = tl.load(b_ptr + i, mask=inside)
    y = normed * w + b
    tl.store(o_ptr + row * n + i, y, mask=inside)


@triton.jit
def attention(q_ptr, k_ptr, v_ptr, o_ptr, n, scale, ROWS: tl.constexpr, D: tl.constexpr):
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    d = tl.arange(0, D)
    q = tl.load(q_ptr + rows[:, None] * D + d[None, :], mask=rows[:, None] < n, other=0.0)
    peak = tl.full([ROWS], -float("inf"), tl.float32)
    norm = tl.zeros([ROWS], tl.float32)
    acc = tl.zeros([ROWS, D], tl.float32)
    for start in range(0, n, ROWS):
        columns = start + tl.arange(0, ROWS)
        k = tl.load(k_ptr + columns[:, None] * D + d[None, :], mask=columns[:, None] < n, other=0.0)
        v = tl.load(v_ptr + columns[:, None] * D + d[None, :], mask=columns[:, None] < n, other=0.0)
        s = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
        s = tl.where(columns[None, :] < n, s, -float("inf"))
        higher = tl.maximum(peak, tl.max(s, 1))
        p = tl.exp(s - higher[:, None])
        shrink = tl.exp(peak - higher)
        norm = norm * shrink + tl.sum(p, 1)
        acc = acc * shrink[:, None] + tl.dot(p, v, input_precision="ieee")
        peak = higher
    out = acc / norm[:, None]
    tl.store(o_ptr + rows[:, None] * D + d[None, :], out, mask=rows[:, None] < n)


def test_kernels_give_the_same_bits(device: str) -> None:
    """Outputs of twins are those of the originals, and right; so are the numbers about them."""
    x, w, b = torch.randn(9, 50, device=device), *pair(device, 50)
    q, k, v = (torch.randn(40, 16, device=device) for _ in range(3))

    def everything() -> list[torch.Tensor]:
        out = [torch.empty_like(x), torch.empty_like(x), torch.empty_like(q)]
        softmax[(9,)](x, out[0], 50, BLOCK=64)
        layernorm[(9,)](x, w, b, out[1], 50, 1e-5, BLOCK=64)
        attention[(3,)](q, k, v, out[2], 40, 0.25, ROWS=16, D=16)
        return out

    before = everything()
    with session() as s:
        inside = everything()
    after = everything()
    for one, two, three in zip(before, inside, after, strict=True):
        assert torch.equal(one, two) and torch.equal(one, three)
    torch.testing.assert_close(inside[0], torch.softmax(x, 1))
    torch.testing.assert_close(inside[1], torch.nn.functional.layer_norm(x, (50,), w, b))
    scores = (q @ k.T) * 0.25
    torch.testing.assert_close(inside[2], torch.softmax(scores, 1) @ v)

    rows = s.table().where(kernel="softmax")
    shifted = x - x.max(1, keepdim=True).values
    check(row_of(rows, "x"), x, lanes=9 * 64, mask="live")
    check(row_of(rows, "shifted"), shifted, lanes=9 * 64, mask="live")
    check(row_of(rows, "e"), shifted.exp(), lanes=9 * 64, mask="live", values_rel=1e-6)
    check(row_of(rows, "p"), inside[0], lanes=9 * 64, mask="live")
    check(row_of(rows, role="store"), inside[0], lanes=9 * 64, mask="live")

    rows = s.table().where(kernel="layernorm")
    mean, var = x.mean(1), x.var(1, correction=0)
    check(row_of(rows, "x"), x, lanes=9 * 64, mask="live")
    check(row_of(rows, "mean"), mean, values_rel=1e-5)
    check(row_of(rows, "centred"), x - mean[:, None], lanes=9 * 64, mask="live", values_rel=1e-5)
    check(row_of(rows, "var"), var, values_rel=1e-5)
    normed = (x - mean[:, None]) * (var + 1e-5).rsqrt()[:, None]
    check(row_of(rows, "normed"), normed, lanes=9 * 64, mask="live", values_rel=1e-5)
    check(row_of(rows, "y"), inside[1], lanes=9 * 64, mask="live")
    check(row_of(rows, "w"), w.repeat(9), lanes=9 * 64, mask="live")

    rows = s.table().where(kernel="attention")
    assert all(row.executions == 9 for row in rows.where(variable=lambda v: v in ("k", "s", "p")))
    check(row_of(rows, "q"), q, lanes=48 * 16, mask="live")
    check(row_of(rows, "k"), k.repeat(3, 1), lanes=9 * 256, mask="live")
    check(row_of(rows, "v"), v.repeat(3, 1), lanes=9 * 256, mask="live")
    check(row_of(rows, role="store"), inside[2], lanes=48 * 16, mask="live")
    assert not s.table().where(nan=lambda count: count > 0)


# ------------------------------------------------------------------ which launches


@triton.autotune([triton.Config({"BLOCK": 32}), triton.Config({"BLOCK": 64})], key=["n"])
@triton.heuristics({"EVEN": lambda args: args["n"] % args["BLOCK"] == 0})
@triton.jit
def tuned(x_ptr, o_ptr, n, BLOCK: tl.constexpr, EVEN: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + i) if EVEN else tl.load(x_ptr + i, mask=i < n)
    tl.store(o_ptr + i, x * 2.0, mask=i < n)


def test_autotune_and_heuristics(device: str) -> None:
    """Benchmark launches are counted, not recorded; the chosen configuration is."""
    x = torch.randn(100, device=device)
    o = torch.empty_like(x)
    with session() as s:
        for _ in range(3):
            tuned[lambda meta: (triton.cdiv(100, meta["BLOCK"]),)](x, o, 100)
    assert torch.equal(o, x * 2.0)
    assert passed(s)["tuned", "benchmark"] >= 2
    load = row_of(s.table(), "x")
    check(load, x.repeat(3), lanes=load.lanes, mask="live")
    assert load.lanes == 384 and load.launches == 3  # cdiv(100, B) * B is 128 for both
    assert s.coverage.to_dict()["launches"] == 3


def test_what_passes_through(device: str) -> None:
    x, y = pair(device)
    o = torch.empty_like(x)
    with session() as s:
        kernel = add.warmup(x, y, o, 100, BLOCK=BLOCK, grid=(2,))
        kernel[(2, 1, 1)](x, y, o, 100, BLOCK)
    assert torch.equal(o, x + y)
    assert passed(s) == {("add", "warmup"): 1, ("add", "compiled_kernel[grid]"): 1}
    assert not s.table() and s.coverage.to_dict()["launches"] == 0


def test_user_benchmarks_are_recorded(device: str) -> None:
    """do_bench of the user's own is a launch like any other."""
    from triton.runtime import driver

    x, y = pair(device)
    calls = []

    def once() -> None:
        calls.append(1)
        launch_add(x, y)

    with session() as s:
        driver.active.get_benchmarker()(once, quantiles=[0.5])
    row = row_of(s.table(), "z")
    assert row.launches == len(calls) > 1
    check(row, (x + y).repeat(len(calls)), lanes=128 * len(calls))


def test_zero_programs(device: str) -> None:
    x, y = pair(device)
    o = torch.zeros_like(x)
    with session() as s:
        add[(0,)](x, y, o, 100, BLOCK=BLOCK)
    assert not o.any() and not any(row.executions for row in s.table())


def test_threads(device: str) -> None:
    data = [pair(device, 100 + 64 * k) for k in range(4)]
    data[2][0][7] = float("nan")
    failures: list[BaseException] = []

    def work(k: int) -> None:
        try:
            for _ in range(5):
                x, y = data[k]
                torch.testing.assert_close(launch_add(x, y), x + y, rtol=0, atol=0, equal_nan=True)
        except BaseException as error:
            failures.append(error)

    with session() as s:
        threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not failures
    row = row_of(s.table(), "z")
    total = torch.cat([(x + y).repeat(5) for x, y in data])
    check(row, total, lanes=row.executions * BLOCK)
    assert row.launches == 20 and row.nan == 5
    assert row.first_nonfinite == ((0, 0, 0), 0, 7)


class Double(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return launch_add(x, x)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        return launch_add(grad, grad)


def test_autograd_function(device: str) -> None:
    x = torch.randn(100, device=device, requires_grad=True)
    with session() as s:
        (Double.apply(x) * 3.0).sum().backward()
    assert x.grad is not None and torch.equal(x.grad, torch.full_like(x, 6.0))
    forward, backward = s.table().where(variable="z")
    check(forward, x * 2.0, lanes=128)
    check(backward, x.grad, lanes=128)
    assert forward.site != backward.site


def test_triton_op(device: str) -> None:
    @torch.library.triton_op("flagprism_tests::add_op", mutates_args={})
    def add_op(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        o = torch.empty_like(x)
        torch.library.wrap_triton(add)[(2,)](x, y, o, 100, BLOCK=BLOCK)
        return o

    x, y = pair(device)
    with session() as s:
        o = add_op(x, y)
    assert torch.equal(o, x + y)
    check(row_of(s.table(), "z"), o, lanes=128)


def test_call_sites_have_rows_of_their_own(device: str) -> None:
    x, y = pair(device)
    o = torch.empty_like(x)
    with session() as s:
        add[(2,)](x, y, o, 100, BLOCK=BLOCK)
        for _ in range(2):
            add[(2,)](y, y, o, 100, BLOCK=BLOCK)
    first, second = s.table().where(variable="z")
    check(first, x + y, lanes=128)
    check(second, (y + y).repeat(2), lanes=256)
    assert (first.call, second.call, first.launches, second.launches) == (0, 1, 1, 2)


# ------------------------------------------------------------------ steps and results


def test_steps(device: str) -> None:
    """Rows per step, of all steps, and of the last 16 only."""
    inputs = [pair(device) for _ in range(20)]
    with session() as s:
        for number, (x, y) in enumerate(inputs):
            launch_add(x, y)
            if number < 19:
                s.step()
            if number == 5:
                check(row_of(s.table(step=5), "z"), sum(inputs[5]), lanes=128)
                assert row_of(s.table(), "z").launches == 6
    assert s.steps == 20
    for number in (4, 11, 19):
        row = row_of(s.table(step=number), "z")
        assert (row.step, row.launches) == (number, 1)
        check(row, sum(inputs[number]), lanes=128)
    whole = row_of(s.table(), "z")
    assert whole.step is None and whole.launches == 20
    check(whole, torch.cat([x + y for x, y in inputs]), lanes=20 * 128)
    for number in (0, 3, 20, -1):
        with pytest.raises(ValueError, match=f"step={number} is not kept"):
            s.table(step=number)


def test_anomalies_are_sorted(device: str) -> None:
    """NaN before inf, then by launch; one per chain, with first and last step."""
    clean = torch.ones(100, device=device)
    bad = clean.clone()
    bad[70], bad[3] = float("nan"), float("nan")
    large = torch.full((100,), 3e38, device=device)
    with session() as s:
        launch_add(clean, clean)
        launch_add(large, large)
        s.step()
        launch_add(bad, clean)
        s.step()
        launch_add(bad, clean)
    found = s.anomalies
    kinds = [a.kind for a in found]
    assert kinds == sorted(kinds, key=["nan", "inf"].index) and {*kinds} == {"nan", "inf"}
    nan, inf = found
    assert (nan.variable, nan.verdict) == ("x", "loaded")
    assert (nan.step, nan.last_step, nan.occurrences) == (1, 2, 2)
    assert nan.program == (0, 0, 0) and nan.lane == 3 and nan.counts["nan"] == 2
    assert (inf.variable, inf.verdict) == ("z", "born")
    assert (inf.step, inf.counts["posinf"], inf.counts["live"]) == (0, 100, 200)


def test_exception_in_the_block(device: str) -> None:
    x, y = pair(device)
    error = ZeroDivisionError("mine")
    before = attributes()
    with pytest.raises(ZeroDivisionError) as caught, session() as s:
        launch_add(x, y)
        raise error
    assert caught.value is error
    assert attributes() == before
    check(row_of(s.table(), "z"), x + y, lanes=128)


def test_everything_is_put_back(device: str) -> None:
    x, y = pair(device)
    before = attributes()
    with session() as s:
        assert all(a is not b for a, b in zip(attributes(), before, strict=True))
        launch_add(x, y)
    assert all(a is b for a, b in zip(attributes(), before, strict=True))
    launch_add(x, y)  # not recorded any more
    assert row_of(s.table(), "z").launches == 1
    with session() as again:
        launch_add(x, y)
    assert row_of(again.table(), "z").launches == 1


def test_a_foreign_patch_is_left_in_place(device: str) -> None:
    """It is named in a warning; our function under it records nothing any more."""
    x, y = pair(device)
    original = vars(JITFunction)["run"]
    try:
        with pytest.warns(PatchConflictWarning, match="JITFunction.run"), session() as s:
            ours = JITFunction.run
            calls = []

            def foreign(self: Any, *args: Any, **kwargs: Any) -> Any:
                calls.append(1)
                return ours(self, *args, **kwargs)

            JITFunction.run = foreign
            launch_add(x, y)
        assert vars(JITFunction)["run"] is foreign
        assert torch.equal(launch_add(x, y), x + y)
        assert len(calls) == 2
        assert row_of(s.table(), "z").launches == 1
    finally:
        JITFunction.run = original


def test_no_nesting(device: str) -> None:
    x, y = pair(device)
    caught = []

    def elsewhere() -> None:
        with pytest.raises(NestedSessionError), session():
            pass
        caught.append(1)

    with session() as s:
        with pytest.raises(NestedSessionError), session():
            pass
        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join()
        launch_add(x, y)
    assert caught and row_of(s.table(), "z").launches == 1


def test_a_block_without_kernels_warns() -> None:
    with pytest.warns(NoKernelWarning), session() as s:
        torch.ones(3).sum()
    assert not s.table()


def test_the_first_place_is_that_of_the_earliest_launch(device: str) -> None:
    x, y = pair(device)
    late, early = x.clone(), x.clone()
    late[90], early[2] = float("nan"), float("inf")
    with session() as s, warnings.catch_warnings():
        for data in (x, late, early):
            launch_add(data, y)
    assert row_of(s.table(), "z").first_nonfinite == ((1, 0, 0), 0, 26)
