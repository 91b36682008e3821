"""A guard: lanes outside of their tensor load 0 and store nothing, all others are as without."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import triton
import triton.language as tl

import flagprism_torch
from flagprism_torch.errors import InvalidPointerError

FAR = 1 << 24


@triton.jit
def copy(x_ptr, index_ptr, out_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    at = tl.load(index_ptr + i, mask=i < n, other=0)
    x = tl.load(x_ptr + at, mask=i < n, other=7)
    tl.store(out_ptr + at, x, mask=i < n)
    tl.store(out_ptr + at + 1, x)  # without a mask


@triton.jit
def scalars(x_ptr, out_ptr, at, BLOCK: tl.constexpr):
    x = tl.load(x_ptr + at)
    tl.store(out_ptr + at, x + 1)
    tl.atomic_add(out_ptr + at, x + 1)


@triton.jit
def count(index_ptr, out_ptr, BLOCK: tl.constexpr):
    at = tl.load(index_ptr + tl.arange(0, BLOCK))
    tl.atomic_add(out_ptr + at, at * 0 + 1)
    tl.atomic_max(out_ptr + at, at * 0 + 5, mask=at != 2)


@triton.jit
def either(x_ptr, y_ptr, out_ptr, choose, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    p = tl.where(choose > 0, x_ptr, y_ptr)
    tl.store(out_ptr + i, tl.load(p + i))


@triton.jit
def pointers(table_ptr, out_ptr, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    p = tl.load(table_ptr + i)  # of pointers
    tl.store(out_ptr + i, tl.load(p.to(tl.pointer_type(tl.float32))), mask=i < 2)


@triton.jit
def attention(q_ptr, k_ptr, out_ptr, n, M: tl.constexpr, N: tl.constexpr, D: tl.constexpr):
    row, d = tl.program_id(0) * M + tl.arange(0, M), tl.arange(0, D)
    q = tl.load(q_ptr + row[:, None] * D + d[None, :])
    total = tl.zeros([M, D], tl.float32)
    for start in range(0, n, N):
        column = start + tl.arange(0, N)
        k = tl.load(k_ptr + column[:, None] * D + d[None, :], mask=column[:, None] < n, other=0.0)
        total += tl.dot(tl.dot(q, tl.trans(k), input_precision="ieee"), k, input_precision="ieee")
    tl.store(out_ptr + row[:, None] * D + d[None, :], total)


def _guarded(launch: Any) -> Any:
    with flagprism_torch.debug(logdir=False, guard=True) as session:
        launch()
    return session


def _lanes(session: Any) -> dict[str, int]:
    return {one.statement: one.details["oob_lanes"] for one in session.anomalies}


@pytest.mark.parametrize(
    "dtype",
    [torch.float32, torch.float16, torch.bfloat16, torch.int8, torch.int64, torch.bool],
)
def test_masked_and_not(dtype: torch.dtype):
    index = torch.tensor([0, 3, FAR, 5, -2, -FAR, 8, 9, 1, 1, 1, 1, 1, 1, 1, 1])
    x = torch.arange(1, 11).to(dtype)
    buffer = torch.full((12,), 0).to(dtype)
    out = buffer[1:11]
    session = _guarded(lambda: copy[(2,)](x, index, out, 9, BLOCK=8))
    wanted = torch.zeros(10).to(dtype)
    at, n = index.tolist(), 9
    loaded = []
    for lane, place in enumerate(at):
        inside = 0 <= place < 10
        value = x[place] if inside else torch.zeros((), dtype=torch.float32).to(dtype)
        loaded.append(value if lane < n else torch.tensor(7).to(dtype))
        if lane < n and inside:
            wanted[place] = loaded[-1]
    for lane in range(16):
        place = (at[lane] if lane < n else 0) + 1
        if 0 <= place < 10:
            wanted[place] = loaded[lane]
    assert out.view(torch.uint8).tolist() == wanted.view(torch.uint8).tolist()
    assert not buffer[0].float() and not buffer[11].float()
    assert _lanes(session) == {
        "x = tl.load(x_ptr + at, mask=i < n, other=7)": 3,
        "tl.store(out_ptr + at, x, mask=i < n)": 3,
        "tl.store(out_ptr + at + 1, x)  # without a mask": 4,
    }


def test_a_crash_without_a_guard_is_none_with_one():
    x, out = torch.ones(4), torch.zeros(4)
    with (
        pytest.warns(RuntimeWarning, match="guard=True"),
        pytest.raises(InvalidPointerError),
        flagprism_torch.debug(logdir=False),
    ):
        scalars[(1,)](x, out, FAR, BLOCK=1)
    session = _guarded(
        lambda: [scalars[(1,)](x, out, place, BLOCK=1) for place in (FAR, 2, -1, 4, 3)]
    )
    assert out.tolist() == [0, 0, 4, 4]
    assert set(_lanes(session).values()) == {3} and len(session.anomalies) == 3


def test_atomics():
    index = torch.tensor([0, 1, 2, 3, 3, 100, -1, 4], dtype=torch.int32)
    buffer = torch.zeros(8, dtype=torch.int32)
    session = _guarded(lambda: count[(1,)](index, buffer[2:6], BLOCK=8))
    assert buffer.tolist() == [0, 0, 5, 5, 1, 5, 0, 0]
    assert list(_lanes(session).values()) == [3, 3]


def test_one_of_two_arguments():
    x, y, out = torch.arange(8.0), torch.arange(4.0) + 10, torch.full((8,), -1.0)
    session = _guarded(lambda: either[(1,)](x, y, out, 0, BLOCK=8))
    assert out.tolist() == [10, 11, 12, 13, 0, 0, 0, 0]
    assert list(_lanes(session).values()) == [4]


def test_pointers_from_memory_are_left_alone():
    x, out = torch.arange(4.0), torch.zeros(4)
    table = torch.tensor([x.data_ptr() + 4 * k for k in (3, 1)])
    session = _guarded(lambda: pointers[(1,)](table, out, BLOCK=2))
    assert out.tolist() == [3, 1, 0, 0]
    assert session.anomalies == ()


def test_healthy_kernels_are_bit_equal():
    q, k = torch.randn(32, 16), torch.randn(40, 16)
    plain, out = torch.empty(32, 16), torch.empty(32, 16)

    def launch(out: torch.Tensor) -> None:
        attention[(2,)](q, k, out, 40, M=16, N=16, D=16)

    with flagprism_torch.debug(logdir=False):
        launch(plain)
    session = _guarded(lambda: launch(out))
    assert torch.equal(plain, out) and session.anomalies == ()


def test_a_compiled_model():
    entered = flagprism_torch.enable_cpu()
    try:
        torch._dynamo.reset()
        torch.manual_seed(0)
        model = torch.nn.Sequential(
            torch.nn.Conv1d(4, 8, 3, padding=1),
            torch.nn.BatchNorm1d(8),
            torch.nn.GELU(),
            torch.nn.Flatten(),
            torch.nn.LayerNorm(8 * 13),
            torch.nn.Linear(8 * 13, 5),
            torch.nn.Softmax(1),
        )
        compiled = torch.compile(model)
        x = torch.randn(3, 4, 13)

        def step() -> list[torch.Tensor]:
            model.zero_grad()
            y = compiled(x)
            (torch.cat([y, y.roll(1, 0)[:, 1:]], 1) ** 2).sum().backward()
            return [p.grad.clone() for p in model.parameters()]

        plain = step()
        with flagprism_torch.debug(logdir=False, guard=True, model=model) as session:
            found = step()
        assert all(torch.equal(a, b) for a, b in zip(plain, found, strict=True))
        assert session.anomalies == ()
        rows = session.addresses()
        assert len(rows) > 10 and all(row.outside == 0 for row in rows)
    finally:
        if entered:
            flagprism_torch.disable_cpu()
