"""The Triton backend `cpu` on hand-written kernels; every result against NumPy or torch."""

from __future__ import annotations

import ctypes
import gc
import math
import sys
from collections.abc import Iterator

import numpy as np
import pytest
import torch
import triton
import triton.language as tl

from flagprism_torch.backends.cpu import register, unregister
from flagprism_torch.errors import InvalidPointerError, UnsupportedOpError

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


# ------------------------------------------------------------------------- common kernels
@triton.jit
def add(x, y, o, n, B: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B)
    m = i < n
    tl.store(o + i, tl.load(x + i, m) + tl.load(y + i, m), m)


@pytest.mark.parametrize("n,block", [(1, 16), (1000, 256), (70000, 1024)])
@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float64, torch.float16, torch.int32, torch.int8]
)
def test_add(n: int, block: int, dtype: torch.dtype) -> None:
    x, y = ((torch.randn(n) * 50).to(dtype) for _ in range(2))
    o = torch.empty_like(x)
    add[(triton.cdiv(n, block),)](x, y, o, n, B=block)
    assert torch.equal(o, x + y)


@triton.jit
def softmax(x, o, s, n, B: tl.constexpr):
    r = tl.program_id(0)
    c = tl.arange(0, B)
    m = c < n
    v = tl.load(x + r * s + c, m, other=-float("inf"))
    v = v - tl.max(v, 0)
    e = tl.exp(v)
    tl.store(o + r * s + c, e / tl.sum(e, 0), m)


def test_softmax() -> None:
    x = torch.randn(50, 128)
    o = torch.zeros_like(x)
    softmax[(50,)](x, o, 128, 100, B=128)
    torch.testing.assert_close(o[:, :100], torch.softmax(x[:, :100], 1))
    assert not o[:, 100:].any()


@triton.autotune(
    configs=[
        triton.Config({"BM": 32, "BN": 32, "BK": 32}, num_warps=4),
        triton.Config({"BM": 64, "BN": 64, "BK": 32}, num_warps=4),
    ],
    key=["M", "N", "K"],
)
@triton.heuristics({"EVEN": lambda a: a["K"] % a["BK"] == 0})
@triton.jit
def matmul(
    a, b, c, M, N, K, sa, sb, sc,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, EVEN: tl.constexpr,
):  # fmt: skip
    rm = tl.program_id(0) * BM + tl.arange(0, BM)
    rn = tl.program_id(1) * BN + tl.arange(0, BN)
    rk = tl.arange(0, BK)
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(0, K, BK):
        km = (k + rk) < K
        xm = rm[:, None] < M
        ym = rn[None, :] < N
        if not EVEN:
            xm = xm & km[None, :]
            ym = ym & km[:, None]
        x = tl.load(a + rm[:, None] * sa + (k + rk)[None, :], xm, other=0.0)
        y = tl.load(b + (k + rk)[:, None] * sb + rn[None, :], ym, other=0.0)
        acc = tl.dot(x, y, acc)
    tl.store(c + rm[:, None] * sc + rn[None, :], acc, (rm[:, None] < M) & (rn[None, :] < N))


@pytest.mark.parametrize(
    "m,k,n,dtype",
    [(128, 128, 128, torch.float32), (100, 70, 90, torch.float16), (64, 64, 64, torch.bfloat16)],
)
def test_autotuned_matmul(m: int, k: int, n: int, dtype: torch.dtype) -> None:
    a, b, c = torch.randn(m, k).to(dtype), torch.randn(k, n).to(dtype), torch.empty(m, n)
    grid = lambda meta: (triton.cdiv(m, meta["BM"]), triton.cdiv(n, meta["BN"]))  # noqa: E731
    matmul[grid](a, b, c, m, n, k, k, n, n)
    torch.testing.assert_close(c, a.float() @ b.float(), atol=1e-4, rtol=1e-4)
    assert matmul.best_config.num_warps == 4


