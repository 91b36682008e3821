"""Unusual launches and kernels: with and without a session they give the same bits or the same
error, and the session says what it saw."""

from __future__ import annotations

import gc
import importlib.util
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from session_rows import check, row_of

import flagprism_torch
import flagprism_torch.backends.cpu as cpu
from flagprism_torch.session import Session


@pytest.fixture(scope="module", autouse=True)
def backend() -> Iterator[None]:
    assert cpu.register("test_attacks_launches")
    yield
    cpu.unregister("test_attacks_launches")


@triton.jit
def twice(x, o, n, B: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B)
    m = i < n
    a = tl.load(x + i, m)
    tl.store(o + i, a * 2.0, m)


@triton.jit
def own_names(flagprism_records, records, B: tl.constexpr):
    i = tl.arange(0, B)
    flagprism_1 = tl.load(flagprism_records + i)
    tl.store(records + i, flagprism_1 * 2)


@triton.jit
def own_local(x, o, B: tl.constexpr):
    i = tl.arange(0, B)
    flagprism_records = tl.load(x + i)
    tl.store(o + i, flagprism_records + 1)


@triton.jit
def in_tuples(pointers, numbers, B: tl.constexpr):
    i = tl.arange(0, B)
    m = i < numbers[0]
    a = tl.load(pointers[0] + i, m)
    b = tl.load(pointers[1] + i, m)
    tl.store(pointers[2] + i, a * numbers[1] + b, m)


@triton.jit
def asserting(x, o):
    i = tl.arange(0, 8)
    a = tl.load(x + i)
    tl.device_assert(a < 3, "too big")
    tl.store(o + i, a)


@triton.jit
def assembly(x, o):
    i = tl.arange(0, 8)
    a = tl.load(x + i)
    b = tl.inline_asm_elementwise("mov $0,$1;", "=r,r", [a], tl.float32, is_pure=True, pack=1)
    tl.store(o + i, b)


@triton.jit
def scaled_dot(x, s, o):
    r = tl.arange(0, 32)
    i = r[:, None] * 32 + r[None, :]
    a = tl.load(x + i)
    k = tl.load(s + r[:, None])
    tl.store(o + i, tl.dot_scaled(a, k, "e4m3", tl.trans(a), k, "e4m3"))


@triton.jit
def uneven(x, o, n, m, B: tl.constexpr):
    p = tl.program_id(0)
    i = tl.arange(0, B)
    acc = tl.zeros((B,), tl.float32)
    for a in range(p % 3):
        for b in range(a, m):
            v = tl.load(x + (p * 7 + a * 3 + b) % 17 + i, i < n, other=0.0)
            if (b + p) % 2 == 0:
                w = v * b
                acc += w
        acc = acc * 0.5
    tl.store(o + p * B + i, acc, i < n)


def outcome(call: Callable[[], Any]) -> Any:
    try:
        return call()
    except Exception as error:
        return type(error), str(error)


def both(call: Callable[[], Any], **options: Any) -> tuple[Any, Session]:
    """What `call` gives, after comparing it with and without a session."""
    plain = outcome(call)
    session = flagprism_torch.debug(logdir=False, **options)

    def inside() -> Any:
        with session:
            return call()

    seen = outcome(inside)
    if isinstance(plain, torch.Tensor):
        assert isinstance(seen, torch.Tensor), seen
        assert torch.equal(plain.view(torch.uint8), seen.view(torch.uint8))
    else:
        assert seen == plain
    return seen, session


def launch_twice(grid: Any) -> Callable[[], torch.Tensor]:
    def call() -> torch.Tensor:
        out = torch.zeros(100)
        twice[grid](torch.arange(100.0), out, 100, B=64)
        return out

    return call


