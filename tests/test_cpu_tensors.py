"""Atomics, rearrangements, reductions and scans on the CPU backend, against NumPy and torch."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch
import triton
import triton.language as tl

from flagprism_torch.backends.cpu import register, unregister

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


# -------------------------------------------------------------------------------- atomics
@triton.jit
def histogram_by_atomics(x, o, count, n, B: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B)
    m = i < n
    tl.atomic_add(o + tl.load(x + i, m, other=0), 1, m)
    tl.atomic_add(count, 1)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64, torch.float32, torch.float64])
def test_atomic_add(dtype: torch.dtype) -> None:
    x = torch.randint(0, 10, (5000,), dtype=torch.int32)
    o, count = torch.zeros(10, dtype=dtype), torch.zeros(1, dtype=torch.int32)
    histogram_by_atomics[(5,)](x, o, count, 5000, B=1024)
    assert torch.equal(o.long(), torch.bincount(x, minlength=10))
    assert count.item() == 5


@triton.jit
def tickets(counter, o, B: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B)
    old = tl.atomic_add(counter + tl.zeros((B,), tl.int32), 1)
    tl.store(o + i, old)


def test_atomic_results_are_the_values_before() -> None:
    counter, o = torch.zeros(1, dtype=torch.int32), torch.zeros(64, dtype=torch.int32)
    tickets[(4,)](counter, o, B=16)
    assert sorted(o.tolist()) == list(range(64))


@triton.jit
def extremes(x, hi, lo, n, B: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B)
    v = tl.load(x + i, i < n)
    tl.atomic_max(hi + i % 4, v, i < n)
    tl.atomic_min(lo + i % 4, v, i < n)


@pytest.mark.parametrize(
    "dtype", [torch.int32, torch.int64, torch.uint32, torch.uint64, torch.float32, torch.float64]
)
def test_atomic_extremes(dtype: torch.dtype) -> None:
    x = (torch.randn(100) * 100).to(torch.int64)
    values = x.abs().numpy() if "uint" in str(dtype) else x.numpy()
    numpy_dtype = str(dtype).removeprefix("torch.")
    data = torch.from_numpy(values.astype(numpy_dtype))
    hi = torch.from_numpy(np.full(4, values.min()).astype(numpy_dtype))
    lo = torch.from_numpy(np.full(4, values.max()).astype(numpy_dtype))
    extremes[(7,)](data, hi, lo, 100, B=16)
    rows = values.reshape(25, 4)
    assert np.array_equal(hi.numpy(), rows.max(0).astype(numpy_dtype))
    assert np.array_equal(lo.numpy(), rows.min(0).astype(numpy_dtype))


@triton.jit
def bits_atomics(a, o, x, B: tl.constexpr):
    i = tl.arange(0, B)
    v = tl.load(x + i)
    tl.atomic_and(a + 0 * i, v)
    tl.atomic_or(o + 0 * i, v)
    tl.atomic_xor(o + 1 + 0 * i, v)


def test_atomic_bits() -> None:
    x = torch.tensor([0b1110, 0b1011, 0b1111, 0b1010], dtype=torch.int32)
    a, o = torch.tensor([0xFF], dtype=torch.int32), torch.zeros(2, dtype=torch.int32)
    bits_atomics[(1,)](a, o, x, B=4)
    assert a.item() == 0b1010
    assert o.tolist() == [0b1111, 0b1110 ^ 0b1011 ^ 0b1111 ^ 0b1010]


@triton.jit
def half_add(o, x, B: tl.constexpr):
    i = tl.arange(0, B)
    tl.atomic_add(o + i % 2, tl.load(x + i))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_atomic_add_of_half_types(dtype: torch.dtype) -> None:
    x, o = torch.arange(16).to(dtype), torch.zeros(2, dtype=dtype)
    half_add[(1,)](o, x, B=16)
    assert o.tolist() == [56.0, 64.0]


@triton.jit
def compare_and_swap(p, old, B: tl.constexpr):
    i = tl.arange(0, B)
    tl.store(
        old + i, tl.atomic_cas(p + i, i.to(p.dtype.element_ty), i.to(p.dtype.element_ty) + 100)
    )


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64, torch.int16])
def test_compare_and_swap(dtype: torch.dtype) -> None:
    p = torch.tensor([0, 7, 2, 7], dtype=dtype)
    old = torch.empty_like(p)
    compare_and_swap[(1,)](p, old, B=4)
    assert old.tolist() == [0, 7, 2, 7]
    assert p.tolist() == [100, 7, 102, 7]


# -------------------------------------------------------------------- shapes and reductions
@triton.jit
def rearrange(x, o, B: tl.constexpr):
    i = tl.arange(0, B)
    v = tl.load(x + i)
    a, b = tl.split(tl.join(v, v + 100))
    t = tl.trans(tl.reshape(v, (4, B // 4)))
    c = tl.cat(v, v, can_reorder=True)
    g = tl.gather(v, (i * 3) % B, 0)
    f = tl.flip(v, 0)
    tl.store(o + i, a)
    tl.store(o + B + i, b)
    tl.store(o + 2 * B + i, tl.reshape(t, (B,)))
    tl.store(o + 3 * B + tl.arange(0, 2 * B), c)
    tl.store(o + 5 * B + i, g)
    tl.store(o + 6 * B + i, f)


def test_rearrangements() -> None:
    x, o = torch.randn(16), torch.zeros(7, 16)
    rearrange[(1,)](x, o, B=16)
    want = [x, x + 100, x.view(4, 4).T.reshape(-1), x, x, x[torch.arange(16) * 3 % 16], x.flip(0)]
    assert torch.equal(o, torch.stack(want))


@triton.jit
def count_bins(x, o, n, B: tl.constexpr, K: tl.constexpr):
    pid = tl.program_id(0)
    i = tl.arange(0, B)
    h = tl.histogram(tl.load(x + pid * B + i), K, mask=i < n)
    tl.store(o + pid * K + tl.arange(0, K), h)


def test_histogram() -> None:
    x = torch.randint(0, 8, (3, 64), dtype=torch.int32)
    o = torch.zeros(3, 8, dtype=torch.int32)
    count_bins[(3,)](x, o, 50, B=64, K=8)
    want = torch.stack([torch.bincount(row[:50], minlength=8) for row in x])
    assert torch.equal(o.long(), want)


@triton.jit
def _if_scalar(a, b):
    if a > b:
        return a * 2.0, b
    return b, a


@triton.jit
def _pairs(a0, a1, b0, b1):
    return a0 - a1, b0 + b1


@triton.jit
def elementwise_calls(x, o, B: tl.constexpr):
    i = tl.arange(0, B)
    v = tl.load(x + tl.program_id(0) * B + i)
    a, b = tl.map_elementwise(_if_scalar, v, v * v)
    p = tl.map_elementwise(_pairs, v, v * v, pack=2)
    o += tl.program_id(0) * 3 * B
    tl.store(o + i, a)
    tl.store(o + B + i, b)
    tl.store(o + 2 * B + i, p[0] if isinstance(p, tl.tuple) else p)


def test_map_elementwise() -> None:
    x, o = torch.randn(3, 8), torch.zeros(3, 3, 8)
    elementwise_calls[(3,)](x, o, B=8)
    y = x * x
    assert torch.equal(o[:, 0], torch.where(x > y, x * 2, y))
    assert torch.equal(o[:, 1], torch.where(x > y, y, x))
    pairs = torch.stack([x[:, 0::2] - x[:, 1::2], y[:, 0::2] + y[:, 1::2]], -1)
    assert torch.equal(o[:, 2], pairs.reshape(3, 8))


@triton.jit
def _six(n0, s0, q0, lo0, hi0, k0, n1, s1, q1, lo1, hi1, k1):
    better = hi1 > hi0
    return (
        n0 + n1, s0 + s1, q0 + q1, tl.minimum(lo0, lo1),
        tl.where(better, hi1, hi0), tl.where(better, k1, k0),
    )  # fmt: skip


@triton.jit
def _five(n0, s0, lo0, hi0, any0, n1, s1, lo1, hi1, any1):
    return n0 + n1, s0 + s1, tl.minimum(lo0, lo1), tl.maximum(hi0, hi1), any0 | any1


@triton.jit
def summarise(x, o, n, B: tl.constexpr):
    pid = tl.program_id(0)
    i = tl.arange(0, B)
    m = i < n
    v = tl.load(x + pid * B + i, m, other=0.0)
    one = m.to(tl.int32)
    r = tl.reduce((one, v, v * v, v, v, i), 0, _six)
    q = tl.reduce((one, v, v, v, one), 0, _five)
    o += pid * 11
    for k in tl.static_range(6):
        tl.store(o + k, r[k].to(tl.float32))
    for k in tl.static_range(5):
        tl.store(o + 6 + k, q[k].to(tl.float32))


def test_reduce_with_several_operands() -> None:
    x, o = torch.randint(-9, 9, (40, 64)).float(), torch.zeros(40, 11)
    summarise[(40,)](x, o, 50, B=64)
    v = torch.where(torch.arange(64) < 50, x, 0.0)
    n, s, top = torch.full((40,), 50.0), v.sum(1), v.amax(1)
    assert torch.equal(o[:, 0], n)
    assert torch.equal(o[:, 1], s)
    assert torch.equal(o[:, 2], (v * v).sum(1))
    assert torch.equal(o[:, 3], v.amin(1))
    assert torch.equal(o[:, 4], top)
    assert torch.equal(v.gather(1, o[:, 5:6].long())[:, 0], top)
    assert torch.equal(o[:, 6:], torch.stack([n, s, v.amin(1), top, torch.ones(40)], 1))


@triton.jit
def _branching(a, b):
    if a > b:  # noqa: SIM108  (an scf.if in the region is what is tested)
        r = a
    else:
        r = b
    return r


@triton.jit
def axis_reductions(x, o, M: tl.constexpr, N: tl.constexpr):
    i = tl.arange(0, M)[:, None]
    j = tl.arange(0, N)[None, :]
    v = tl.load(x + i * N + j)
    tl.store(o + tl.arange(0, N), tl.sum(v, 0))
    tl.store(o + N + tl.arange(0, M), tl.argmax(v, 1).to(tl.float32))
    tl.store(o + N + M + tl.arange(0, N), tl.reduce(v, 0, _branching))
    tl.store(o + 2 * N + M, tl.sum(v))
    tl.store(o + 2 * N + M + 1, tl.xor_sum(v.to(tl.int32)).to(tl.float32))


def test_axis_reductions() -> None:
    x, o = torch.randint(-20, 20, (8, 16)).float(), torch.zeros(16 + 8 + 16 + 2)
    axis_reductions[(1,)](x, o, M=8, N=16)
    bits = np.bitwise_xor.reduce(x.numpy().astype(np.int32).ravel())
    want = [x.sum(0), x.argmax(1).float(), x.amax(0), x.sum()[None], torch.tensor([float(bits)])]
    assert torch.equal(o, torch.cat(want))


@triton.jit
def _affine(a0, b0, a1, b1):
    return a0 * a1, b0 * a1 + b1


@triton.jit
def scans(x, o, B: tl.constexpr):
    i = tl.arange(0, B)
    v = tl.load(x + i)
    tl.store(o + i, tl.cumsum(v, 0))
    tl.store(o + B + i, tl.cumsum(v, 0, reverse=True))
    tl.store(o + 2 * B + i, tl.cumprod(v, 0))
    _, h = tl.associative_scan((v * 0.5, v), 0, _affine)
    tl.store(o + 3 * B + i, h)
    tl.store(o + 4 * B + i, tl.sort(v))


def test_scans_and_sort() -> None:
    x, o = torch.randn(32), torch.zeros(5, 32)
    scans[(1,)](x, o, B=32)
    h, state = [], 0.0
    for value in x.double().tolist():
        state = state * value * 0.5 + value
        h.append(state)
    want = torch.stack(
        [x.cumsum(0), x.flip(0).cumsum(0).flip(0), x.cumprod(0), torch.tensor(h), x.sort().values]
    )
    torch.testing.assert_close(o, want, atol=1e-5, rtol=1e-5, check_dtype=False)


@triton.jit
def mean_backwards(x, o, M, N, B: tl.constexpr):
    """Three loops in a row, like a layer norm; MLIR reuses value names between them."""
    p = x + tl.program_id(0) * N
    total = tl.zeros((B,), tl.float32)
    for k in range(0, N, B):
        i = k + tl.arange(0, B)
        total += tl.load(p + i, i < N, other=0.0)
    mean = tl.sum(total) / N
    square = tl.zeros((B,), tl.float32)
    for k in range(0, N, B):
        i = k + tl.arange(0, B)
        d = tl.where(i < N, tl.load(p + i, i < N, other=0.0) - mean, 0.0)
        square += d * d
    scale = tl.rsqrt(tl.sum(square) / N + 1e-5)
    for k in range(0, N, B):
        i = k + tl.arange(0, B)
        v = (tl.load(p + i, i < N, other=0.0) - mean) * scale
        tl.store(o + tl.program_id(0) * N + i, v, i < N)


def test_layer_norm_loops() -> None:
    x = torch.randn(20, 100)
    o = torch.empty_like(x)
    mean_backwards[(20,)](x, o, 20, 100, B=32)
    torch.testing.assert_close(o, torch.layer_norm(x, (100,)), atol=1e-5, rtol=1e-5)
