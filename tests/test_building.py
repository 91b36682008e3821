"""Twins are built by several threads at once: each once, with results and failures as by one."""

from __future__ import annotations

import gc
import os
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest
import torch
import triton
import triton.language as tl
from torch import nn
from triton.backends.compiler import GPUTarget
from triton.runtime.errors import OutOfResources

import flagprism_torch
from flagprism_torch.backends import cpu
from flagprism_torch.hooks import ahead, collector
from flagprism_torch.instrument.twin import Building, Recipe, TwinSource

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the backend is off beside a GPU")

PATIENCE = 60  # seconds until a test that waits in vain fails
THREADS = 3


@pytest.fixture(scope="module", autouse=True)
def inductor() -> Iterator[None]:
    assert cpu.enable_cpu()
    yield
    torch._dynamo.reset()
    cpu.disable_cpu()


class Net(nn.Module):
    """Several generated kernels in forward and in backward: matrix products stand between them."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 16), nn.Linear(16, 8)
        self.third, self.norm = nn.Linear(8, 8), nn.LayerNorm(8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.second(torch.tanh(self.first(x)))
        x = self.third(self.norm(x) * torch.sigmoid(x))
        return torch.softmax(x.exp(), -1)


@pytest.fixture(scope="module")
def net(inductor: None) -> tuple[Net, Callable[..., list[torch.Tensor]]]:
    """A model that was compiled, tuned and run before any session, and one step of it."""
    torch.manual_seed(0)
    model, x = Net(), torch.randn(4, 8)
    compiled = torch.compile(model)

    def step(backward: bool = True) -> list[torch.Tensor]:
        model.zero_grad()
        out = compiled(x)
        if backward:
            out.pow(2).sum().backward()
        return [out.detach(), *(p.grad.clone() for p in model.parameters() if p.grad is not None)]

    step()
    return model, step


Threads = Callable[[int], None]


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> Threads:
    """Call it to give sessions so many threads, and to forget twins that were built before."""

    def give(count: int) -> None:
        monkeypatch.setattr(ahead, "workers", lambda: count)
        monkeypatch.setattr(collector, "_known", weakref.WeakKeyDictionary())

    return give


class Compilations:
    """Calls of `triton.compile` for twins, in order: (kernel, its key, whether a worker made it).
    `during` runs inside of each."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls: list[tuple[str, str, bool]] = []
        self.in_vain: list[str] = []
        self.during: Callable[[TwinSource, bool], Any] = lambda source, worker: None
        original = triton.compile

        def compile(source: Any, *args: Any, **kwargs: Any) -> Any:
            if isinstance(source, TwinSource):
                worker = threading.current_thread().name.startswith("flagprism twin")
                self.calls.append((source.name, source.hash(), worker))
                self.during(source, worker)
            return original(source, *args, **kwargs)

        monkeypatch.setattr(triton, "compile", compile)

    def wait(self, event: threading.Event) -> None:
        """Wait inside of a compilation, where an error would only make the twin step down."""
        if not event.wait(PATIENCE):
            self.in_vain.append(threading.current_thread().name)

    @property
    def kernels(self) -> list[str]:
        return [name for name, _, _ in self.calls]


@pytest.fixture
def compilations(monkeypatch: pytest.MonkeyPatch) -> Iterator[Compilations]:
    noted = Compilations(monkeypatch)
    yield noted
    assert not noted.in_vain


def records(session: Any) -> list[dict[str, Any]]:
    return [{**row, "step": None} for row in session.table().to_dicts()]


def alive() -> list[str]:
    return [t.name for t in threading.enumerate() if t.name.startswith("flagprism twin")]


# -- a compiled model


def test_threads_change_neither_results_nor_records(net: Any, threads: Threads) -> None:
    model, step = net
    plain = step()
    seen = []
    for count in (0, THREADS):
        threads(count)
        with flagprism_torch.debug(model=model, logdir=False) as session:
            got = step()
        assert all(torch.equal(a, b) for a, b in zip(plain, got, strict=True))
        seen.append((records(session), session.coverage.to_dict(), session.report("statement")))
    alone, together = seen
    assert len({row["kernel"] for row in alone[0] if row["op"] != "extern"}) >= 5
    assert together == alone