@triton.jit
def attention(q, k, v, o, L, sc, D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr):
    pm = tl.program_id(0)
    base = tl.program_id(1) * L * D
    rm = pm * BM + tl.arange(0, BM)
    d = tl.arange(0, D)
    Q = tl.load(q + base + rm[:, None] * D + d[None, :])
    m = tl.full((BM,), -float("inf"), tl.float32)
    s = tl.zeros((BM,), tl.float32)
    acc = tl.zeros((BM, D), tl.float32)
    for first in range(0, (pm + 1) * BM, BN):  # the trip count differs by program
        rn = first + tl.arange(0, BN)
        K = tl.load(k + base + rn[:, None] * D + d[None, :])
        V = tl.load(v + base + rn[:, None] * D + d[None, :])
        qk = tl.dot(Q, tl.trans(K)) * sc
        qk = tl.where(rm[:, None] >= rn[None, :], qk, -float("inf"))
        new = tl.maximum(m, tl.max(qk, 1))
        p = tl.exp(qk - new[:, None])
        alpha = tl.exp(m - new)
        s = s * alpha + tl.sum(p, 1)
        acc = tl.dot(p, V, acc * alpha[:, None])
        m = new
    tl.store(o + base + rm[:, None] * D + d[None, :], acc / s[:, None])


def test_causal_flash_attention() -> None:
    q, k, v = (torch.randn(4, 128, 32) for _ in range(3))
    o = torch.empty_like(q)
    attention[(4, 4)](q, k, v, o, 128, 0.2, D=32, BM=32, BN=32)
    want = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, scale=0.2)
    torch.testing.assert_close(o, want, atol=1e-5, rtol=1e-5)


# --------------------------------------------------------------------------- control flow
@triton.jit
def divergent(x, o, B: tl.constexpr):
    pid = tl.program_id(0)
    i = pid * B + tl.arange(0, B)
    if pid % 2 == 0:
        v = tl.load(x + i) * 2
    else:
        v = tl.load(x + i) + 1
        if pid % 3 == 0:
            v = v * 10
    tl.store(o + i, v)


def test_programs_take_different_branches() -> None:
    x = torch.randn(16, 64)
    o = torch.empty_like(x)
    divergent[(16,)](x, o, B=64)
    want = [r * 2 if p % 2 == 0 else (r + 1) * 10 if p % 3 == 0 else r + 1 for p, r in enumerate(x)]
    assert torch.equal(o, torch.stack(want))


@triton.jit
def early(x, o, n, B: tl.constexpr):
    pid = tl.program_id(0)
    if pid * B >= n:
        return
    i = pid * B + tl.arange(0, B)
    tl.store(o + i, tl.load(x + i))


def test_early_return() -> None:
    x = torch.randn(1024)
    o = torch.zeros(2048)
    early[(20,)](x, o, 1024, B=64)
    assert torch.equal(o[:1024], x)
    assert not o[1024:].any()


@triton.jit
def _collatz_or_minus(x):
    if x <= 0:
        return -1
    return x * 3 + 1


@triton.jit(noinline=True)
def _not_inlined(x, y):
    if x > 5:
        return x * y
    return x - y


@triton.jit
def calls(o, B: tl.constexpr):
    pid = tl.program_id(0)
    tl.store(o + 2 * pid, _collatz_or_minus(pid))
    tl.store(o + 2 * pid + 1, _not_inlined(pid, 10))


def test_calls_with_early_return() -> None:
    o = torch.zeros(10, 2, dtype=torch.int32)
    calls[(10,)](o, B=1)
    want = [[-1 if p <= 0 else 3 * p + 1, p * 10 if p > 5 else p - 10] for p in range(10)]
    assert o.tolist() == want


@triton.jit
def while_without_waiting(o, n):
    pid = tl.program_id(0)
    x = pid
    steps = 0
    while x < n:
        x = x * 2 + 1
        steps += 1
    tl.store(o + pid, steps)


def test_while_with_different_trip_counts() -> None:
    o = torch.zeros(300, dtype=torch.int32)
    while_without_waiting[(300,)](o, 100)

    def steps(x: int) -> int:
        count = 0
        while x < 100:
            x, count = 2 * x + 1, count + 1
        return count

    assert o.tolist() == [steps(p) for p in range(300)]


@triton.jit
def nested_loops(x, o, N: tl.constexpr, B: tl.constexpr):
    pid = tl.program_id(0)
    total = tl.zeros((B,), tl.float32)
    for i in range(pid):  # differs by program
        p = x + i * B
        for j in range(0, N, 2):  # the same in all
            total += tl.load(p + tl.arange(0, B)) * j
    tl.store(o + pid * B + tl.arange(0, B), total)


def test_nested_loops_with_carried_tiles() -> None:
    x = torch.randint(-5, 5, (9, 8)).float()
    o = torch.empty(9, 8)
    nested_loops[(9,)](x, o, N=5, B=8)
    want = torch.stack([x[:p].sum(0) * 6 for p in range(9)])
    assert torch.equal(o, want)


