"""Where accesses go, and which lanes leave their tensor, against an account in NumPy."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from hypothesis import given, settings
from hypothesis import strategies as st

import flagprism_torch
from flagprism_torch.analysis.places import index_of
from flagprism_torch.records.address_model import AddressRow
from flagprism_torch.records.model import Anomaly


@triton.jit
def strided(x_ptr, out_ptr, start, s_program, s_row, s_column, limit, ROWS: tl.constexpr,
            COLUMNS: tl.constexpr):  # fmt: skip
    pid = tl.program_id(0) + tl.num_programs(0) * tl.program_id(1)
    row = tl.arange(0, ROWS)[:, None]
    column = tl.arange(0, COLUMNS)[None, :]
    at = start + pid * s_program + row * s_row + column * s_column
    x = tl.load(x_ptr + at, mask=row * COLUMNS + column < limit, other=0.0)
    tl.store(out_ptr + pid, tl.sum(x.to(tl.float32)))


@triton.jit
def looped(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    pid = tl.program_id(0)
    total = tl.zeros([BLOCK], tl.float32)
    for i in range(n):
        at = (pid * n + i) * BLOCK + tl.arange(0, BLOCK)
        total += tl.load(x_ptr + at)
        if i > 0:
            tl.store(out_ptr + pid * BLOCK + tl.arange(0, BLOCK), total)
    tl.atomic_add(out_ptr + pid * BLOCK + tl.arange(0, BLOCK), total, mask=total > 0)


@triton.jit
def through_integers(x_address, table_ptr, y_ptr, z_ptr, out_ptr, choose, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    x = tl.load(x_address.to(tl.pointer_type(tl.float32)) + i)
    entry = tl.load(table_ptr).to(tl.pointer_type(tl.float32))
    y = tl.load(entry + i)
    either = tl.where(choose > 0, y_ptr, z_ptr)
    z = tl.load(either + i)
    tl.store(out_ptr + i, x + y + z)


@triton.jit
def optional(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + i, mask=i < n, other=0.0)
    if y_ptr is not None:
        x += tl.load(y_ptr + i, mask=i < n, other=0.0)
    tl.store(out_ptr + i, x, mask=i < n)


def _run(launch: Any, **options: Any) -> Any:
    with flagprism_torch.debug(logdir=False, **({"addr_level": 1} | options)) as session:
        launch()
    return session


def _lanes(grid: tuple[int, int], start: int, strides: tuple[int, int, int], shape: Any) -> Any:
    """Element offsets [programs, rows, columns]."""
    program, row, column = np.ogrid[: grid[0] * grid[1], : shape[0], : shape[1]]
    return start + program * strides[0] + row * strides[1] + column * strides[2]


def _check(
    row: AddressRow, found: list[Anomaly], offsets: Any, active: Any, itemsize: int, elements: int
) -> None:
    """A row, and the anomaly if there is one, against offsets in elements."""
    bytes_, numel = offsets * itemsize, offsets[0].size
    assert (row.executions, row.lanes, row.active) == (len(offsets), offsets.size, active.sum())
    if not active.any():
        assert (row.min, row.max, row.first, row.last) == (None,) * 4
        return
    assert (row.min, row.max) == (bytes_[active].min(), bytes_[active].max())
    assert row.span == row.max - row.min + itemsize
    assert row.first == (bytes_[0][active[0]][0] if active[0].any() else None)
    assert row.last == (bytes_[-1][active[-1]][-1] if active[-1].any() else None)
    bad = active & ((offsets < 0) | (offsets >= elements))
    assert row.outside == bad.sum()
    own = [one for one in found if one.statement == row.statement]
    assert len(own) == int(bad.any())
    if not own:
        return
    (one,) = own
    program, *place = (int(n) for n in np.argwhere(bad)[0])
    assert one.kind == "oob" and one.program is not None
    assert one.program[0] + one.program[1] * 2 == program or one.program == (program, 0, 0)
    assert one.lane == (tuple(place) if len(place) > 1 else place[0])
    first, details = int(offsets[(program, *place)]), one.details
    assert details["oob_lanes"] == bad.sum()
    assert details["index_range"] == (offsets[bad].min(), offsets[bad].max())
    assert details["extent"] == (0, elements)
    beyond = -first * itemsize if first < 0 else (first + 1 - elements) * itemsize
    assert details["bytes_beyond"] == beyond
    assert details["side"] == ("before" if first < 0 else "behind")
    assert details["index"] == (first,)
    assert numel == np.prod(offsets.shape[1:])


_TYPES = [torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.int8, torch.int64]


@settings(max_examples=30, deadline=None)
@given(
    start=st.integers(-20, 40),
    strides=st.tuples(st.integers(-9, 40), st.integers(-5, 20), st.integers(-2, 3)),
    limit=st.integers(0, 16),
    grid=st.sampled_from([(1, 1), (2, 1), (2, 3), (5, 1)]),
    shape=st.sampled_from([(2, 8), (4, 4), (1, 16), (8, 1)]),
    dtype=st.sampled_from(_TYPES),
    elements=st.integers(1, 120),
)
def test_offsets_of_lanes(
    start: int,
    strides: tuple[int, int, int],
    limit: int,
    grid: tuple[int, int],
    shape: tuple[int, int],
    dtype: torch.dtype,
    elements: int,
) -> None:
    buffer = torch.zeros(3000, dtype=dtype)
    x = buffer[1000 : 1000 + elements]  # everything lies inside of its storage
    out = torch.zeros(grid[0] * grid[1])
    session = _run(
        lambda: strided[grid](x, out, start, *strides, limit, ROWS=shape[0], COLUMNS=shape[1])
    )
    load, store = session.addresses()
    offsets = _lanes(grid, start, strides, shape)
    lane = np.arange(shape[0] * shape[1]).reshape(shape)
    active = np.broadcast_to(lane < limit, offsets.shape)
    _check(load, [a for a in session.anomalies if a.kind == "oob"], offsets, active,
           dtype.itemsize, elements)  # fmt: skip
    assert (store.pattern, store.outside, store.active) == ("scalar", 0, out.numel())
    assert (load.argument, load.shape, load.strides) == ("x_ptr", (elements,), (1,))
    if limit == lane.size and lane.size > 1:  # all lanes tell strides
        _check_pattern(load, strides, shape, dtype.itemsize)


def _check_pattern(row: AddressRow, strides: Any, shape: Any, itemsize: int) -> None:
    lanes = tuple(s * itemsize if n > 1 else 0 for s, n in zip(strides[1:], shape, strict=True))
    assert row.lane_strides == lanes
    wanted = "strided"
    if not any(lanes):
        wanted = "broadcast"
    elif all(
        n == 1 or s == step
        for n, s, step in zip(shape, lanes, (shape[1] * itemsize, itemsize), strict=True)
    ):
        wanted = "contiguous"
    assert row.pattern == wanted


def test_loops_branches_and_atomics():
    buffer = torch.ones(1000)
    x, out = buffer[:100], torch.zeros(4, 8)
    session = _run(lambda: looped[(4,)](x, out, 4, BLOCK=8))
    load, branch, atomic = session.addresses()
    assert (load.executions, load.lanes, load.min, load.max) == (16, 128, 0, 127 * 4)
    assert (load.outside, load.first, load.last) == (28, 0, 127 * 4)
    assert (branch.executions, branch.active, branch.outside) == (12, 96, 0)
    assert (atomic.role, atomic.op, atomic.active) == ("atomic", "tt.atomic_rmw", 32)
    (found,) = session.anomalies
    assert (found.program, found.iteration, found.lane) == ((3, 0, 0), 0, 4)
    assert found.details["index_range"] == (100, 127)


@pytest.mark.parametrize("capacity", [2, 65536])
def test_shared_slots_steps_and_launches(capacity: int):
    buffer = torch.ones(1000)
    with flagprism_torch.debug(logdir=False, addr_level=1, record_capacity=capacity) as session:
        for size in (128, 100, 96):
            looped[(4,)](buffer[:size], torch.zeros(4, 8), 4, BLOCK=8)
            session.step()
    assert [session.addresses(step)[0].outside for step in range(3)] == [0, 28, 32]
    assert session.addresses()[0].outside == 60
    assert session.addresses()[0].executions == 48
    (found,) = session.anomalies
    # a first try with a slot for each program takes a number too
    assert (found.step, found.last_step, found.launch) == (1, 2, 2 if capacity == 2 else 1)
    assert found.details["extent"] == (0, 100)


def test_what_torch_does_not_know_is_unknown():
    x, y, z = (torch.arange(8.0) + k for k in range(3))
    table, out = torch.tensor([y.data_ptr()]), torch.zeros(8)
    session = _run(lambda: through_integers[(1,)](x.data_ptr(), table, y, z[:4], out, 0, BLOCK=8))
    assert out.tolist() == (x + y + z).tolist()
    first, entry, second, either, store = session.addresses()
    for row, tensor in ((first, x), (second, y)):
        assert (row.argument, row.arguments, row.outside) == (None, (), None)
        assert (row.min, row.max) == (tensor.data_ptr(), tensor.data_ptr() + 28)
    assert (entry.argument, store.argument) == ("table_ptr", "out_ptr")
    # inside of either argument; z ends after 4 elements
    assert (either.argument, either.arguments) == (None, ("y_ptr", "z_ptr"))
    (found,) = session.anomalies
    assert found.details["oob_lanes"] == 4 and found.lane == 4
    assert found.details["argument"] == ("y_ptr", "z_ptr")


def test_healthy_arguments():
    """Views, expanded and transposed tensors, None, empty and freed ones."""
    base = torch.arange(64.0).view(8, 8)
    out = torch.zeros(16)

    def launch() -> None:
        grid = (2,)
        for x in (base[2:4], base.t()[:2], base[0, 3:4].expand(1), base.flatten()[5:21]):
            optional[grid](x, None, out, min(x.numel(), 16), BLOCK=8)
        optional[grid](torch.ones(16), torch.ones(16), out, 16, BLOCK=8)  # freed at once
        optional[grid](torch.ones(0), None, out[:0], 0, BLOCK=8)
        optional[(0,)](torch.ones(4), None, out, 4, BLOCK=8)

    session = _run(launch)
    assert [one for one in session.anomalies if one.kind == "oob"] == []


def test_strides_of_a_view_decide():
    """Elements between the rows of a view are inside, those behind its last one are not."""
    wide = torch.arange(64.0).view(8, 8)
    view, out = wide[1:3, 2:6], torch.zeros(16)
    session = _run(lambda: optional[(2,)](view, None, out, 12, BLOCK=8))
    assert [one for one in session.anomalies if one.kind == "oob"] == []
    session = _run(lambda: optional[(2,)](view, None, out, 13, BLOCK=8))
    (found,) = (one for one in session.anomalies if one.kind == "oob")
    assert found.details["shape"] == (2, 4) and found.details["strides"] == (8, 1)
    assert found.details["extent"] == (0, 12)
    assert "index" not in found.details  # the column beside the view's last one
    assert found.details["in_storage"] and found.details["bytes_beyond"] == 4


@given(
    shape=st.lists(st.integers(1, 4), min_size=1, max_size=4),
    order=st.permutations(range(4)),
    element=st.integers(-30, 300),
)
def test_index_of_an_element(shape: list[int], order: Any, element: int) -> None:
    axes = [axis for axis in order if axis < len(shape)]
    dense = torch.empty([shape[axis] for axis in axes]).permute(
        [axes.index(axis) for axis in range(len(shape))]
    )
    found = index_of(element, dense.shape, dense.stride())
    assert found is not None and len(found) == len(shape)
    assert sum(i * s for i, s in zip(found, dense.stride(), strict=True)) == element
    inside = all(0 <= i < n for i, n in zip(found, shape, strict=True))
    assert inside == (0 <= element < dense.numel())
    if inside:
        places = itertools.product(*map(range, shape))
        assert found in [
            p for p in places
            if sum(i * s for i, s in zip(p, dense.stride(), strict=True)) == element
        ]  # fmt: skip


def test_index_of_gaps_and_scalars():
    assert index_of(3, (2, 2), (4, 1)) is None
    assert index_of(5, (2, 2), (4, 1)) == (1, 1)
    assert index_of(8, (2, 2), (4, 1)) == (2, 0)
    assert (index_of(0, (), ()), index_of(1, (), ())) == ((), None)
    assert index_of(2, (1,), (1,)) == (2,)
    assert index_of(0, (3, 4), (0, 1)) == (0, 0)


def test_without_addr_level_there_are_no_rows():
    session = _run(lambda: optional[(1,)](torch.ones(8), None, torch.ones(8), 8, BLOCK=8),
                   addr_level=0)  # fmt: skip
    assert len(session.addresses()) == 0