def test_every_twin_is_compiled_once(
    net: Any, threads: Threads, compilations: Compilations
) -> None:
    model, step = net
    threads(THREADS)
    with flagprism_torch.debug(model=model, logdir=False) as session:
        step()
        step()
    counts = Counter(key for _, key, _ in compilations.calls)
    assert set(counts.values()) == {1}
    assert session.coverage.to_dict()["instrumented"] == len(counts)
    with flagprism_torch.debug(model=model, logdir=False) as again:
        step()
    assert len(compilations.calls) == len(counts)  # built before
    assert again.coverage.to_dict()["instrumented"] == len(counts)


def test_a_launch_and_a_thread_compile_at_the_same_time(
    net: Any, threads: Threads, compilations: Compilations
) -> None:
    model, step = net
    threads(THREADS)
    beside, here = threading.Event(), threading.Event()

    def during(source: TwinSource, worker: bool) -> None:
        (beside if worker else here).set()
        compilations.wait(here if worker else beside)

    compilations.during = during
    with flagprism_torch.debug(model=model, logdir=False):
        step()
    assert {worker for _, _, worker in compilations.calls} == {False, True}


def test_without_threads_twins_are_built_by_their_launches(
    net: Any, threads: Threads, compilations: Compilations
) -> None:
    model, step = net
    threads(0)
    with flagprism_torch.debug(model=model, logdir=False):
        step()
        assert not alive()
    assert {worker for _, _, worker in compilations.calls} == {False}


