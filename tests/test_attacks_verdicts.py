"""Kernels that once got a wrong verdict, or none."""

from __future__ import annotations

import pytest
import torch
import triton
import triton.language as tl

import flagprism_torch
from flagprism_torch.session import Session


def recorded(run) -> Session:
    with flagprism_torch.debug(level=1, logdir=False) as session:
        run()
    assert session.coverage.to_dict()["kernels"] == 1
    assert "1 instrumented, 0 stepped down" in str(session.coverage)
    return session


@triton.jit
def persistent(x_ptr, o_ptr, n, B: tl.constexpr):
    """No loop carries a value of its own."""
    for k in range(tl.program_id(0), n, 2):
        s = tl.load(x_ptr + k * B + tl.arange(0, B))
        for j in range(0, 2):
            q = tl.log(s + j)
            tl.store(o_ptr + (2 * k + j) * B + tl.arange(0, B), q)
        for _ in range(0, 1):
            tl.store(o_ptr + 2 * k * B + tl.arange(0, B), s * 2.0)


def test_loops_that_carry_nothing(device: str) -> None:
    x = torch.rand(5, 16, device=device) + 1
    x[3, 7] = -2.0
    o = torch.zeros(10, 16, device=device)
    session = recorded(lambda: persistent[(2,)](x, o, 5, B=16))
    (found,) = session.anomalies
    assert (found.verdict, found.kind, found.statement) == ("born", "nan", "q = tl.log(s + j)")
    assert (found.program, found.lane, found.counts["nan"]) == ((1, 0, 0), 7, 2)
    assert found.cause == "log of a negative value"
    wanted = torch.stack([x * 2.0, (x + 1).log()], 1).view(10, 16)
    torch.testing.assert_close(o, wanted, equal_nan=True)


@triton.jit
def loads_inside(x_ptr, o_ptr, n, B: tl.constexpr):
    i = tl.arange(0, B)
    wide = tl.load(x_ptr + i).to(tl.float32)
    total = tl.zeros([B], tl.float32)
    for k in range(n):
        total += tl.load(x_ptr + k * B + i) * 2.0
    tl.store(o_ptr + i, wide + total)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_a_load_inside_of_a_statement(dtype: torch.dtype, device: str) -> None:
    x = torch.ones(3, 16, dtype=dtype, device=device)
    x[2, 5] = float("nan")
    o = torch.zeros(16, device=device)
    session = recorded(lambda: loads_inside[(1,)](x, o, 3, B=16))
    (found,) = session.anomalies
    assert (found.verdict, found.op, found.details["argument"]) == ("loaded", "tt.load", "x_ptr")
    assert (found.lane, found.iteration, found.counts["nan"]) == (5, 2, 1)


@triton.jit
def hashed(x_ptr, o_ptr, B: tl.constexpr):
    i = tl.arange(0, B)
    h = (i * 1103515245 + 12345) % 61
    at = tl.where(h < 0, h + 61, h)
    tl.store(o_ptr + i, tl.load(x_ptr + at))


def test_a_hash_wraps_on_purpose(device: str) -> None:
    x, o = torch.ones(61, device=device), torch.zeros(64, device=device)
    assert recorded(lambda: hashed[(1,)](x, o, B=64)).anomalies == ()


@triton.jit
def checked_gather(x_ptr, at_ptr, o_ptr, n, B: tl.constexpr):
    i = tl.arange(0, B)
    inside = i < n
    at = tl.load(at_ptr + i, mask=inside)
    tl.device_assert(((at >= 0) & (at < 9)) | ~inside, "index out of bounds")
    tl.store(o_ptr + i, tl.load(x_ptr + at, mask=inside), mask=inside)


def test_an_assertion_with_a_mask_uses_no_undefined_lane(device: str) -> None:
    x, o = torch.ones(9, device=device), torch.zeros(21, device=device)
    at = torch.arange(21, device=device, dtype=torch.int32) % 9
    session = recorded(lambda: checked_gather[(1,)](x, at, o, 21, B=32, debug=True))
    assert session.anomalies == ()
