"""How often blocks run, told before a launch, against loops that count."""

from __future__ import annotations

import json
from dataclasses import asdict

import pytest
import triton
import triton.language as tl
from ttir_text import named, ttir

from flagprism_torch.ir.module import Block, Module
from flagprism_torch.ir.trips import executions, largest
from flagprism_torch.records.full_model import FullBlock, FullChannel, FullEntry, FullPlan, matching


@triton.jit
def loops(o, n, low, step, m, BLOCK: tl.constexpr):
    for k in range(0, n, BLOCK):
        plain = tl.load(o + k)
        tl.store(o, plain)
    for k in range(low, n, step):
        stepped = tl.load(o + k)
        tl.store(o, stepped)
    for k in range(tl.cdiv(n, 7) * 2, min(max(m, 3), 90)):
        computed = tl.load(o + k)
        tl.store(o, computed)
    for k in range(tl.program_id(0), tl.num_programs(1) * 4):
        placed = tl.load(o + k)
        tl.store(o, placed)
    for k in range(n // 10):
        for j in range(3):
            nested = tl.load(o + k + j)
            tl.store(o, nested)
    if m > 4:
        for k in range(m % 5):
            branched = tl.load(o + k)
            tl.store(o, branched)
    for k in range(tl.load(o).to(tl.int32)):
        loaded = tl.load(o + k)
        tl.store(o, loaded)
    for k in range(4):
        for j in range(k):
            outer = tl.load(o + k + j)
            tl.store(o, outer)
    left = n
    while left > 0:
        waited = tl.load(o + left)
        tl.store(o, waited)
        left -= 1


ARGUMENTS = [
    {"n": 100, "low": 3, "step": 4, "m": 50},
    {"n": 64, "low": 90, "step": 1, "m": -8},
    {"n": 17, "low": -17, "step": 5, "m": 1000},
    {"n": 0, "low": 0, "step": 3, "m": 4},
]
GRID = (3, 5, 2)


def counted(a: dict[str, int]) -> dict[str, int]:
    """What Python's ranges say."""
    n, low, step, m = a["n"], a["low"], a["step"], a["m"]
    return {
        "plain": len(range(0, n, 16)),
        "stepped": len(range(low, n, step)),
        "computed": len(range((n + 6) // 7 * 2, min(max(m, 3), 90))),
        "placed": max(len(range(program, 20)) for program in range(3)),
        "nested": n // 10 * 3,
        "branched": len(range(m % 5)) if m > 0 else 0,
    }


@pytest.fixture(scope="module")
def module() -> Module:
    types = {"o": "*fp32", **dict.fromkeys(("n", "low", "step", "m"), "i32")}
    return Module(ttir(loops, types, {"BLOCK": 16}))


def around(module: Module, variable: str) -> Block:
    """The block of the load that a variable is."""
    loads = (value.op for value in named(module, variable))
    (load,) = (op for op in loads if op is not None and op.name == "tt.load")
    return load.block


@pytest.mark.parametrize("arguments", ARGUMENTS)
def test_bounds_that_are_known(module: Module, arguments: dict[str, int]) -> None:
    for variable, wanted in counted(arguments).items():
        term = executions(around(module, variable), module.entry)
        assert term is not None, variable
        assert largest(term, arguments, GRID) == wanted, variable


@pytest.mark.parametrize("variable", ["loaded", "outer", "waited"])
def test_bounds_that_are_not(module: Module, variable: str) -> None:
    assert executions(around(module, variable), module.entry) is None


def test_what_a_launch_does_not_tell(module: Module) -> None:
    term = executions(around(module, "plain"), module.entry)
    assert term is not None
    for arguments in ({}, {"n": 3.5}, {"n": None}):
        assert largest(term, arguments, GRID) is None
    assert largest(("argument n", "0", "arith.divsi"), {"n": 4}, GRID) is None  # by zero
    assert largest(("argument n", "2", "arith.divui"), {"n": -4}, GRID) is None  # a huge number
    assert largest(("program 0",), {}, (1 << 12, 1 << 12, 1)) is None  # too many to try


TERMS: list[tuple[tuple[str, ...], int]] = [
    (("7", "-2", "arith.divsi"), -3),
    (("-7", "2", "arith.remsi"), -1),
    (("-7", "2", "arith.floordivsi"), -4),
    (("-7", "2", "arith.ceildivsi"), -3),
    (("3", "4", "slt", "10", "20", "arith.select"), 10),
    (("3", "4", "eq", "10", "20", "arith.select"), 20),
    (("6", "3", "arith.andi", "1", "arith.shli"), 4),
    (("programs 0", "programs 1", "arith.muli", "program 2", "arith.addi"), 16),
]


@pytest.mark.parametrize(("term", "wanted"), TERMS)
def test_arithmetic(term: tuple[str, ...], wanted: int) -> None:
    assert largest(term, {}, GRID) == wanted


def test_a_plan_survives_the_cache() -> None:
    entry = FullEntry(
        op_id=3, op="tt.store", role="store", dtype="bf16", shape=(4, 8), mask="live", file="a.py",
        line=7, variable=None, statement="tl.store(p, x)", pointer="p", block=0, values=0, lanes=1,
        active=1, offsets=2, arguments=("p",),
    )  # fmt: skip
    plan = FullPlan(
        (entry,),
        (FullBlock(("argument n", "2", "arith.muli"), False), FullBlock(None, False)),
        (FullChannel(0, 2, 32), FullChannel(0, 1, 32), FullChannel(0, 8, 32)),
    )
    assert FullPlan.from_json(json.loads(json.dumps(asdict(plan)))) == plan
    assert plan.header == 7 and plan.header_bytes == 64
    assert plan.entries[0].channels == (0, 1, 1, 2)


def test_patterns() -> None:
    assert matching(["x", "tl.*", "y[0]"], "tl.store(p)", None) == ["tl.*"]
    assert matching(["y[0]"], "y[0]") == ["y[0]"]  # a name in full, though it has brackets
    assert matching(["X"], "x") == []
