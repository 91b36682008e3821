"""`debug(level=1)` on user kernels: each statement's numbers against NumPy and torch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from ir_kernels import pieces
from session_rows import check, row_of
from triton.language.extra import libdevice

import flagprism_torch
from flagprism_torch.backends.cpu import register, unregister
from flagprism_torch.records.table import SummaryTable

FLOATS = {
    "fp64": torch.float64,
    "fp32": torch.float32,
    "fp16": torch.float16,
    "bf16": torch.bfloat16,
    "fp8e4nv": torch.float8_e4m3fn,
    "fp8e5": torch.float8_e5m2,
}
INTS = {f"{sign}int{bits}": getattr(torch, f"{sign}int{bits}")
        for sign in ("", "u") for bits in (8, 16, 32, 64)}  # fmt: skip


@pytest.fixture(autouse=True, scope="module")
def backend() -> Iterator[None]:
    registered = register("session kernels")  # False beside a GPU
    yield
    if registered:
        unregister("session kernels")


def recorded(launch: Callable[[], Any], **options: Any) -> SummaryTable:
    with flagprism_torch.debug(level=1, logdir=False, **options) as session:
        launch()
    assert not session.coverage.to_dict()["not_instrumented"]
    assert not session.coverage.to_dict()["stepped_down"]
    return session.table()


@triton.jit
def float_copy(x_ptr, o_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = i < n
    x = tl.load(x_ptr + i, mask=inside)
    wide = x.to(tl.float64)
    half = wide * 0.5
    tl.store(o_ptr + i, half, mask=inside)


@pytest.mark.parametrize("dtype", FLOATS)
def test_float_types(dtype: str, device: str) -> None:
    n, block = 150, 64
    x = (torch.randn(n, device=device) * 8).to(FLOATS[dtype])
    x[3], x[77] = 0.0, float("nan")
    if dtype != "fp8e4nv":
        x[100], x[101] = float("inf"), float("-inf")
    o = torch.zeros(n, dtype=FLOATS[dtype], device=device)
    table = recorded(lambda: float_copy[(3,)](x, o, n, BLOCK=block))
    load = row_of(table, "x")
    assert (load.dtype, load.role, load.op) == (dtype, "load", "tt.load")
    check(load, x, executions=3, lanes=192, mask="live")
    check(row_of(table, "half"), x.double() * 0.5, executions=3, lanes=192, mask="live")
    check(row_of(table, role="store"), o, executions=3, lanes=192, mask="live")
    assert load.first_nonfinite == ((1, 0, 0), 0, 13)
    assert row_of(table, role="store").first_nonfinite == ((1, 0, 0), 0, 13)


@triton.jit
def int_copy(x_ptr, o_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = i < n
    x = tl.load(x_ptr + i, mask=inside)
    third = x // 3
    flag = third > 7
    kept = tl.where(flag, x, third)
    tl.store(o_ptr + i, kept, mask=inside)


@pytest.mark.parametrize("dtype", INTS)
def test_int_types(dtype: str, device: str) -> None:
    n, kind = 150, INTS[dtype]
    info = torch.iinfo(kind)
    some = np.random.default_rng(0).integers(info.min, info.max, n, np.dtype(dtype), endpoint=True)
    some[:5] = [info.min, info.max, 0, 1, 30]
    x = torch.from_numpy(some).to(device)
    o = torch.zeros_like(x)
    table = recorded(lambda: int_copy[(3,)](x, o, n, BLOCK=64))
    assert row_of(table, "x").dtype == dtype
    check(row_of(table, "x"), some, executions=3, lanes=192, mask="live")
    # C's division, towards zero
    third = np.array([int(v) // 3 if v >= 0 else -(-int(v) // 3) for v in some], some.dtype)
    check(row_of(table, "third"), third, lanes=192)
    assert row_of(table, "flag").dtype == "int1"
    check(row_of(table, "flag"), third > 7, lanes=192)
    check(row_of(table, role="store"), np.where(third > 7, some, third), lanes=192)
    assert row_of(table, role="store").dtype == dtype


@triton.jit
def on_grid(x_ptr, o_ptr, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    program = tl.program_id(0) + tl.num_programs(0) * (
        tl.program_id(1) + tl.num_programs(1) * tl.program_id(2)
    )
    rows = tl.arange(0, ROWS)
    columns = tl.arange(0, COLUMNS)
    at = program * ROWS * COLUMNS + rows[:, None] * COLUMNS + columns[None, :]
    x = tl.load(x_ptr + at)
    y = x - 1.0
    tl.store(o_ptr + at, y)


@pytest.mark.parametrize("capacity", [65536, 8])
def test_grid(capacity: int, device: str) -> None:
    """Three grid dimensions, x fastest; the first place is the smallest program's."""
    grid, rows, columns = (3, 2, 4), 8, 4
    x = torch.randn(24, rows, columns, device=device)
    x[17, 0, 0], x[11, 5, 2], x[11, 5, 3] = float("nan"), float("inf"), float("nan")
    o = torch.empty_like(x)
    table = recorded(
        lambda: on_grid[grid](x, o, ROWS=rows, COLUMNS=columns), record_capacity=capacity
    )
    for row, value in ((row_of(table, "x"), x), (row_of(table, "y"), x - 1.0)):
        check(row, value, executions=24, mask="all")
        # program 11 = 2 + 3 * (1 + 2 * 1)
        assert row.first_nonfinite == ((2, 1, 1), 0, (5, 2))


