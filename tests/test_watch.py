"""Level 0: where a NaN or an infinity came to be, by statement, program and iteration."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from case_runs import load, names

import flagprism_torch
from flagprism_torch.records import watch_buffers

# NaN and infinities that no lane is needed for to see; 22: an infinity of the program's own
KINDS = ("nan", "inf")
CASES = [
    name
    for name in names()
    if load(name).MODE == "triton"
    and (load(name).EXPECT.get("anomaly") in KINDS or load(name).EXPECT["verdict"] == "healthy")
]
OWN_INFINITY = "22"


@pytest.fixture(autouse=True, scope="module")
def backend() -> Any:
    entered = flagprism_torch.enable_cpu()
    yield
    if entered:
        flagprism_torch.disable_cpu()


@triton.jit
def loops(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    total = tl.zeros([BLOCK], tl.float32)
    for i in range(n):
        x = tl.load(x_ptr + (row * n + i) * BLOCK + tl.arange(0, BLOCK))
        y = tl.log(x)
        total += y
    mean = tl.sum(total) / n
    tl.store(out_ptr + row, mean)


@triton.jit
def branches(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    i = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * BLOCK + i, mask=i < n, other=1.0)
    if row % 2 == 1:
        x = 1.0 / x
    k = 0
    while k < 2:
        x = tl.sqrt(x)
        k += 1
    tl.store(out_ptr + row * BLOCK + i, x, mask=i < n)


@triton.jit
def many(x_ptr, out_ptr, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + i)
    a = x + 1.0
    b = a * 2.0
    c = b + 3.0
    d = c * 4.0
    e = d + 5.0
    f = e * 6.0
    g = f + 7.0
    h = g * 8.0
    j = h + 9.0
    k = j * 2.0
    m = k + 1.0
    n = m * 2.0
    o = n + 3.0
    p = o * 4.0
    q = p + 5.0
    r = q / x
    s = r + 1.0
    tl.store(out_ptr + i, s)


def _watched(**options: Any) -> Any:
    return flagprism_torch.debug(level=0, logdir=False, **options)


@pytest.mark.parametrize("name", CASES)
def test_cases(name: str):
    case = load(name)
    plain = case.run("cpu")
    with _watched() as session:
        found = case.run("cpu")
    for key, value in plain.items():
        assert value.equal(found[key]) or torch.equal(value.isnan(), found[key].isnan()), key
    expect, anomalies = case.EXPECT, session.anomalies
    if expect["verdict"] == "healthy" or name.startswith(OWN_INFINITY):
        assert anomalies == ()
        return
    statements = {expect.get(key) for key in ("statement", "nan_statement", "inf_statement")}
    first = anomalies[0]
    assert first.statement in statements
    assert first.kernel == expect["kernel"]
    assert first.verdict == ("loaded" if expect["op"] == "tt.load" else "born")
    assert first.lane is None


@pytest.mark.parametrize("bad", [[(4, 3)], [(2, 4), (2, 1), (5, 0)], [(0, 0)]])
def test_place_in_a_loop(bad: list[tuple[int, int]]):
    x = torch.rand(6, 5, 64) + 1
    for program, iteration in bad:
        x[program, iteration, 7] = -1.0
    with _watched() as session:
        loops[(6,)](x, torch.empty(6), 5, BLOCK=64)
    (found,) = session.anomalies
    first = min(program for program, _ in bad)
    assert (found.kind, found.verdict, found.severity) == ("nan", "born", "error")
    assert (found.statement, found.op) == ("y = tl.log(x)", "math.log")
    assert found.program == (first, 0, 0)
    assert found.iteration == min(i for program, i in bad if program == first)
    assert found.details["bad_programs"] == len({program for program, _ in bad})
    assert found.extent.startswith(str(found.details["bad_programs"]))


def test_branches_and_while():
    x = torch.ones(4, 16)
    x[3, 5] = 0.0  # 1 / 0 in an odd program
    x[2, 9] = -2.0  # the root of a negative value
    x[1, 14] = 0.0  # masked off
    out = torch.zeros(4, 16)
    with _watched() as session:
        branches[(4,)](x, out, 12, BLOCK=16)
    nan, inf = session.anomalies
    assert (nan.kind, nan.statement, nan.program) == ("nan", "x = tl.sqrt(x)", (2, 0, 0))
    assert (inf.kind, inf.statement, inf.program) == ("inf", "x = 1.0 / x", (3, 0, 0))
    assert (inf.extent, nan.extent) == ("1 program", "2 executions")


def test_more_values_than_a_word_holds():
    x = torch.arange(1.0, 33.0)
    with _watched() as session:
        many[(1,)](x, torch.empty(32), BLOCK=32)
        session.step()
        x[3] = 0.0
        many[(1,)](x, torch.empty(32), BLOCK=32)
    (inf,) = session.anomalies
    assert (inf.statement, inf.kind, inf.step) == ("r = q / x", "inf", 1)
    assert not session.hidden


def test_kernels_behind_the_first_one_are_not_blamed():
    x, out, end = torch.ones(2, 1, 8), torch.empty(2), torch.empty(16)
    x[1, 0, 3] = -1.0
    with _watched() as session:
        loops[(2,)](x, out, 1, BLOCK=8)
        branches[(1,)](out, end, 2, BLOCK=16)
        session.step()
        branches[(1,)](out, end, 2, BLOCK=16)  # of an earlier step
    (found,) = session.anomalies
    assert (found.kernel, found.step) == ("loops", 0)


def test_a_loaded_nan_is_told_once():
    x = torch.ones(2, 16)
    x[1, 2] = math.nan
    with _watched() as session:
        for _ in range(3):
            branches[(2,)](x, torch.empty(2, 16), 12, BLOCK=16)
            session.step()
    (found,) = session.anomalies
    assert (found.verdict, found.statement[:12]) == ("loaded", "x = tl.load(")
    assert found.cause == "loaded through x_ptr"
    assert (found.step, found.program) == (0, (1, 0, 0))


def test_what_is_not_stored_is_hidden():
    @triton.jit
    def dropped(x_ptr, out_ptr, BLOCK: tl.constexpr):
        i = tl.arange(0, BLOCK)
        x = tl.load(x_ptr + i)
        y = tl.exp(x)
        z = y / (1 + y)
        tl.store(out_ptr + i, tl.where(x < 80, z, 1.0))

    x = torch.tensor([1.0, 90.0, 2.0, 3.0])
    with _watched() as session:
        dropped[(1,)](x, torch.empty(4), BLOCK=4)
    assert session.anomalies == ()


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_types(dtype: torch.dtype):
    big = torch.finfo(dtype).max

    @triton.jit
    def double(x_ptr, out_ptr, BLOCK: tl.constexpr):
        i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + i)
        y = x + x
        tl.store(out_ptr + i, y)

    x = torch.ones(64, dtype=dtype)
    out = torch.empty_like(x)
    with _watched() as session:
        double[(4,)](x, out, BLOCK=16)
        session.step()
        x[40] = -big
        double[(4,)](x, out, BLOCK=16)
    (found,) = session.anomalies
    assert (found.kind, found.statement) == ("inf", "y = x + x")
    assert (found.step, found.program) == (1, (2, 0, 0))


def test_against_numpy():
    """Which programs met what, over many launches, two grids of one call site and many steps."""
    rng = np.random.default_rng(0)
    wanted: dict[int, set[int]] = {}
    with _watched() as session:
        for step in range(6):
            for grid in (3, 5):
                x = torch.ones(grid, 16)
                for program in np.flatnonzero(rng.random(grid) < 0.2):
                    x[program, rng.integers(12)] = -1.0
                    wanted.setdefault(step, set()).add(int(program))
                branches[(grid,)](x, torch.empty(grid, 16), 12, BLOCK=16)
            session.step()
    assert wanted
    (found,) = session.anomalies
    assert (found.step, found.last_step) == (min(wanted), max(wanted))
    assert session.coverage.to_dict()["launches"] == 12
    assert found.program is not None and found.program[0] in wanted[found.step]


def test_a_full_arena_makes_room(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(watch_buffers, "ARENA_WORDS", 64)
    x, out = torch.ones(2, 1, 8), torch.empty(2)
    x[1, 0, 3] = -1.0
    with _watched() as session:
        loops[(2,)](x, out, 1, BLOCK=8)
        branches[(1,)](torch.ones(16), torch.empty(16), 12, BLOCK=16)
        many[(1,)](torch.ones(32), torch.empty(32), BLOCK=32)
        loops[(2,)](x.abs(), out, 1, BLOCK=8)
    (found,) = session.anomalies
    assert found.details["bad_programs"] == 1


def test_escalate():
    x, out = torch.ones(2, 1, 8), torch.empty(2)
    with _watched(escalate=True) as session:
        for step in range(4):
            if step == 1:
                x[1, 0, 3] = -1.0
            loops[(2,)](x, out, 1, BLOCK=8)
            branches[(2,)](x, torch.empty(16), 0, BLOCK=8)
            session.step()
    first, closer = session.anomalies
    assert (first.step, first.lane) == (1, None)
    assert (closer.step, closer.lane, closer.cause) == (2, 3, "log of a negative value")
    assert session.table().kernels() == ("loops",)
    assert [session.table(step).kernels() for step in (0, 1)] == [(), ()]


def test_what_needs_more_than_the_watch_is_refused():
    for options in ({"addr_level": 1}, {"guard": True}, {"export_on_error": True}):
        with pytest.raises(ValueError, match="level=0"):
            _watched(**options)
    with pytest.raises(ValueError, match="escalate=True is for level=0"):
        flagprism_torch.debug(level=1, escalate=True)


def test_integer_kernels_run_as_they_are():
    @triton.jit
    def count(x_ptr, BLOCK: tl.constexpr):
        i = tl.arange(0, BLOCK)
        tl.store(x_ptr + i, tl.load(x_ptr + i) + 1)

    x = torch.zeros(8, dtype=torch.int32)
    with _watched() as session:
        count[(1,)](x, BLOCK=8)
    assert x.tolist() == [1] * 8
    assert "no float value to watch" in str(session.coverage)


def test_a_compiled_model():
    torch._dynamo.reset()

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Softplus())

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.inner(x)
            return (y - y.mean(1, keepdim=True)).sqrt()

    model = Model()
    compiled = torch.compile(model)
    x = torch.randn(4, 8)
    with _watched(model=model) as session:
        out = compiled(x)
    assert out.isnan().any()
    found = session.anomalies[0]
    assert (found.kind, found.verdict, found.aten) == ("nan", "born", "aten.sqrt")
    assert found.module == "<Model>"