@triton.jit
def lock(lk, count, o):
    pid = tl.program_id(0)
    while tl.atomic_cas(lk, 0, 1) == 1:
        pass
    x = tl.load(count)
    tl.store(count, x + 1)
    tl.store(o + pid, x)
    tl.debug_barrier()
    tl.atomic_xchg(lk, 0)


def test_spin_lock() -> None:
    lk, count = torch.zeros(1, dtype=torch.int32), torch.zeros(1, dtype=torch.int32)
    o = torch.zeros(32, dtype=torch.int32)
    lock[(32,)](lk, count, o)
    assert count.item() == 32
    assert sorted(o.tolist()) == list(range(32))


@triton.jit
def chain(flags, o):
    pid = tl.program_id(0)
    last = tl.num_programs(0) - 1
    if pid < last:  # waits for the program behind it
        while tl.atomic_add(flags + pid + 1, 0) == 0:
            pass
    tl.store(o + pid, last - pid)
    tl.atomic_xchg(flags + pid, 1)


def test_programs_wait_for_later_ones() -> None:
    flags, o = torch.zeros(20, dtype=torch.int32), torch.zeros(20, dtype=torch.int32)
    chain[(20,)](flags, o)
    assert o.tolist() == list(range(19, -1, -1))


@triton.jit
def wait_and_fail(flag, p):
    if tl.program_id(0) == 1:
        tl.store(p + 1000000, 1)
    else:
        while tl.atomic_add(flag, 0) == 0:
            pass


def test_an_error_ends_the_wait_of_the_others() -> None:
    flag = torch.zeros(1, dtype=torch.int32)
    with pytest.raises(InvalidPointerError, match="argument p"):
        wait_and_fail[(2,)](flag, torch.zeros(4, dtype=torch.int32))


@triton.jit
def grid_ids(o, X: tl.constexpr, Y: tl.constexpr):
    x, y, z = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    at = o + ((z * Y + y) * X + x)
    tl.store(at, x + 10 * y + 100 * z + 1000 * tl.num_programs(1))


def test_three_dimensional_grid() -> None:
    o = torch.zeros(4, 3, 2, dtype=torch.int32)
    grid_ids[(2, 3, 4)](o, X=2, Y=3)
    z, y, x = np.indices((4, 3, 2))
    assert np.array_equal(o.numpy(), x + 10 * y + 100 * z + 3000)
    grid_ids[(0, 3, 4)](o, X=2, Y=3)  # an empty launch runs nothing


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


# ------------------------------------------------------------------------ memory safety
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
    assert f"test_cpu_backend.py:{line}: v = tl.load(x + i + shift)" in text
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


# ---------------------------------------------------------------------- errors and extras
@triton.jit
def with_assembly(x, o, B: tl.constexpr):
    i = tl.arange(0, B)
    v = tl.load(x + i)
    w = tl.inline_asm_elementwise("mov.b32 $0, $1;", "=r,r", [v], tl.int32, True, 1)
    tl.store(o + i, w)


def test_unsupported_op_names_op_and_statement() -> None:
    x = torch.zeros(16, dtype=torch.int32)
    with pytest.raises(UnsupportedOpError) as caught:
        with_assembly[(1,)](x, x, B=16)
    assert caught.value.op.startswith("tt.elementwise_inline_asm (inline assembly 'mov.b32")
    assert "w = tl.inline_asm_elementwise(" in caught.value.statement
    assert f":{with_assembly.fn.__code__.co_firstlineno + 4}:" in caught.value.statement


@triton.jit
def asserting(x, B: tl.constexpr):
    v = tl.load(x + tl.arange(0, B))
    tl.device_assert(v < 10, "too large")
    tl.device_print("value", v)


def test_device_assert_and_print(capfd: pytest.CaptureFixture[str]) -> None:
    asserting[(1,)](torch.arange(4), B=4, debug=True)
    sys.stdout.flush()
    assert "value" in capfd.readouterr().out
    with pytest.raises(RuntimeError, match=r"asserting: too large; program \(0, 0, 0\)"):
        asserting[(1,)](torch.arange(16), B=16, debug=True)


@triton.jit
def tuple_kernel(pair, o, extra: tl.constexpr):
    tl.store(o, pair[0] + pair[1] + extra)