@triton.jit
def scalars(x_ptr, o_ptr, scale, n):
    row = tl.program_id(0)
    x = tl.load(x_ptr + row)
    y = x * scale
    count = tl.load(n + row)
    some = tl.load(x_ptr + row, mask=row > 5, other=1.0)
    tl.store(o_ptr + row, y + count + some)


def test_scalars(device: str) -> None:
    x = torch.randn(9, device=device)
    x[6] = float("inf")
    n = torch.arange(9, device=device) - 4
    o = torch.empty_like(x)
    table = recorded(lambda: scalars[(9,)](x, o, 3.0, n))
    check(row_of(table, "x"), x, executions=9, mask="all")
    check(row_of(table, "y"), x * 3.0, executions=9)
    assert row_of(table, "y").first_nonfinite == ((6, 0, 0), 0, 0)
    check(row_of(table, "count"), n, executions=9)
    check(row_of(table, "some"), x[6:], lanes=9, executions=9, mask="live")
    check(row_of(table, role="store"), o, executions=9)


@triton.jit
def multiply(a, b):
    return a * b


@triton.jit
def shapes(x_ptr, o_ptr, n, m, stride, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    rows = tl.arange(0, ROWS)
    columns = tl.arange(0, COLUMNS)
    inside = (rows[:, None] < n) & (columns[None, :] < m)
    x = tl.load(x_ptr + rows[:, None] * stride + columns[None, :], mask=inside, other=0.5)
    weight = tl.load(x_ptr + columns, mask=columns < m, other=0.0)
    scaled = x * weight[None, :]
    row_sum = tl.sum(scaled, 1)
    top = tl.max(x, 0)
    all_of_it = tl.sum(row_sum, 0)
    running = tl.cumsum(scaled, 1)
    product = tl.associative_scan(weight, 0, multiply)
    turned = tl.trans(scaled) + 1.0
    best = tl.argmax(x, 1)
    tl.store(o_ptr + rows, row_sum + all_of_it + best, mask=rows < n)
    tl.store(o_ptr + columns, top + product, mask=columns < m)
    tl.store(o_ptr + rows[:, None] * stride + columns[None, :], running, mask=inside)
    tl.store(o_ptr + columns[:, None] * stride + rows[None, :], turned)


def test_shapes(device: str) -> None:
    """Masks through broadcast, reduce, scan, transpose; padding lanes never count."""
    n, m, rows, columns = 5, 11, 8, 16
    x = torch.randn(n, m, device=device)
    o = torch.empty(4096, device=device)
    table = recorded(lambda: shapes[(1,)](x, o, n, m, m, ROWS=rows, COLUMNS=columns))
    tile = torch.full((rows, columns), 0.5, device=device)
    tile[:n, :m] = x
    weight = torch.zeros(columns, device=device)
    weight[:m] = x[0]
    scaled = tile * weight
    inside = torch.zeros(rows, columns, dtype=torch.bool)
    inside[:n, :m] = True
    live_row, live_column = inside.any(1), inside.any(0)
    check(row_of(table, "x"), tile, inside, mask="live")
    check(row_of(table, "scaled"), scaled, inside, mask="live")
    check(row_of(table, "row_sum"), scaled.sum(1), live_row, mask="live", values_rel=1e-5)
    check(row_of(table, "top"), tile.max(0).values, live_column, mask="live")
    check(row_of(table, "all_of_it"), scaled.sum().reshape(1), values_rel=1e-5)
    check(row_of(table, "running"), scaled.cumsum(1), inside, mask="live", values_rel=1e-5)
    check(row_of(table, "product"), weight.cumprod(0), live_column, values_rel=1e-5)
    check(row_of(table, "turned"), scaled.T + 1.0, inside.T, mask="live")
    check(row_of(table, "best"), tile.argmax(1), live_row, mask="live")


@triton.jit
def chosen(x_ptr, y_ptr, o_ptr, n, m, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + i, mask=i < n, other=0.0)
    y = tl.load(y_ptr + i, mask=i < m, other=9.0)
    padded = tl.where(i < n, x, 1.0)
    other = tl.where(y > 0, x, y)
    both = x + y
    short = both.to(tl.float16)
    back = short.to(tl.float32) * 2.0
    tl.store(o_ptr + i, padded + other + back)


def test_select_and_cast(device: str) -> None:
    n, m, block = 10, 25, 32
    x, y = torch.randn(n, device=device), torch.randn(m, device=device) * 70000
    y[3] = 70000.0  # infinite as fp16
    o = torch.empty(block, device=device)
    table = recorded(lambda: chosen[(1,)](x, y, o, n, m, BLOCK=block))
    full_x, full_y = torch.zeros(block, device=device), torch.full((block,), 9.0, device=device)
    full_x[:n], full_y[:m] = x, y
    i = torch.arange(block, device=device)
    check(row_of(table, "padded"), torch.where(i < n, full_x, 1.0), i < n, mask="live")
    check(row_of(table, "other"), torch.where(full_y > 0, full_x, full_y),
          torch.where(full_y > 0, i < n, i < m), mask="live")  # fmt: skip
    total = full_x + full_y
    check(row_of(table, "both"), total, (i < n) & (i < m), mask="live")
    short = total.half()
    assert short[:n].isinf().any()
    check(row_of(table, "short"), short, (i < n) & (i < m), mask="live")
    assert row_of(table, "short").dtype == "fp16"
    check(row_of(table, "back"), short.float() * 2.0, (i < n) & (i < m))
    check(row_of(table, role="store"), o, mask="all")


@triton.jit
def matmul(a_ptr, b_ptr, o_ptr, n, m, k, SIZE: tl.constexpr):
    row = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    column = tl.program_id(1) * SIZE + tl.arange(0, SIZE)
    acc = tl.zeros([SIZE, SIZE], tl.float32)
    for start in range(0, k, SIZE):
        inner = start + tl.arange(0, SIZE)
        a = tl.load(a_ptr + row[:, None] * k + inner[None, :],
                    mask=(row[:, None] < n) & (inner[None, :] < k), other=0.0)  # fmt: skip
        b = tl.load(b_ptr + inner[:, None] * m + column[None, :],
                    mask=(inner[:, None] < k) & (column[None, :] < m), other=0.0)  # fmt: skip
        acc = tl.dot(a, b, acc)
    c = acc.to(tl.float16)
    tl.store(o_ptr + row[:, None] * m + column[None, :], c,
             mask=(row[:, None] < n) & (column[None, :] < m))  # fmt: skip


def test_matmul(device: str) -> None:
    n, m, k, size = 20, 40, 50, 16
    a, b = (torch.randn(s, device=device).half() for s in ((n, k), (k, m)))
    o = torch.empty(n, m, dtype=torch.float16, device=device)
    table = recorded(lambda: matmul[(2, 3)](a, b, o, n, m, k, SIZE=size))
    check(row_of(table, "a"), a.repeat(3, 1), executions=24, lanes=24 * 256, mask="live")
    check(row_of(table, "b"), b.repeat(2, 1), executions=24, lanes=24 * 256, mask="live")
    assert row_of(table, "acc").executions == 24
    check(row_of(table, role="store"), o, executions=6, lanes=6 * 256, mask="live")
    torch.testing.assert_close(o.float(), a.float() @ b.float(), rtol=2e-3, atol=2e-3)


@triton.jit
def one_product(a_ptr, b_ptr, o_ptr, n, m, k, SIZE: tl.constexpr):
    i = tl.arange(0, SIZE)
    row, column = i[:, None], i[None, :]
    a = tl.load(a_ptr + row * k + column, mask=(row < n) & (column < k), other=0.0)
    b = tl.load(b_ptr + row * m + column, mask=(row < k) & (column < m), other=0.0)
    c = tl.dot(a, b, input_precision="ieee")
    shown = c * 2.0
    tl.store(o_ptr + row * SIZE + column, shown)


def test_dot_lanes(device: str) -> None:
    """A product's lanes are valid where its row and its column are."""
    n, m, k, size = 5, 9, 13, 16
    a, b = torch.randn(n, k, device=device), torch.randn(k, m, device=device)
    o = torch.empty(size, size, device=device)
    table = recorded(lambda: one_product[(1,)](a, b, o, n, m, k, SIZE=size))
    check(row_of(table, "c"), o[:n, :m] / 2, lanes=256, mask="live")
    check(row_of(table, "shown"), o[:n, :m], lanes=256, mask="live")
    torch.testing.assert_close(o[:n, :m] / 2, a @ b, rtol=1e-4, atol=1e-4)


@triton.jit
def atomics(x_ptr, sum_ptr, top_ptr, cas_ptr, swap_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = i < n
    x = tl.load(x_ptr + i, mask=inside)
    before = tl.atomic_add(sum_ptr + i, x, mask=inside)
    highest = tl.atomic_max(top_ptr + i, x, mask=inside)
    seen = tl.atomic_cas(cas_ptr + i, tl.zeros([BLOCK], tl.int32), tl.full([BLOCK], 5, tl.int32))
    swapped = tl.atomic_xchg(swap_ptr + i, x, mask=inside)
    tl.atomic_add(sum_ptr + i, before * 0.5 + highest + seen + swapped, mask=inside)


def test_atomics(device: str) -> None:
    """A row of an atomic holds what it returned: what memory held before."""
    n, block = 50, 32
    x, total, top, swap = (torch.randn(64, device=device) for _ in range(4))
    cas = torch.randint(0, 2, (64,), dtype=torch.int32, device=device)
    held = [t.clone() for t in (total, top, cas, swap)]
    table = recorded(lambda: atomics[(2,)](x, total, top, cas, swap, n, BLOCK=block))
    for variable, values in zip(("before", "highest", "swapped"), (0, 1, 3), strict=True):
        row = row_of(table, variable)
        # a maximum of floats is made of integer atomics and a select
        assert row.role == ("value" if variable == "highest" else "atomic")
        check(row, held[values][:n], lanes=64, executions=2, mask="live")
    check(row_of(table, "seen"), held[2][:n], lanes=64, executions=2, mask="live")
    assert torch.equal(cas, torch.where(held[2] == 0, 5, held[2]).int())


@triton.jit
def descriptors(x_ptr, o_ptr, n, m, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    source = tl.make_tensor_descriptor(x_ptr, [n, m], [m, 1], [ROWS, COLUMNS])
    target = tl.make_tensor_descriptor(o_ptr, [n, m], [m, 1], [ROWS, COLUMNS])
    x = source.load([0, tl.program_id(0) * COLUMNS])
    y = x * 2.0
    target.store([0, tl.program_id(0) * COLUMNS], y)


def test_descriptors(device: str) -> None:
    if device != "cpu":
        pytest.skip("needs an allocator there; covered by tests/gpu")
    n, m, rows, columns = 8, 32, 8, 16
    x = torch.randn(n, m)
    x[2, 20] = float("nan")
    o = torch.empty_like(x)
    table = recorded(lambda: descriptors[(2,)](x, o, n, m, ROWS=rows, COLUMNS=columns))
    torch.testing.assert_close(o, x * 2.0, rtol=0, atol=0, equal_nan=True)
    check(row_of(table, "x"), x, executions=2)
    check(row_of(table, "y"), x * 2.0, executions=2)
    check(row_of(table, role="store"), x * 2.0, executions=2)
    assert row_of(table, "y").first_nonfinite == ((1, 0, 0), 0, (2, 4))


@triton.jit
def inner(x, scale):
    half = x * 0.5
    return half * scale


@triton.jit
def outer(x):
    return inner(x, 3.0) + 1.0


@triton.jit
def nested(x_ptr, o_ptr, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + i, mask=i < n)
    y = outer(x) * 2.0
    z = libdevice.tanh(y)
    tl.store(o_ptr + i, z, mask=i < n)


def test_called_functions_count_as_their_statement(device: str) -> None:
    x = torch.randn(40, device=device)
    o = torch.empty_like(x)
    table = recorded(lambda: nested[(1,)](x, o, 40, BLOCK=64))
    y = ((x * 0.5) * 3.0 + 1.0) * 2.0
    check(row_of(table, "y"), y, lanes=64, mask="live")
    assert not table.where(variable="half")
    check(row_of(table, "z"), torch.tanh(y), lanes=64, values_rel=1e-6)
    assert {row.line for row in table} == {row.line for row in table.where(kernel="nested")}


@triton.jit
def sorting(x_ptr, o_ptr, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + i)
    ordered = tl.sort(x)
    y = tl.load(x_ptr + BLOCK + i)
    best = tl.topk(y, 4)
    tl.store(o_ptr + i, ordered)
    tl.store(o_ptr + BLOCK + tl.arange(0, 4), best)


def test_sort_and_topk(device: str) -> None:
    x = torch.randn(64, device=device)
    o = torch.empty(36, device=device)
    table = recorded(lambda: sorting[(1,)](x, o, BLOCK=32))
    check(row_of(table, "ordered"), x[:32])
    check(row_of(table, "best"), x[32:].topk(4).values)
    assert len(table) == 6  # one row per statement


def test_pieces(device: str) -> None:
    """Splitting, joining, flipping, gathering and counting tiles."""
    x = torch.rand(32, device=device) * 3.0
    o = torch.empty(32, device=device)
    table = recorded(lambda: pieces[(1,)](x, o, BLOCK=32))
    check(row_of(table, "x"), x)
    check(row_of(table, "turned"), x.flip(0) + 1.0)
    check(row_of(table, "picked"), x)
    check(row_of(table, "counts"), torch.bincount((x * 4.0).int(), minlength=16))


@triton.jit
def scaled_fp64(x_ptr, o_ptr, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(o_ptr + i, tl.load(x_ptr + i))


@pytest.mark.parametrize("magnitude", [1e150, 1e-140, 1e200, 1e-200])
def test_no_l2_is_better_than_a_wrong_one(magnitude: float, device: str) -> None:
    x = torch.full((8,), magnitude, dtype=torch.float64, device=device)
    table = recorded(lambda: scaled_fp64[(1,)](x, torch.empty_like(x), BLOCK=8))
    row = row_of(table, role="store")
    assert (row.min, row.max, row.mean) == (magnitude, magnitude, magnitude)
    fits = 1e-145 < magnitude < 1e154
    assert row.l2 == (pytest.approx(magnitude * 8**0.5, rel=1e-5) if fits else None)


@triton.jit
def two_stores(x_ptr, o_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + i, mask=i < n)
    tl.store(o_ptr + i, x * x, mask=i < n)
    for k in range(3):
        tl.store(o_ptr + n + i, x * k, mask=i < n)


def test_histograms(device: str, tmp_path: Any) -> None:
    from oracle import histogram_of

    x = torch.randn(100, device=device) * 3
    x[4], x[5] = float("nan"), 0.0
    o = torch.empty(256, device=device)
    with flagprism_torch.debug(level=1, logdir=tmp_path) as session:
        two_stores[(2,)](x, o, 100, BLOCK=64)
    first, second = session.table().where(role="store")
    data = x.double().cpu().numpy()
    assert first.histogram == tuple(histogram_of((x * x).cpu().numpy()))
    assert second.histogram == tuple(sum(histogram_of(data * k) for k in range(3)))
    assert row_of(session.table(), "x").histogram is None
