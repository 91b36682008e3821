"""Random kernels against NumPy: masks, loops, branches, special values, own and shared slots."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from session_rows import check

import flagprism_torch
import flagprism_torch.backends.cpu as cpu

SPECIAL = [0.0, -0.0, float("nan"), float("inf"), float("-inf"), 1e-45, -3.4e38, 1.0, -2.5]


@pytest.fixture(scope="module", autouse=True)
def backend() -> Iterator[None]:
    assert cpu.register("test_attacks_random")
    yield
    cpu.unregister("test_attacks_random")


@triton.jit
def program(x, o, n, rows, first, B: tl.constexpr, OP: tl.constexpr, GUARD: tl.constexpr):
    p = tl.program_id(0)
    i = tl.arange(0, B)
    m = i < n
    for r in range(first, rows):
        a = tl.load(x + (p + r) * n + i, m, other=7.0)
        if OP == 0:
            b = a * 0.5
        elif OP == 1:
            b = tl.minimum(a, 1.0)
        else:
            b = tl.abs(a) + 1.0
        if GUARD:
            if (p + r) % 2 == 0:
                c = b - a
                tl.store(o + (p * rows + r) * n + i, c, m)
        else:
            tl.store(o + (p * rows + r) * n + i, b, m)


@settings(max_examples=6, deadline=None, derandomize=True,
          suppress_health_check=[HealthCheck.too_slow])  # fmt: skip
@given(
    programs=st.integers(1, 9),
    rows=st.integers(0, 4),
    first=st.integers(0, 2),
    n=st.integers(1, 8),
    block=st.just(8),
    op=st.integers(0, 2),
    guard=st.booleans(),
    capacity=st.sampled_from([2, 65536]),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
    seed=st.integers(0, 1000),
)
@example(9, 4, 0, 8, 8, 2, True, 2, torch.bfloat16, 1)
@example(3, 1, 2, 5, 16, 0, False, 65536, torch.float16, 2)  # the loop never runs
def test_rows_of_random_programs(
    programs: int, rows: int, first: int, n: int, block: int, op: int, guard: bool, capacity: int,
    dtype: torch.dtype, seed: int,
):  # fmt: skip
    random = np.random.default_rng(seed)
    data = random.standard_normal(((programs + rows) * n,)).astype(np.float32)
    chosen = random.random(data.shape) < 0.3
    data[chosen] = random.choice(np.array(SPECIAL, np.float32), chosen.sum())
    x = torch.from_numpy(data).to(dtype)
    out = torch.zeros(programs * max(rows, 1) * n)
    with flagprism_torch.debug(logdir=False, record_capacity=capacity) as session:
        program[(programs,)](x, out, n, rows, first, B=block, OP=op, GUARD=guard)
    a = [x[(p + r) * n :][:n] for p in range(programs) for r in range(first, rows)]
    compute = [lambda v: v * 0.5, lambda v: torch.fmin(v.float(), torch.tensor(1.0)),
               lambda v: v.abs() + 1][op]  # fmt: skip
    places = [(p, r) for p in range(programs) for r in range(first, rows)]
    expected = {"a": a, "b": [compute(v) for v in a]}
    if guard:
        pairs = zip(places, a, expected["b"], strict=True)
        expected["c"] = [b - v for (p, r), v, b in pairs if (p + r) % 2 == 0]
    for name, values in expected.items():
        rows_of = [r for r in session.table() if r.variable == name and r.op != "arith.extf"]
        if not rows_of:  # Triton removes a loop that it knows never runs
            assert not values
            continue
        assert len(rows_of) == 1
        row = rows_of[0]
        lanes = torch.cat(values) if values else torch.zeros(0)
        check(row, lanes, lanes=block * len(values), executions=len(values), mask="live",
              rel=1e-4)  # fmt: skip