def test_tuple_and_scalar_arguments() -> None:
    o = torch.zeros(1)
    tuple_kernel[(1,)]((3, 2.5), o, extra=4)
    assert o.item() == 9.5


@triton.jit
def through_descriptors(source, o, n, B: tl.constexpr):
    tile = source.load([tl.program_id(0) * B, 0])
    target = tl.make_tensor_descriptor(o, [n, B], [B, 1], [B, B])
    target.store([tl.program_id(0) * B, 0], tile + 1)


def test_tensor_descriptors() -> None:
    from triton.tools.tensor_descriptor import TensorDescriptor

    x, o = torch.randn(30, 16), torch.zeros(32, 16)
    through_descriptors[(2,)](TensorDescriptor.from_tensor(x, [16, 16]), o, 20, B=16)
    assert torch.equal(o[:20], x[:20] + 1)
    assert not o[20:].any()


def test_options_keep_the_users_values() -> None:
    x = torch.zeros(4)
    compiled = add.warmup(x, x, x, 4, B=16, grid=(1,), num_warps=8, num_stages=2)
    assert compiled.metadata.num_warps == 8
    assert compiled.metadata.num_stages == 2


def test_hidden_last_argument() -> None:
    """A twin: one more pointer at the end of function and signature, passed last."""
    from triton.compiler import ASTSource

    x, o, extra = torch.randn(8), torch.zeros(8), torch.zeros(8)
    source = ASTSource(
        tuple_free_copy,
        {"x": "*fp32", "n": "i32", "B": "constexpr", "o": "*fp32", "hidden": "*fp32"},
        {(2,): 8},
    )
    target = triton.runtime.driver.active.get_current_target()
    twin = triton.compile(source, target=target, options={"num_warps": 2})
    twin[(1, 1, 1)](x, 8, 8, o, extra)
    assert torch.equal(o, x)
    assert torch.equal(extra, x * 2)
    with pytest.raises(TypeError, match="5 launch arguments"):
        twin[(1, 1, 1)](x, 8, 8, o)


@triton.jit
def tuple_free_copy(x, n, B: tl.constexpr, o, hidden):
    i = tl.arange(0, B)
    v = tl.load(x + i, i < n)
    tl.store(o + i, v, i < n)
    tl.store(hidden + i, v * 2, i < n)


if TRITON >= (3, 9):

    @triton.jit
    def poll(flag, o):
        seen = tl.atomic_poll(flag, 7, timeout_ns=1000)
        tl.atomic_store(flag, tl.atomic_load(flag) + 1)
        tl.store(o, seen.to(tl.int32))

    def test_atomic_poll_load_store() -> None:
        flag, o = torch.tensor([7], dtype=torch.int32), torch.zeros(1, dtype=torch.int32)
        poll[(1,)](flag, o)
        assert (flag.item(), o.item()) == (8, 1)
        poll[(1,)](flag, o)
        assert (flag.item(), o.item()) == (9, 0)


def test_a_kernel_may_outlive_the_registration() -> None:
    """Its finaliser must not ask for a driver that is gone (Triton 3.8: CompiledKernel.__del__)."""
    x = torch.ones(4)
    compiled = add.warmup(x, x, x, 4, B=32, grid=(1,))
    compiled[(1, 1, 1)](x, x, x, 4, 32)
    assert x.tolist() == [2.0] * 4
    failed: list[object] = []
    hook, sys.unraisablehook = sys.unraisablehook, failed.append
    unregister("tests")
    try:
        add.device_caches.clear()
        del compiled
        gc.collect()
    finally:
        sys.unraisablehook = hook
        assert register("tests")
    assert not failed


def test_driver_is_usable_and_leaves_nothing_behind() -> None:
    import triton.backends
    from triton.runtime import driver

    assert driver.active.get_current_target().backend == "cpu"
    assert register("tests")  # again, by the same holder
    assert register("someone else")
    unregister("someone else")
    unregister("nobody")
    assert "cpu" in triton.backends.backends
    assert math.prod(driver.active.get_benchmarker()(lambda: None, quantiles=(0.5, 0.2))) >= 0
    unregister("tests")
    assert "cpu" not in triton.backends.backends
    x = torch.zeros(4)
    with pytest.raises(RuntimeError, match=r"0 (active drivers|compatible backends)"):
        softmax.warmup(x, x, 4, 4, B=2048, grid=(1,))
    assert register("tests")
    assert driver.active.get_current_target().backend == "cpu"
