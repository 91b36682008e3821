"""Silent checks end to end on the CPU, against NumPy; healthy kernels stay silent."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import silent_kernels as k
import torch
import triton
import triton.language as tl
import triton_versions
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from ttir_text import CUDA

import flagprism_torch
from flagprism_torch.backends import cpu
from flagprism_torch.instrument.twin import Recipe, TwinSource
from flagprism_torch.records.model import Found

settings = hypothesis_settings(max_examples=25, deadline=None)


def kinds(launch: Any) -> list[str]:
    return [check.kind for check, _ in k.checks_of(launch)]


def place(found: Found) -> Any:
    """(program, iteration, lane) of the first lane of the first counter."""
    assert found.first_nan is not None
    return found.first_nan[1:4]


# -- undefined lanes


@pytest.mark.parametrize("n", [13, 16])
def test_undefined_lanes_of_a_reduction(n: int) -> None:
    x = torch.randn(4, n)
    (found,) = [f for c, f in k.checks_of(lambda: k.row_max[(4,)](x, torch.zeros(4), n, BLOCK=16))
                if c.kind == "undefined"]  # fmt: skip
    if n == 16:
        assert found is None
        return
    assert found is not None
    assert found.nan == 4 * (16 - n)
    assert place(found) == ((0, 0, 0), 0, n)


def test_undefined_lanes_of_one_iteration() -> None:
    n = 40
    a, b = torch.randn(16, n), torch.randn(n, 16)
    out = torch.zeros(16, 16)
    found = k.found_by(lambda: k.product_tail[(1,)](a, b, out, n, K=16, N=16), "undefined")
    assert torch.allclose(out, a @ b, atol=1e-4)
    outside = np.arange(48).reshape(3, 1, 16) >= n
    everywhere = np.broadcast_to(outside, (3, 16, 16))
    first = tuple(int(i[0]) for i in np.nonzero(everywhere))
    assert found.keys() == {"a"}
    assert found["a"].nan == everywhere.sum()
    assert place(found["a"]) == ((0, 0, 0), first[0], first[1:])


def test_lanes_that_no_one_needs_are_not_checked() -> None:
    x, y, out = torch.randn(20), torch.randn(20), torch.zeros(20)
    assert "undefined" not in kinds(lambda: k.guarded[(2,)](x, y, out, 20, BLOCK=16))


# -- wrapped offsets


def wraps(a: Any, b: Any, scale: int) -> dict[str, Any]:
    """Variable -> (true results, int64; what int32 holds)."""
    a, b = a.astype(np.int64), b.astype(np.int64)
    true = {
        "product": a * b,
        "total": a + b,
        "difference": a - b,
        "shifted": a << 5,
        "scaled": a * scale,
    }
    return {name: (value, value.astype(np.int32)) for name, value in true.items()}


@settings
@given(
    pairs=st.lists(
        st.tuples(
            st.one_of(st.integers(-(2**31), 2**31 - 1), st.integers(-(2**16), 2**16)),
            st.one_of(st.integers(-(2**31), 2**31 - 1), st.integers(-(2**16), 2**16)),
        ),
        min_size=16,
        max_size=16,
    ),
    scale=st.one_of(st.just(1000), st.integers(-(2**31), 2**31 - 1)),
)
def test_wraps(pairs: list[tuple[int, int]], scale: int) -> None:
    a, b = np.array(pairs, np.int32).T.copy()
    found = k.found_by(
        lambda: k.offsets[(2,)](torch.zeros(8), torch.from_numpy(a), torch.from_numpy(b),
                                torch.zeros(16), scale, K=8), "wrap"
    )  # fmt: skip
    for name, (true, kept) in wraps(a, b, scale).items():
        wrong, large = true != kept, np.abs(true) >= 2**30
        if not large.any():
            assert name not in found
            continue
        one = found[name]
        assert (one.nan, one.posinf) == (wrong.sum(), large.sum())
        assert one.largest == np.abs(true).max()
        if wrong.any():
            at = int(np.flatnonzero(wrong)[0])
            assert place(one) == ((at // 8, 0, 0), 0, at % 8)
        else:
            assert one.first_nan is None


def test_wraps_in_a_loop() -> None:
    """Rows far apart; the scalar and the tile operations of one kernel, with iterations."""
    rows, stride, first, m, n = 12, 2**28, 3, 4, 8
    out = torch.ones(rows, n)
    found = k.found_by(
        lambda: k.strided[(1,)](torch.ones(1), out, rows, stride, first, M=m, N=n), "wrap"
    )
    row = first + np.arange(rows, dtype=np.int64).reshape(rows // m, m)
    product = row[:, :, None] * stride
    wrong = product != product.astype(np.int32)
    assert found["far"].nan == wrong.sum() > 0
    assert found["far"].largest == product.max()
    at = np.argwhere(wrong)[0]
    assert place(found["far"]) == ((0, 0, 0), at[0], (at[1], at[2]))
    kept = product.astype(np.int32).astype(np.int64) + np.arange(n)
    assert found["at"].nan == 0  # no sum of what is there wraps
    assert found["at"].posinf == (np.abs(kept) >= 2**30).sum()
    assert torch.equal(out, torch.from_numpy((kept == 0).astype(np.float32)).reshape(rows, n))


def test_offsets_that_are_large_but_fit() -> None:
    out = torch.zeros(8, 8)
    found = k.found_by(lambda: k.strided[(1,)](torch.ones(1), out, 8, 2**28, 0, M=8, N=8), "wrap")
    assert found["far"].nan == 0
    assert found["far"].largest == 7 * 2**28
    assert found["at"].nan == 0
    assert found["at"].largest == 7 * 2**28 + 7


def test_lanes_that_are_masked_off_may_wrap() -> None:
    x, out = torch.ones(1), torch.zeros(16)
    found = k.found_by(lambda: k.masked_offsets[(1,)](x, out, 1, 2**30, BLOCK=16), "wrap")
    assert found == {}
    assert out.tolist() == [1.0] + [0.0] * 15


def test_harmless_integers_are_not_checked() -> None:
    keys = torch.arange(2**31 - 33, 2**31 - 1, dtype=torch.int64).to(torch.int32)
    x, out = torch.ones(64), torch.zeros(32)
    listed = k.checks_of(lambda: k.harmless[(1,)](x, keys, out, 3, BLOCK=32, COLUMNS=8))
    assert [check.statement for check, _ in listed if check.kind == "wrap"] == []


# -- stagnation


def rounded(values: Any, dtype: torch.dtype) -> Any:
    """float32 values rounded to a type, as float32."""
    return torch.from_numpy(values).to(dtype).to(torch.float32).numpy()


@settings
@given(data=st.data(), dtype=st.sampled_from([torch.bfloat16, torch.float16]))
def test_stagnation(data: st.DataObject, dtype: torch.dtype) -> None:
    steps, width = 24, 8
    value = st.one_of(st.sampled_from([0.0, 1.0, -1.0, 256.0, 4096.0, 0.004, float("nan"), 1e30]),
                      st.floats(-100, 100, width=32))  # fmt: skip
    x = np.array(data.draw(st.lists(value, min_size=steps * width, max_size=steps * width)),
                 np.float32).reshape(steps, width)  # fmt: skip
    out = torch.zeros(width, dtype=dtype)
    kind = tl.bfloat16 if dtype == torch.bfloat16 else tl.float16
    found = k.found_by(
        lambda: k.running_sum[(2,)](torch.from_numpy(x), out, steps, W=width // 2, DTYPE=kind),
        "stagnation",
    )
    acc = np.zeros(width, np.float32)
    lost, adds = np.zeros((2, steps, width), bool)
    with np.errstate(all="ignore"):
        for step in range(steps):
            after = rounded(acc + x[step], dtype)
            adds[step] = (x[step] != 0) & np.isfinite(x[step]) & np.isfinite(after)
            lost[step] = adds[step] & (after == acc)
            acc = after
    assert np.array_equal(out.float().numpy(), acc, equal_nan=True)
    if not adds.any():
        assert found == {}
        return
    one = found["acc"]
    assert (one.nan, one.posinf) == (lost.sum(), adds.sum())
    if lost.any():
        step, program, lane = min(
            (int(s), int(at) // 4, int(at) % 4) for s, at in np.argwhere(lost)
            if int(at) // 4 == min(int(w) // 4 for _, w in np.argwhere(lost))
        )  # fmt: skip
        assert place(one) == ((program, 0, 0), step, lane)


def test_stagnation_of_chosen_lanes() -> None:
    """Nested loops, a subtraction in bf16, a select that keeps the other lanes."""
    n, w = 300, 4
    x = torch.tensor([-1.0, -2.0, -0.5, 0.0]).repeat(2 * n, 1).to(torch.bfloat16)
    out = torch.zeros(w, dtype=torch.bfloat16)
    found = k.found_by(lambda: k.chosen_sum[(1,)](x, out, n, W=w), "stagnation")["acc"]
    acc = torch.zeros(w, dtype=torch.bfloat16)
    lost = np.zeros((2 * n, w), bool)
    adds = np.zeros((2 * n, w), bool)
    for step in range(2 * n):
        takes = torch.arange(w) % 2 == step % 2
        after = torch.where(takes, acc - x[step], acc)
        adds[step] = (takes & (x[step] != 0)).numpy()
        lost[step] = adds[step] & (after == acc).numpy()
        acc = after
    assert torch.equal(out, acc)
    assert (found.nan, found.posinf) == (lost.sum(), adds.sum())
    step, lane = (int(i) for i in np.argwhere(lost)[0])
    assert place(found) == ((0, 0, 0), step, lane)


def test_fp32_sums_are_not_checked() -> None:
    x, out = torch.full((40, 8), 1e-12), torch.zeros(8)
    x[0] = 1.0
    assert "stagnation" not in kinds(lambda: k.running_sum[(2,)](x, out, 40, W=4, DTYPE=tl.float32))


# -- saturation


@pytest.mark.parametrize(
    ("dtype", "limit"),
    [(torch.float8_e4m3fn, 464.0), (torch.float8_e5m2, 61440.0)],
    ids=["e4m3", "e5m2"],
)
def test_saturation(dtype: torch.dtype, limit: float) -> None:
    values = np.random.default_rng(0).standard_normal(100).astype(np.float32) * limit
    values[:6] = [limit, -limit, np.nan, np.inf, -np.inf, limit * 1.01]
    out = torch.zeros(100, dtype=dtype)
    found = k.found_by(
        lambda: k.to_fp8[(4,)](torch.from_numpy(values), out, 100, BLOCK=32), "saturation"
    )["narrow"]
    beyond = (np.abs(values) > limit) & np.isfinite(values) & out.float().isfinite().numpy()
    assert found.nan == beyond.sum() > 10
    assert place(found) == ((0, 0, 0), 0, 5)


def test_clamped_values_do_not_saturate() -> None:
    values = torch.randn(100) * 1000
    for limit, dtype in ((448.0, torch.float8_e4m3fn), (57344.0, torch.float8_e5m2)):
        x = values.clamp(-limit, limit)
        x = x * torch.where(x.abs() == limit, 1.0000001, 1.0)  # a scale that was rounded up
        out = torch.zeros(100, dtype=dtype)
        assert k.found_by(lambda: k.to_fp8[(4,)](x, out, 100, BLOCK=32), "saturation") == {}  # noqa: B023


# -- tf32


def test_operands_that_lose_bits() -> None:
    a = np.random.default_rng(0).standard_normal((16, 32)).astype(np.float32)
    b = np.full((32, 16), 1 + 2.0**-12, np.float32)
    b[3, 5], b[4, 4], b[9] = np.inf, np.nan, 2.0
    out = torch.zeros(16, 16)
    found = {
        check.rule: one
        for check, one in k.checks_of(
            lambda: k.product[(1,)](torch.from_numpy(a), torch.from_numpy(b), out, 32, K=16, N=16,
                                    HOW="tf32")
        )
        if check.kind == "tf32"
    }  # fmt: skip
    for name, x, columns in (("left", a, True), ("right", b, False)):
        low = x.view(np.uint32) & 0x1FFF
        lost = (low != 0) & np.isfinite(x)
        away = lost & (low >= 0x1000)
        one = found[name]
        assert one is not None
        assert (one.nan, one.posinf, one.neginf) == (lost.sum(), (lost & ~away).sum(), away.sum())
        assert one.padding == np.isfinite(x).sum()
        steps = np.stack(np.split(lost, 2, axis=1 if columns else 0))
        step, row, column = (int(i) for i in np.argwhere(steps)[0])
        assert place(one) == ((0, 0, 0), step, (row, column))


def test_what_is_exact_in_tf32_is_not_checked() -> None:
    a, b, out = torch.randn(16, 32), torch.randn(32, 16), torch.zeros(16, 16)
    for one, how in ((a, "ieee"), (a, "tf32x3"), (a.to(torch.bfloat16), "tf32")):
        listed = k.checks_of(
            lambda: k.product[(1,)](one, b.to(one.dtype), out, 32, K=16, N=16, HOW=how)  # noqa: B023
        )
        assert [check for check, _ in listed if check.kind == "tf32"] == []


# -- what is reported


def anomalies(launch: Any) -> list[tuple[str, str, dict[str, Any]]]:
    """(kind, variable, numbers) of everything that is reported."""
    with flagprism_torch.debug(logdir=False) as session:
        launch()
    return [
        (one.kind, one.variable or "", {k: v for k, v in one.details.items() if k != "consumer"})
        for one in session.anomalies
    ]


def test_anomalies() -> None:
    ones, narrow = torch.ones(400, 8), torch.zeros(8, dtype=torch.bfloat16)
    assert anomalies(lambda: k.running_sum[(2,)](ones, narrow, 400, W=4, DTYPE=tl.bfloat16)) == [
        ("stagnation", "acc", {"lost_additions": 8 * 144})
    ]
    out = torch.zeros(8, 8)
    far = anomalies(lambda: k.strided[(1,)](torch.ones(1), out, 8, 2**29, 0, M=8, N=8))
    assert [one[:2] for one in far] == [("int_overflow", "far")]
    assert far[0][2]["wrapped_lanes"] == 4
    assert far[0][2]["headroom"] == 2**31 / (7 * 2**29)
    x, small = torch.full((100,), 500.0), torch.zeros(100, dtype=torch.float8_e4m3fn)
    assert anomalies(lambda: k.to_fp8[(4,)](x, small, 100, BLOCK=32)) == [
        ("saturation", "narrow", {"saturated_lanes": 100})
    ]
    third = torch.full((16, 32), 1 / 3)
    exact = torch.ones(32, 16)
    found = anomalies(
        lambda: k.product[(1,)](third, exact, torch.zeros(16, 16), 32, K=16, N=16, HOW="tf32")
    )
    assert [one[:2] for one in found] == [("precision", "acc")]
    assert found[0][2]["operand_lanes_not_tf32"] == 16 * 32
    found = anomalies(lambda: k.row_max[(4,)](torch.ones(4, 13), torch.zeros(4), 13, BLOCK=16))
    assert [one[:2] for one in found] == [("undefined_lanes", "x")]
    assert found[0][2]["undefined_lanes"] == 12


def test_healthy_kernels_stay_silent() -> None:
    torch.manual_seed(0)
    x, y = torch.randn(100), torch.randn(100)
    launches = {
        "cumulative": lambda: k.cumulative[(1,)](x, torch.zeros(116), 100, BLOCK=16),
        "guarded": lambda: k.guarded[(2,)](x[:20], y[:20], torch.zeros(20), 20, BLOCK=16),
        "large": lambda: k.strided[(1,)](torch.ones(1), torch.zeros(8, 8), 8, 2**28, 0, M=8, N=8),
        "product": lambda: k.product[(1,)](torch.randn(32, 64), torch.randn(64, 32),
                                           torch.zeros(32, 32), 64, K=16, N=32, HOW="tf32"),
        "sum": lambda: k.running_sum[(2,)](torch.randn(64, 8), torch.zeros(8, dtype=torch.bfloat16),
                                           64, W=4, DTYPE=tl.bfloat16),
        "few": lambda: k.running_sum[(1,)](torch.tensor([[512.0], [0.5]]).repeat(1, 4),
                                           torch.zeros(4, dtype=torch.bfloat16), 2, W=4,
                                           DTYPE=tl.bfloat16),
    }  # fmt: skip
    for name, launch in launches.items():
        assert anomalies(launch) == [], name


# -- the same everywhere


def test_results_do_not_change() -> None:
    torch.manual_seed(0)
    x = torch.randn(50, 8) * 10

    def run() -> list[torch.Tensor]:
        sums = [torch.zeros(8, dtype=d) for d in (torch.bfloat16, torch.float16)]
        for out, dtype in zip(sums, (tl.bfloat16, tl.float16), strict=True):
            k.running_sum[(2,)](x, out, 50, W=4, DTYPE=dtype)
        c = torch.zeros(16, 16)
        k.product[(1,)](x[:16].repeat(1, 4), x[:32].repeat(1, 2), c, 32, K=16, N=16, HOW="tf32")
        narrow = torch.zeros(400, dtype=torch.float8_e4m3fn)
        k.to_fp8[(13,)](x * 100, narrow, 400, BLOCK=32)
        return [*sums, c, narrow.view(torch.uint8)]

    registered = cpu.register("silent")
    try:
        plain = run()
    finally:
        if registered:
            cpu.unregister("silent")
    with flagprism_torch.debug(logdir=False):
        seen = run()
    assert all(torch.equal(a, b) for a, b in zip(plain, seen, strict=True))


POINTERS = dict.fromkeys(("x_ptr", "a_ptr", "b_ptr", "c_ptr"), "*fp32") | {"n": "i32"}


@pytest.mark.parametrize(
    ("kernel", "out", "constants", "expected"),
    [
        (k.running_sum, "*bf16", {"W": 128, "DTYPE": tl.bfloat16}, {"wrap", "stagnation"}),
        (k.to_fp8, "*fp8e4nv", {"BLOCK": 256}, {"wrap", "saturation"}),
        (k.product, "*fp32", {"K": 32, "N": 64, "HOW": "tf32"}, {"wrap", "tf32"}),
        (k.row_max, "*fp32", {"BLOCK": 256}, {"wrap", "undefined"}),
    ],
    ids=["stagnation", "saturation", "tf32", "undefined"],
)
def test_gpu_code(kernel: Any, out: str, constants: dict[str, Any], expected: set[str]) -> None:
    """The twins compile to machine code; no GPU is needed for that."""
    types = POINTERS | {"out_ptr": out} | dict.fromkeys(constants, "constexpr")
    signature = {name: types[name] for name in kernel.arg_names}
    source = TwinSource(kernel, signature, constants, {}, Recipe(1, 64, False))
    compiled = triton.compile(source, target=CUDA, options={"num_warps": 4})
    assert source.table is not None
    assert {check.kind for check in source.table.checks} >= expected
    assert len(compiled.asm["cubin"]) > 0


@pytest.mark.parametrize("version", triton_versions.VERSIONS)
def test_versions(version: str, tmp_path: Any) -> None:
    """Every Triton finds the same, to the last number."""
    script = triton_versions.ROOT / "tests" / "silent_kernels.py"
    env = {"TRITON_CACHE_DIR": str(tmp_path)}
    expected = json.loads(json.dumps(k.everything()))
    assert expected.keys() == {"undefined", "wrap", "stagnation", "saturation", "tf32"}
    assert all(expected.values())
    assert triton_versions.run_child(version, script, env=env) == expected
