"""What the CPU backend does with addresses: storages, foreign memory, errors instead of crashes."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator

import pytest
import torch
import triton
import triton.language as tl

from flagprism_torch.backends.cpu import register, unregister
from flagprism_torch.errors import InvalidPointerError

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the backend is off beside a GPU")

TRITON = tuple(int(part) for part in triton.__version__.split(".")[:2])


@pytest.fixture(autouse=True, scope="module")
def backend() -> Iterator[None]:
    assert register("tests")
    yield
    unregister("tests")


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


@triton.jit
def add(x, y, o, n, B: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B)
    m = i < n
    tl.store(o + i, tl.load(x + i, m) + tl.load(y + i, m), m)


@triton.jit
def beyond(x, o, shift, B: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B)
    v = tl.load(x + i + shift)
    tl.store(o + i, v)


def test_load_outside_every_argument() -> None:
    x, o = torch.randn(64), torch.zeros(64)
    line = beyond.fn.__code__.co_firstlineno + 3
    with pytest.raises(InvalidPointerError) as caught:
        beyond[(4,)](x, o, 1 << 20, B=16)
    text = str(caught.value)
    assert f"test_cpu_memory.py:{line}: v = tl.load(x + i + shift)" in text
    assert f"{(1 << 22) - 256 + 4} bytes beyond the end of the storage of argument x" in text
    assert "kernel beyond reads 4 bytes" in text
    assert "program (0, 0, 0), lane 0" in text
    with pytest.raises(InvalidPointerError, match=r"bytes before the start .* argument x"):
        beyond[(4,)](x, o, -(1 << 20), B=16)


def test_the_first_bad_lane_is_named() -> None:
    storage = torch.randn(100)
    with pytest.raises(InvalidPointerError, match=r"4 bytes beyond .*program \(6, 0, 0\), lane 4"):
        beyond[(8,)](storage, torch.zeros(128), 0, B=16)


def test_inside_the_storage_runs() -> None:
    whole = torch.arange(100.0)
    o = torch.zeros(16)
    beyond[(1,)](whole[:16], o, 50, B=16)  # beyond the tensor, inside its storage
    assert torch.equal(o, whole[50:66])
    beyond[(1,)](whole[50:66], o, -50, B=16)
    assert torch.equal(o, whole[:16])


def test_masked_lanes_are_not_tested() -> None:
    x = torch.randn(3)
    o = torch.zeros(3)
    add[(1,)](x, x, o, 3, B=1024)
    assert torch.equal(o, x + x)


@triton.jit
def through_loop(x, o, N, B: tl.constexpr):
    p = x + tl.arange(0, B)
    total = tl.zeros((B,), tl.float32)
    for _ in range(N):
        total += tl.load(p)
        p += B
    tl.store(o + tl.arange(0, B), total)


@triton.jit
def scatter(o, B: tl.constexpr):
    q = (o + tl.arange(0, B)).to(tl.pointer_type(tl.int64), bitcast=True)
    tl.store(q, tl.zeros((B,), tl.int64))


@triton.jit
def bump(c, far):
    tl.atomic_add(c + far, 1)


def test_pointers_are_traced_to_arguments() -> None:
    x, o = torch.randn(32), torch.zeros(8)
    through_loop[(1,)](x, o, 4, B=8)
    torch.testing.assert_close(o, x.view(4, 8).sum(0))
    with pytest.raises(
        InvalidPointerError, match=r"storage of argument x .*total \+= tl\.load\(p\)"
    ):
        through_loop[(1,)](x, o, 100000, B=8)
    with pytest.raises(InvalidPointerError, match=r"updates 4 bytes.*storage of argument c"):
        bump[(1,)](torch.zeros(1, dtype=torch.int32), 1 << 28)


def test_misaligned_access() -> None:
    o = torch.zeros(64, dtype=torch.int32)
    with pytest.raises(InvalidPointerError, match="not a multiple of 8 bytes"):
        scatter[(1,)](o, B=8)


@triton.jit
def through_table(table, o, n, B: tl.constexpr):
    pid = tl.program_id(0)
    p = tl.load(table + pid).to(tl.pointer_type(tl.float32))
    i = tl.arange(0, B)
    tl.store(o + pid * B + i, tl.load(p + i, i < n, other=0.0), i < n)


def test_pointer_table() -> None:
    parts = [torch.randn(8) for _ in range(3)]
    table = torch.tensor([p.data_ptr() for p in parts])
    o = torch.zeros(3, 8)
    through_table[(3,)](table, o, 8, B=8)
    assert torch.equal(o, torch.stack(parts))
    table[1] = 16  # the first page is never mapped
    with pytest.raises(InvalidPointerError, match="address 0x10 is not mapped memory"):
        through_table[(3,)](table, o, 8, B=8)


def test_null_pointer() -> None:
    """None becomes a constexpr in Triton; a null address comes from an integer or a table."""
    with pytest.raises(InvalidPointerError, match="is not mapped memory"):
        through_table[(1,)](torch.zeros(1, dtype=torch.int64), torch.zeros(8), 8, B=8)


class Address:
    """A pointer argument without storage: what `data_ptr()` integers look like to Triton."""

    def __init__(self, address: int) -> None:
        self.address, self.dtype = address, torch.float32

    def data_ptr(self) -> int:
        return self.address


def test_address_without_storage_is_checked_against_mapped_memory() -> None:
    memory = (ctypes.c_float * 16)(*range(16))
    o = torch.zeros(16)
    beyond[(1,)](Address(ctypes.addressof(memory)), o, 0, B=16)
    assert o.tolist() == list(map(float, range(16)))
    with pytest.raises(InvalidPointerError, match="argument x, passed as an address"):
        beyond[(1,)](Address(64), o, 0, B=16)
