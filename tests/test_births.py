"""Birth probes against a lane-by-lane account of the rules in plain Python."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

import numpy as np
import pytest
import torch
import triton
import triton.language as tl

from flagprism_torch.backends.cpu import register, unregister
from flagprism_torch.instrument import births
from flagprism_torch.records.layout import lane_bits, unpack_place

INF, NAN = math.inf, math.nan
SPECIAL = [0.0, -0.0, 1.0, -2.5, 3e38, 1e-40, INF, -INF, NAN]


@pytest.fixture(autouse=True, scope="module")
def backend() -> Iterator[None]:
    registered = register("births")  # False beside a GPU: the same kernels run there
    yield
    if registered:
        unregister("births")


@triton.jit
def two_operands(a_ptr, b_ptr, r_ptr, needed_ptr, valid_ptr, checks, N: tl.constexpr,
                 BITS: tl.constexpr, A: tl.constexpr, B: tl.constexpr, ZERO: tl.constexpr,
                 NEEDED: tl.constexpr, VALID: tl.constexpr):  # fmt: skip
    program = tl.program_id(0).to(tl.int64)
    i = program * N + tl.arange(0, N)
    needed = tl.load(needed_ptr + i) != 0
    valid = tl.load(valid_ptr + i) != 0
    flags = births.operand_flags(tl.zeros([N], tl.int32), tl.load(a_ptr + i), A, False)
    flags = births.operand_flags(flags, tl.load(b_ptr + i), B, ZERO)
    code = births.births(tl.load(r_ptr + i), flags)
    births.put_births(code, needed, valid, program + 5, checks, program, 1, NEEDED, VALID, BITS)


def born(result: float, operands: list[tuple[float, set[float]]]) -> str | None:
    """What is born in a lane: "nan", "posinf", "neginf" or None; operands with their sentinels."""
    values = [value for value, _ in operands]
    if any(math.isnan(value) for value in values):
        return None
    if math.isnan(result):
        return "nan"
    if not math.isinf(result):
        return None
    infinite = [(value, signs) for value, signs in operands if math.isinf(value)]
    if infinite:
        value, signs = infinite[0]
        if len(infinite) > 1 or value not in signs or value == result:
            return None
    return "posinf" if result > 0 else "neginf"


def signs_of(bits: int) -> set[float]:
    return {s for bit, s in ((1, INF), (2, -INF)) if bits & bit}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize(("needed", "valid"), [(False, False), (True, True)])
@pytest.mark.parametrize(("a_signs", "b_signs", "zero"), [(0, 0, False), (2, 0, True), (1, 2, True),
                                                          (3, 3, False)])  # fmt: skip
def test_every_combination(
    dtype: torch.dtype, needed: bool, valid: bool, a_signs: int, b_signs: int, zero: bool
) -> None:
    """All combinations of special operands and results, over 6 programs."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    n, programs = 128, 6
    lanes = list(itertools.product(SPECIAL, SPECIAL, SPECIAL))[::-1]
    lanes += [(1.0, 1.0, 1.0)] * (n * programs - len(lanes))
    a, b, r = (torch.tensor(column, dtype=dtype) for column in zip(*lanes, strict=True))
    random = np.random.default_rng(0)
    masks = [torch.from_numpy(random.integers(0, 2, n * programs, np.int8)) for _ in range(2)]
    checks = torch.zeros(3 * 12, dtype=torch.int32, device=device)
    inputs = [x.to(device) for x in (a, b, r, *masks)]
    two_operands[(programs,)](*inputs, checks, n, lane_bits(n), a_signs, b_signs, zero, needed,
                              valid)  # fmt: skip

    counts = {"nan": 0, "posinf": 0, "neginf": 0, "padding": 0}
    first: dict[str, tuple[int, int, int, int]] = {}
    for at in range(n * programs):
        x, y, z = float(a[at]), float(b[at]), float(r[at])
        kind = born(z, [(x, signs_of(a_signs)), (y, signs_of(b_signs))])
        if kind is None or (needed and not masks[0][at]):
            continue
        counts[kind] += 1
        counts["padding"] += valid and not masks[1][at]
        cause = (1 if zero and y == 0 else 0) | (2 if math.isinf(x) or math.isinf(y) else 0)
        program = at // n
        first.setdefault("nan" if kind == "nan" else "inf", (program, program + 5, at % n, cause))
    words = checks.cpu().view(torch.int64).view(3, 6)
    assert not words[0].any()
    assert not words[2].any()
    assert dict(zip(counts, words[1].tolist(), strict=False)) == counts
    assert counts["nan"] > 10
    assert counts["posinf"] > 10
    assert unpack_place(int(words[1][4]) % 2**64, n) == first["nan"]
    assert unpack_place(int(words[1][5]) % 2**64, n) == first["inf"]


@triton.jit
def combined(a_ptr, b_ptr, slices, scans, back, dots, M: tl.constexpr, N: tl.constexpr):
    rows = tl.arange(0, M)[:, None]
    columns = tl.arange(0, N)[None, :]
    a = tl.load(a_ptr + rows * N + columns)
    flags = births.operand_flags(tl.zeros([M, N], tl.int32), a, 2, True)
    at = rows * N + columns
    tl.store(slices + tl.arange(0, M), births.slice_flags(flags, 1))
    tl.store(scans + at, births.scan_flags(flags, 1, False))
    tl.store(back + at, births.scan_flags(flags, 0, True))
    k = tl.arange(0, N)[:, None]
    m = tl.arange(0, M)[None, :]
    b = tl.load(b_ptr + k * M + m)
    square = tl.arange(0, M)[:, None] * M + m
    tl.store(dots + square, births.dot_flags(tl.zeros([M, M], tl.int32), a, b))


def test_slices() -> None:
    """What the lanes of a slice have, is what any of them has."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    m, n = 16, 32
    random = np.random.default_rng(1)
    a, b = (random.standard_normal(shape).astype(np.float32) for shape in ((m, n), (n, m)))
    for array in (a, b):
        for value in (NAN, INF, -INF, 0.0):
            array.reshape(-1)[random.integers(0, m * n, 5)] = value

    def flags(array: np.ndarray, minus: int, zero: int) -> np.ndarray:
        return (
            np.isnan(array) * 1
            | (array == INF) * 2
            | (array == -INF) * minus
            | (array == 0) * zero
        )  # fmt: skip

    slices, dots = (torch.zeros(s, dtype=torch.int32, device=device) for s in ((m,), (m, m)))
    scans, back = (torch.zeros(m, n, dtype=torch.int32, device=device) for _ in range(2))
    combined[(1,)](torch.from_numpy(a).to(device), torch.from_numpy(b).to(device), slices, scans,
                   back, dots, m, n)  # fmt: skip
    of_a = flags(a, 8, 32)
    combine = np.bitwise_or
    assert np.array_equal(slices.cpu(), combine.reduce(of_a, axis=1))
    assert np.array_equal(scans.cpu(), combine.accumulate(of_a, axis=1))
    assert np.array_equal(back.cpu(), combine.accumulate(of_a[::-1], axis=0)[::-1])
    rows, columns = combine.reduce(flags(a, 2, 0), axis=1), combine.reduce(flags(b, 2, 0), axis=0)
    assert np.array_equal(dots.cpu(), rows[:, None] | columns[None, :])