@pytest.mark.parametrize(
    "grid",
    [[2], (np.int64(2), np.int32(1)), (2.0,), (torch.tensor(2),), lambda meta: [200 // meta["B"]],
     (2, 1, 1, 1)],
    ids=["list", "numpy", "float", "tensor", "callable", "four"],
)  # fmt: skip
def test_a_grid_of_any_spelling(grid: Any):
    session = both(launch_twice(grid))[1]
    assert row_of(session.table(), "a").live >= 100


@pytest.mark.parametrize("grid", [(0,), (2, 0, 3), (-1,)])
@pytest.mark.filterwarnings("ignore::flagprism_torch.errors.NoKernelWarning")
def test_a_grid_without_programs_leaves_no_rows(grid: Any):
    session = both(launch_twice(grid))[1]
    assert len(session.table()) == 0 and session.anomalies == ()


@pytest.mark.parametrize(("grid", "error"), [(2, TypeError), ((), IndexError)])
@pytest.mark.filterwarnings("ignore::flagprism_torch.errors.NoKernelWarning")
def test_a_wrong_grid_raises_what_triton_raises(grid: Any, error: type):
    assert both(launch_twice(grid))[0][0] is error


@pytest.mark.parametrize("kernel", [own_names, own_local])
def test_a_kernel_may_use_the_name_of_the_hidden_argument(kernel: Any):
    def call() -> torch.Tensor:
        out = torch.zeros(8)
        kernel[(1,)](torch.arange(8.0), out, B=8)
        return out

    out, session = both(call)
    assert not session.coverage.to_dict()["not_instrumented"]
    check(row_of(session.table(), role="store"), out)


def test_tuples_as_arguments():
    data = torch.arange(8, dtype=torch.uint8) + 250  # unsigned: wraps to 0, 1 in the last lanes

    def call() -> torch.Tensor:
        out = torch.zeros(8)
        in_tuples[(1,)]((torch.arange(8.0), data, out), (5, 2.0), B=8)
        return out

    out, session = both(call)
    check(row_of(session.table(), "b"), data[:5], lanes=8)
    check(row_of(session.table(), role="store"), out[:5], lanes=8)


@pytest.mark.filterwarnings("ignore::flagprism_torch.errors.NoKernelWarning")
def test_a_device_assertion_raises_the_same_error():
    result, _ = both(lambda: asserting[(1,)](torch.arange(8.0), torch.zeros(8), debug=True))
    assert result[0] is RuntimeError and "too big" in result[1]


@pytest.mark.parametrize("kernel", [assembly, scaled_dot])
def test_what_the_backend_cannot_execute_raises_the_same_error(kernel: Any):
    arguments = [torch.zeros(8), torch.zeros(8)]
    if kernel is scaled_dot:
        arguments = [torch.zeros(1024).to(torch.float8_e4m3fn),
                     torch.full((32,), 127, dtype=torch.uint8), torch.zeros(1024)]  # fmt: skip
    result, session = both(lambda: kernel[(1,)](*arguments))
    assert result[0] is flagprism_torch.errors.UnsupportedOpError
    assert len(session.table()) == 0
    assert kernel.fn.__name__ in session.coverage.to_dict()["not_instrumented"]


@pytest.mark.parametrize("capacity", [65536, 4])
def test_loops_and_branches_beyond_the_record_capacity(capacity: int):
    x = torch.randn(40, generator=torch.Generator().manual_seed(1))

    def call() -> torch.Tensor:
        out = torch.zeros(80)
        uneven[(10,)](x, out, 5, 4, B=8)
        return out

    session = both(call, record_capacity=capacity)[1]
    loaded, scaled = [], []
    for p in range(10):
        for a in range(p % 3):
            for b in range(a, 4):
                start = (p * 7 + a * 3 + b) % 17
                loaded.append(x[start : start + 5])
                if (b + p) % 2 == 0:
                    scaled.append(x[start : start + 5] * b)
    for name, values in (("v", loaded), ("w", scaled)):
        row = row_of(session.table(), name)
        check(row, torch.cat(values), lanes=8 * len(values), executions=len(values))


def test_an_aborted_launch_leaves_nothing_for_the_next():
    out = torch.zeros(100)
    with flagprism_torch.debug(logdir=False) as session:
        with pytest.raises(flagprism_torch.errors.InvalidPointerError):
            twice[(4,)](torch.arange(100.0), out, 1 << 20, B=64)
        twice[(2,)](torch.arange(100.0), out, 100, B=64)
    check(row_of(session.table(), "a"), torch.arange(100.0), lanes=128, executions=2)


SOURCE = """
import triton
import triton.language as tl

def make():
    @triton.jit
    def kernel(x, o, B: tl.constexpr):
        i = tl.arange(0, B)
        tl.store(o + i, tl.load(x + i) + {})
    return kernel
"""


def load(path: Path, number: int) -> ModuleType:
    path.write_text(SOURCE.format(number))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_kernel_that_is_defined_again_is_freed(tmp_path: Path):
    """As a notebook cell that is run again does it: Triton drops the old one, so must we."""
    module = load(tmp_path / "attack_cell.py", 1)
    kernel = module.make()
    with flagprism_torch.debug(logdir=False) as session:
        kernel[(1,)](torch.zeros(8), torch.zeros(8), B=8)
    (cache, *_) = next(iter(kernel.device_caches.values()))
    compiled = next(iter(cache.values()))
    gone = weakref.ref(kernel), weakref.ref(compiled)
    del kernel, cache, compiled
    module.make()
    gc.collect()
    assert [ref() for ref in gone] == [None, None]
    assert len(session.table().where(role="store")) == 1


def test_kernels_of_one_name_from_two_files(tmp_path: Path):
    with flagprism_torch.debug(logdir=False) as session:
        for number in (10, 20):
            kernel = load(tmp_path / f"attack_{number}.py", number).make()
            kernel[(1,)](torch.zeros(8), torch.zeros(8), B=8)
    rows = session.table().where(role="store")
    assert sorted((Path(r.file).stem, r.max) for r in rows) == [
        ("attack_10", 10.0),
        ("attack_20", 20.0),
    ]
