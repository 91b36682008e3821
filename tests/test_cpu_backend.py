"""The Triton backend `cpu` on hand-written kernels; every result against NumPy or torch."""

from __future__ import annotations

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
