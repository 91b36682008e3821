"""`debug(level=1)` on kernels with loops and branches: executions, iterations, numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from session_rows import check, row_of

import flagprism_torch
from flagprism_torch.backends.cpu import register, unregister
from flagprism_torch.records.table import SummaryTable

CAPACITIES = pytest.mark.parametrize("capacity", [65536, 2])  # 2: programs share slots


@pytest.fixture(autouse=True, scope="module")
def backend() -> Iterator[None]:
    registered = register("session loops")  # False beside a GPU
    yield
    if registered:
        unregister("session loops")


def recorded(launch: Callable[[], Any], capacity: int) -> SummaryTable:
    with flagprism_torch.debug(level=1, logdir=False, record_capacity=capacity) as session:
        launch()
    assert not session.coverage.to_dict()["not_instrumented"]
    assert not session.coverage.to_dict()["stepped_down"]
    return session.table()


@triton.jit
def row_sums(x_ptr, o_ptr, n, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    acc = tl.zeros([BLOCK], tl.float32)
    for start in range(0, n, BLOCK):
        i = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + row * n + i, mask=i < n, other=0.0)
        doubled = x * 2.0
        acc += doubled
    total = tl.sum(acc, 0)
    tl.store(o_ptr + row, total)


@CAPACITIES
@pytest.mark.parametrize("n", [50, 0])
def test_one_loop(n: int, capacity: int, device: str) -> None:
    rows, block = 5, 16
    x = torch.randn(rows, n, device=device)
    o = torch.empty(rows, device=device)
    if n:
        x[3, 20], x[2, 49], x[4, 0] = float("nan"), float("inf"), 0.0
    table = recorded(lambda: row_sums[(rows,)](x, o, n, BLOCK=block), capacity)
    steps = -(-n // block)
    runs, lanes = rows * steps, rows * steps * block
    check(row_of(table, "x"), x, executions=runs, lanes=lanes, mask="live")
    check(row_of(table, "doubled"), x * 2.0, executions=runs, lanes=lanes, mask="live")
    partial = torch.zeros(rows, steps * block, device=device)
    partial[:, :n] = x * 2.0
    partial = partial.view(rows, steps, block)
    for step in range(1, steps):  # in the kernel's order
        partial[:, step] += partial[:, step - 1]
    check(row_of(table, "acc"), partial, executions=runs)
    last = partial[:, -1] if n else torch.zeros(rows, block, device=device)
    check(row_of(table, "total"), last.sum(1), executions=rows, mask="all", values_rel=1e-5)
    expected = ((2, 0, 0), 3, 1) if n else None
    assert row_of(table, "x").first_nonfinite == expected
    assert row_of(table, "acc").first_nonfinite == expected
    assert row_of(table, "total").first_nonfinite == (((2, 0, 0), 0, 0) if n else None)


@triton.jit
def two_loops(x_ptr, o_ptr, n, m, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    i = tl.arange(0, BLOCK)
    carried = tl.zeros([BLOCK], tl.float64)
    for outer in range(n):
        scale = tl.load(x_ptr + outer)
        for inner in range(m):
            x = tl.load(x_ptr + (row * n + outer) * m * BLOCK + inner * BLOCK + i)
            y = x * scale
            carried += y.to(tl.float64)
        carried = carried * 0.5
    for again in range(n):
        z = tl.load(x_ptr + again * BLOCK + i)
        carried += z
    tl.store(o_ptr + row * BLOCK + i, carried)


@CAPACITIES
def test_nested_loops(capacity: int, device: str) -> None:
    rows, n, m, block = 3, 4, 3, 8
    x = torch.randn(rows, n, m, block, device=device)
    x[1, 2, 1, 5], x[1, 3, 0, 0] = float("nan"), float("inf")
    o = torch.empty(rows, block, dtype=torch.float64, device=device)
    table = recorded(lambda: two_loops[(rows,)](x, o, n, m, BLOCK=block), capacity)
    flat = x.reshape(-1)
    scale = flat[:n]
    check(row_of(table, "scale"), scale.repeat(rows), executions=rows * n)
    check(row_of(table, "x"), x, executions=rows * n * m)
    y = x * scale[None, :, None, None]
    check(row_of(table, "y"), y, executions=rows * n * m)
    # an iteration is a count of executions in the program: 2 * 3 + 1
    assert row_of(table, "x").first_nonfinite == ((1, 0, 0), 7, 5)
    assert row_of(table, "y").first_nonfinite == ((1, 0, 0), 7, 5)
    check(row_of(table, "z"), flat[: n * block].repeat(rows), executions=rows * n)
    halves, adds = [], []
    carried = torch.zeros(rows, block, dtype=torch.float64, device=device)
    for outer in range(n):
        for inner in range(m):
            carried = carried + y[:, outer, inner].double()
            adds.append(carried)
        carried = carried * 0.5
        halves.append(carried)
    for again in range(n):
        carried = carried + flat[again * block : (again + 1) * block].double()
    first, half, second = table.where(variable="carried")
    check(first, torch.stack(adds), executions=rows * n * m)
    check(half, torch.stack(halves), executions=rows * n)
    assert second.executions == rows * n
    check(row_of(table, role="store"), o, executions=rows)
    torch.testing.assert_close(o, carried, equal_nan=True)


@triton.jit
def mixed(x_ptr, o_ptr, n, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    i = tl.arange(0, BLOCK)
    total = tl.zeros([BLOCK], tl.float32)
    if row % 2 == 1:
        for k in range(n):
            x = tl.load(x_ptr + (row * n + k) * BLOCK + i)
            total += x
    for k in range(n):
        y = tl.load(x_ptr + (row * n + k) * BLOCK + i)
        level = tl.sum(y, 0)
        if k % 2 == 0:
            big = y * 2.0
            total += big
            for again in range(2):
                deep = big + again
                total += deep
        count = k
        while count > 1:
            count -= 1
            small = y * 0.25
            total += small
        total += level
    tl.store(o_ptr + row * BLOCK + i, total)


@CAPACITIES
def test_loops_and_branches(capacity: int, device: str) -> None:
    rows, n, block = 4, 5, 8
    x = torch.randn(rows, n, block, device=device)
    x[1, 3, 2] = float("nan")  # in an odd iteration
    x[2, 4, 6], x[2, 4, 1] = float("inf"), 0.0
    o = torch.empty(rows, block, device=device)
    table = recorded(lambda: mixed[(rows,)](x, o, n, BLOCK=block), capacity)
    check(row_of(table, "x"), x[1::2], executions=2 * n)
    assert row_of(table, "x").first_nonfinite == ((1, 0, 0), 3, 2)
    check(row_of(table, "y"), x, executions=rows * n)
    assert row_of(table, "y").first_nonfinite == ((1, 0, 0), 3, 2)
    check(row_of(table, "level"), x.sum(2), executions=rows * n, values_rel=1e-5)
    check(row_of(table, "big"), x[:, ::2] * 2.0, executions=rows * 3)
    # the third time that the statement ran; unknown where programs share slots
    assert row_of(table, "big").first_nonfinite == ((2, 0, 0), 2 if capacity > 2 else None, 6)
    deep = torch.stack([x[:, ::2] * 2.0 + k for k in range(2)])
    check(row_of(table, "deep"), deep, executions=rows * 6)
    # count runs k-1 times for k >= 2: once for 2, twice for 3, three times for 4
    small = torch.cat([x[:, k].repeat(k - 1, 1) for k in range(2, n)]) * 0.25
    check(row_of(table, "small"), small, executions=rows * 6)
    assert row_of(table, "small").first_nonfinite == ((1, 0, 0), 1 if capacity > 2 else None, 2)
    check(row_of(table, role="store"), o, executions=rows)


@triton.jit
def early(x_ptr, o_ptr, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    i = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * BLOCK + i)
    if row % 3 != 0:
        return
    y = x + 1.0
    for k in range(2):
        z = tl.load(x_ptr + k * BLOCK + i)
        y = y * z
    tl.store(o_ptr + row * BLOCK + i, y)


@CAPACITIES
def test_early_return(capacity: int, device: str) -> None:
    """Programs that return early leave empty records, whatever the scratch held before."""
    rows, block = 7, 16
    x = torch.randn(rows, block, device=device)
    o = torch.zeros(rows, block, device=device)
    dirty = torch.full((rows, block), float("nan"), device=device)
    with flagprism_torch.debug(level=1, logdir=False, record_capacity=capacity) as session:
        early[(rows,)](dirty, torch.zeros_like(o), BLOCK=block)
        session.step()
        early[(rows,)](x, o, BLOCK=block)
    table = session.table(step=1)
    check(row_of(table, "x"), x, executions=rows)
    check(row_of(table, "z"), x[:2].repeat(3, 1), executions=6)
    first = table.where(op="arith.addf")[0]
    check(first, x[::3] + 1.0, executions=3)
    check(row_of(table, role="store"), o[::3], executions=3)


@triton.jit
def integers(x_ptr, o_ptr, n, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    i = tl.arange(0, BLOCK)
    for k in range(n):
        x = tl.load(x_ptr + (row * n + k) * BLOCK + i, mask=i < 5 + row, other=77)
        tl.store(o_ptr + (row * n + k) * BLOCK + i, x ^ 1, mask=i < 5)
        if k == 1:
            y = x + 3
            tl.store(o_ptr + i, y, mask=i < 4)


@CAPACITIES
@pytest.mark.parametrize("dtype", [torch.int64, torch.uint8, torch.uint32])
def test_integers_in_loops(dtype: torch.dtype, capacity: int, device: str) -> None:
    rows, n, block = 3, 3, 8
    info = torch.iinfo(dtype)
    name = str(dtype).removeprefix("torch.")
    some = np.random.default_rng(0).integers(info.min, info.max, (rows, n, block), name, True)
    some[0, 0, :3] = [info.min, info.max, 1]
    x = torch.from_numpy(some).to(device)
    o = torch.empty_like(x)
    table = recorded(lambda: integers[(rows,)](x, o, n, BLOCK=block), capacity)
    live = np.broadcast_to(np.arange(block) < 5, some.shape)  # more is loaded, but not stored
    check(row_of(table, "x"), some, live, executions=rows * n, mask="live")
    first, second = table.where(role="store")
    assert first.dtype == second.dtype == name
    check(first, (some ^ 1)[:, :, :5], lanes=some.size, executions=rows * n)
    added = some[:, 1] + np.array(3, name)
    check(second, added[:, :4], lanes=rows * block, executions=rows)
    check(row_of(table, "y"), added[:, :4], lanes=rows * block, executions=rows, mask="live")