def test_nothing_is_begun_while_a_kernel_of_the_module_is_to_be_tuned(
    net: Any, threads: Threads, compilations: Compilations, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Busy threads would disturb benchmarks, whose result Inductor keeps."""
    model, step = net
    threads(0)
    with flagprism_torch.debug(model=model, logdir=False):
        step(backward=False)
    first, *_, last = compilations.kernels
    (kernel,) = [known for known in collector._known if known.fn.__name__ == last]
    config = kernel.launchers[0].config
    while_tuning: list[list[tuple[str, str, bool]]] = []

    def tune(launcher: Any, *args: Any, **kwargs: Any) -> Any:
        while_tuning.append(list(compilations.calls))
        config.found_by_coordesc = True
        return launcher

    monkeypatch.setitem(kernel.inductor_meta, "coordinate_descent_tuning", True)
    monkeypatch.setattr(config, "found_by_coordesc", False, raising=False)
    monkeypatch.setattr(kernel, "coordinate_descent_tuning", tune)
    compilations.calls.clear()
    threads(THREADS)
    with flagprism_torch.debug(model=model, logdir=False):
        step(backward=False)
    (before,) = while_tuning
    assert first in [name for name, _, _ in before]
    assert not any(worker for _, _, worker in before)
    assert last in compilations.kernels


# -- failures


def failing(
    compilations: Compilations, first: str, doomed: str, fails: Callable[[Recipe], bool]
) -> None:
    """Twins of `doomed` fail to compile where `fails`. `first`, which a launch compiles, waits
    until a worker, if there are any, is through with `doomed`."""
    through = threading.Event()

    def during(source: TwinSource, worker: bool) -> None:
        if source.name == doomed:
            last = not fails(source._recipe) or source._recipe.stores_only
            if last:
                through.set()
            if fails(source._recipe):
                raise RuntimeError(f"no room for {source._recipe.max_values} values")
        elif source.name == first and ahead.workers():
            compilations.wait(through)

    compilations.during = during


@pytest.mark.parametrize(
    ("fails", "kind"),
    [
        (lambda recipe: True, "not_instrumented"),
        (lambda recipe: recipe.max_values == 64 and not recipe.stores_only, "stepped_down"),
    ],
)
def test_a_failure_in_a_thread_is_told_as_without(
    net: Any,
    threads: Threads,
    compilations: Compilations,
    fails: Callable[[Recipe], bool],
    kind: str,
) -> None:
    model, step = net
    plain = step()
    threads(0)
    with flagprism_torch.debug(model=model, logdir=False):
        step()
    first, doomed = compilations.kernels[:2]
    told = []
    for count in (0, THREADS):
        compilations.calls.clear()
        failing(compilations, first, doomed, fails)
        threads(count)
        with flagprism_torch.debug(model=model, logdir=False) as session:
            got = step()
        assert all(torch.equal(a, b) for a, b in zip(plain, got, strict=True))
        told.append((records(session), session.coverage.to_dict()))
        at = {worker for name, _, worker in compilations.calls if name == doomed}
        assert at == {count > 0}
    assert told[0] == told[1]
    assert "no room for 64 values" in str(told[1][1][kind])


def test_only_launches_load_binaries(
    net: Any, threads: Threads, compilations: Compilations, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What does not fit on the device comes out when it is loaded, and is tried with less."""
    from triton.compiler import CompiledKernel

    model, step = net
    loaded: list[str] = []
    original = CompiledKernel._init_handles

    def load(self: Any) -> None:
        if isinstance(self.src, TwinSource) and self.module is None:
            loaded.append(threading.current_thread().name)
            if self.src._recipe.max_values == 64 and not self.src._recipe.stores_only:
                raise OutOfResources(300, 200, "shared memory")
        original(self)

    monkeypatch.setattr(CompiledKernel, "_init_handles", load)
    told = []
    for count in (0, THREADS):
        threads(count)
        with flagprism_torch.debug(model=model, logdir=False) as session:
            step()
        told.append((records(session), session.coverage.to_dict()))
    assert told[0] == told[1]
    coverage = told[0][1]
    assert coverage["instrumented"] == len(coverage["stepped_down"]) > 0
    assert loaded and not [name for name in loaded if name.startswith("flagprism twin")]


def test_leaving_ends_what_has_not_started(
    net: Any, threads: Threads, compilations: Compilations, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C in a launch, while the only worker is busy and others of its module wait for it."""
    model, step = net
    plain = step()
    threads(1)
    busy, leaving = threading.Event(), threading.Event()
    shutdown = ThreadPoolExecutor.shutdown

    def leave(self: Any, *args: Any, **kwargs: Any) -> None:
        shutdown(self, wait=False, cancel_futures=kwargs["cancel_futures"])
        leaving.set()
        shutdown(self, wait=True)

    def during(source: TwinSource, worker: bool) -> None:
        if worker:
            busy.set()
            compilations.wait(leaving)
        else:
            compilations.wait(busy)
            raise KeyboardInterrupt

    monkeypatch.setattr(ThreadPoolExecutor, "shutdown", leave)
    compilations.during = during
    with (
        pytest.raises(KeyboardInterrupt),
        flagprism_torch.debug(model=model, logdir=False) as session,
    ):
        step()
    assert [worker for _, _, worker in compilations.calls].count(True) == 1
    assert len(compilations.calls) == 2 and not alive()
    assert session.coverage.to_dict()["instrumented"] == 0

    compilations.during = lambda source, worker: None
    with flagprism_torch.debug(model=model, logdir=False) as session:
        got = step()
    assert all(torch.equal(a, b) for a, b in zip(plain, got, strict=True))
    assert session.coverage.to_dict()["instrumented"] >= 5


# -- the parts


@triton.jit
def plus(x, o, B: tl.constexpr):
    i = tl.arange(0, B)
    tl.store(o + i, tl.load(x + i) + 1)


@triton.jit
def times(x, o, B: tl.constexpr):
    i = tl.arange(0, B)
    tl.store(o + i, tl.load(x + i) * 3)


def described(fn: Any, block: int) -> tuple[Any, ...]:
    signature = {"x": "*fp32", "o": "*fp32", "B": "constexpr"}
    return fn, signature, {"B": block}, {}, GPUTarget("cpu", 0, 1), {}, Recipe(1, 64, False)


def at_once(calls: list[Callable[[], Any]]) -> list[Any]:
    """Results of calls that threads begin together."""
    together = threading.Barrier(len(calls))

    def run(call: Callable[[], Any]) -> Any:
        together.wait(PATIENCE)
        return call()

    with ThreadPoolExecutor(len(calls)) as pool:
        return list(pool.map(run, calls))


def test_a_twin_that_several_threads_want_is_built_once(monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[str] = []
    make_ir = TwinSource.make_ir

    def counted(self: TwinSource, *args: Any) -> Any:
        written.append(self.name)
        return make_ir(self, *args)

    monkeypatch.setattr(TwinSource, "make_ir", counted)
    twins = at_once([lambda: Building(*described(plus, 64)).finish()] * 4)
    assert written == ["plus"]
    assert len({id(twin.table) for twin in twins}) == 1
    assert {twin.table.kernel for twin in twins} == {"plus"}


def test_different_twins_are_compiled_at_the_same_time(compilations: Compilations) -> None:
    inside = threading.Barrier(2)
    compilations.during = lambda source, worker: inside.wait(PATIENCE)
    twins = at_once([Building(*described(fn, 32)).finish for fn in (plus, times)])
    assert sorted(twin.table.kernel for twin in twins) == ["plus", "times"]


def test_a_launch_waits_for_the_thread_that_compiles_its_twin(compilations: Compilations) -> None:
    building = Building(*described(plus, 128))
    compiling, asked = threading.Event(), threading.Event()

    def during(source: TwinSource, worker: bool) -> None:
        compiling.set()
        compilations.wait(asked)

    compilations.during = during
    with ThreadPoolExecutor(2) as pool:
        pool.submit(building.compile)
        compilations.wait(compiling)
        finished = pool.submit(building.finish)
        asked.set()
        assert finished.result(PATIENCE).table.kernel == "plus"
    assert compilations.kernels == ["plus"]


class Kernel:
    """Something that a building refers to, and that the building is kept for."""


def keeping(kernel: Kernel) -> Building:
    building: Any = Building(*described(times, 16))
    building.owner = kernel
    return building  # type: ignore[no-any-return]


@pytest.mark.parametrize("taken", [False, True])
def test_nothing_is_kept_after_the_session(threads: Threads, taken: bool) -> None:
    threads(2)
    begun, kernel = ahead.Ahead(), Kernel()
    begun.begin(kernel, "twin", partial(keeping, kernel))
    begun.begin(kernel, "twin", lambda: pytest.fail("it was begun before"))
    if taken:
        found = begun.take(kernel, "twin")
        assert found is not None and found.finish().table.kernel == "times"
        del found
        assert begun.take(kernel, "twin") is None
        begun.begin(kernel, "twin", lambda: pytest.fail("a launch has taken it"))
    begun.close()
    begun.begin(kernel, "another", lambda: pytest.fail("the session is over"))
    assert begun.take(kernel, "another") is None
    gone = weakref.ref(kernel)
    del kernel
    gc.collect()
    assert gone() is None and not alive()


def test_what_cannot_be_begun_is_left_to_its_launch(threads: Threads) -> None:
    threads(2)
    begun, kernel = ahead.Ahead(), Kernel()

    def fails() -> Building:
        raise OSError("the source is gone")

    begun.begin(kernel, "twin", fails)
    assert begun.take(kernel, "twin") is None
    begun.close()


@pytest.mark.parametrize(("usable", "expected"), [(1, 0), (2, 2), (5, 5), (128, 16)])
def test_one_thread_for_each_usable_cpu(
    monkeypatch: pytest.MonkeyPatch, usable: int, expected: int
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(usable)), raising=False)
    assert ahead.workers() == expected
