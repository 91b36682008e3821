"""Random kernels under a session against NumPy: rows, births, causes, chains, and outputs.

Note [What is asserted]
Exactly: outputs (bit by bit, with and without a session), executions, lanes, which rows there are,
the statistics and the first place of stores. Of all other values the lanes that count lie between
two sets (kernel_oracle, Note [Bounds]). Where both are equal, every number is exact: live, NaN,
infinities, zeros, min, max, mean, l2, first place; counts, place, cause and operands of births.
Where they differ, counts and places lie between those of the two sets; so do they in rows that say
that the need is not known ("valid"), which only statements of a loop or branch may. min and max
behind a function that NumPy may round differently (exp, log, rsqrt, sums) are exact up to 1e-5.
"""

from __future__ import annotations

import dataclasses
import importlib.util
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from kernel_births import births, cause, reached
from kernel_oracle import Event, Run
from kernel_tree import (
    COLUMNS,
    ROWS,
    Program,
    Statement,
    Value,
    inside,
    repeated_by_chance,
    source,
    statements,
)
from random_kernels import programs
from session_rows import check

import flagprism_torch
import flagprism_torch.backends.cpu as cpu
from flagprism_torch.records.model import Anomaly, Row
from flagprism_torch.session import Session

TORCH = {"fp16": torch.float16, "bf16": torch.bfloat16, "fp32": torch.float32,
         "fp64": torch.float64, "int32": torch.int32}  # fmt: skip
SPECIAL = [0.0, -0.0, float("nan"), float("inf"), float("-inf"), 1e-45, -3e38, 6e4, 1e-310]
Place = tuple[int, int, Any]


@pytest.fixture(scope="module", autouse=True)
def backend() -> Iterator[None]:
    assert cpu.register("test_random_kernels")
    yield
    cpu.unregister("test_random_kernels")


@st.composite
def launches(draw: Any) -> dict[str, Any]:
    random = draw(st.randoms(use_true_random=True))
    return {
        "grid": random.randint(1, 4),
        "seed": random.randrange(2**20),
        "special": random.choice([0.0, 0.02, 0.2]),
        "record_capacity": random.choice([2, 65536]),
        "sizes": {
            "n": random.randint(0, COLUMNS),
            "w": random.choice([random.randint(0, COLUMNS), random.randint(0, ROWS * COLUMNS)]),
            "h": random.randint(0, ROWS),
            "total": random.randint(0, ROWS * COLUMNS * 3),
            "trips": random.choice([0, 1, 2, 3, 3]),
        },
    }


def tensors(program: Program, launch: dict[str, Any]) -> list[torch.Tensor]:
    random = np.random.default_rng(launch["seed"])
    found = []
    for dtype, kind in program.inputs:
        size = launch["grid"] * max(launch["sizes"]["trips"], 1) * int(np.prod(program.shape(kind)))
        if dtype == "int32":
            found.append(torch.from_numpy(random.integers(-9, 9, size, np.int32)))
            continue
        data = random.standard_normal(size) * random.choice([1.0, 1.0, 100.0], size)
        chosen = random.random(size) < launch["special"]
        data[chosen] = random.choice(np.array(SPECIAL), chosen.sum())
        found.append(torch.from_numpy(data).to(TORCH[dtype]))
    return found


def array(tensor: torch.Tensor) -> np.ndarray:
    return (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).numpy()


def bits(tensor: torch.Tensor) -> bytes:
    return tensor.view(torch.uint8).numpy().tobytes()


@pytest.fixture(scope="module")
def kernel_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Program], Any]:
    folder = tmp_path_factory.mktemp("kernels")

    def build(program: Program) -> Any:
        path: Path = folder / f"kernel_{len(list(folder.iterdir()))}.py"
        path.write_text(source(program))
        spec = importlib.util.spec_from_file_location(path.stem, path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module.kernel

    return build


# a failure shows the kernel's source: shrinking would compile for minutes
@settings(max_examples=60, deadline=None, derandomize=True, phases=[Phase.explicit, Phase.generate],
          suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])  # fmt: skip
@given(programs(), st.lists(launches(), min_size=2, max_size=2))
def test_random_kernels(
    kernel_of: Callable[[Program], Any], program: Program, given_launches: list[dict[str, Any]]
) -> None:
    kernel = kernel_of(program)
    for launch in given_launches:
        compare(kernel, program, launch)


def compare(kernel: Any, program: Program, launch: dict[str, Any]) -> None:
    inputs = tensors(program, launch)
    run = Run(program, [array(x) for x in inputs], launch["sizes"], launch["grid"])

    def outputs(launch: Any = launch, inputs: Any = inputs, run: Run = run) -> list[torch.Tensor]:
        made = [
            torch.zeros(size.size, dtype=TORCH[dtype])
            for size, (dtype, _) in zip(run.outputs, program.outputs, strict=True)
        ]
        kernel[(launch["grid"],)](*inputs, *made, **launch["sizes"], R=ROWS, C=COLUMNS)
        return made

    plain = outputs()
    with flagprism_torch.debug(logdir=False, record_capacity=launch["record_capacity"]) as session:
        watched = outputs()
    for one, other, wanted in zip(plain, watched, run.outputs, strict=True):
        assert bits(one) == bits(other)
        np.testing.assert_allclose(array(one), wanted, rtol=1e-5, equal_nan=True)
    check_rows(program, run, session)
    check_births(program, run, session)
    check_loads(program, run, session)


# -- rows


def check_rows(program: Program, run: Run, session: Session) -> None:
    rows = {row.line: row for row in session.table()}
    assert len(rows) == len(session.table())
    listed = list(statements(program.body))
    assert sorted(rows) == sorted(one.line for one in listed)
    for one in listed:
        check_row(program, one, run.of(one), rows[one.line])


def check_row(program: Program, one: Statement, events: list[Event], row: Row) -> None:
    value = one.out if one.out is not None else one.args[0]
    size = int(np.prod(program.shape(value.kind), dtype=int))
    assert row.variable == (None if one.out is None else one.out.name)
    assert row.dtype == value.dtype
    assert (row.executions, row.lanes) == (len(events), len(events) * size)
    # the need of a value may depend on a condition that is computed behind its loop or branch
    assert row.mask in ("all", "live") or (row.mask == "valid" and one in inside(program))
    least, most = sets(events, row)
    small = np.concatenate(
        [e.value[m] for e, m in zip(events, least, strict=True)] or [np.zeros(0)]
    )
    large = np.concatenate([e.value[m] for e, m in zip(events, most, strict=True)] or [np.zeros(0)])
    if value.dtype == "int32":
        small, large = small.astype(np.int32), large.astype(np.int32)
    if small.size == large.size:
        check(with_l2(row, small), small, lanes=row.lanes, values_rel=0.0 if value.exact else 1e-5)
    else:
        low, high = counts(small), counts(large)
        for name in low:
            assert low[name] <= getattr(row, name) <= high[name], name
        for finite, end, beyond in ((small, min, np.less_equal), (small, max, np.greater_equal)):
            finite = finite[np.isfinite(finite)]
            if finite.size and value.exact:
                assert beyond(getattr(row, end.__name__), end(finite))
    bad = [~np.isfinite(event.value) for event in events]
    outer, inner = (first(events, [b & m for b, m in zip(bad, masks, strict=True)])
                    for masks in (most, least))  # fmt: skip
    got = place(row.first_nonfinite)
    assert got is None or got[1] is not None or one in repeated_by_chance(program)
    between(outer, got, inner)


def with_l2(row: Row, values: np.ndarray) -> Row:
    """The row; where the squares leave the range of float64 and l2 is None for that, with an l2."""
    finite = np.abs(values[np.isfinite(values)].astype(np.float64))
    largest = finite.max(initial=0.0)
    if 1e-140 < largest < 1e150 or not largest:
        return row
    with np.errstate(over="ignore"):
        norm = float(np.linalg.norm(finite))
    if 1e-150 < largest < 1e157:  # near the ends the order of the sum decides
        assert row.l2 is None or row.l2 == pytest.approx(norm)
    else:
        assert row.l2 is None
    return dataclasses.replace(row, l2=norm)


def sets(events: list[Event], row: Row) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """The lanes of each event that count at least, and at most."""
    if row.role == "store":
        return [e.valid for e in events], [e.valid for e in events]
    least = [e.valid & e.needed for e in events]
    if row.mask == "valid":
        return least, [e.valid for e in events]
    return least, [e.valid & e.wide for e in events]


def counts(values: np.ndarray) -> dict[str, int]:
    return {
        "live": values.size,
        "nan": int(np.isnan(values).sum()),
        "posinf": int((values == np.inf).sum()),
        "neginf": int((values == -np.inf).sum()),
        "zero": int((values == 0).sum()),
    }


def first(events: list[Event], chosen: list[np.ndarray]) -> Place | None:
    """(program, iteration, flat lane) of the first chosen lane; events are in that order."""
    for event, lanes in zip(events, chosen, strict=True):
        if lanes.any():
            return event.program, event.iteration, int(np.flatnonzero(lanes)[0])
    return None


def place(found: Any) -> Place | None:
    """A reported place, its lane flat."""
    if found is None:
        return None
    (program, _, _), iteration, lane = found
    if isinstance(lane, tuple):
        lane = int(np.ravel_multi_index(lane, (ROWS, COLUMNS)))
    return program, iteration, lane


def between(outer: Place | None, got: Place | None, inner: Place | None) -> None:
    """The first of a set that lies between two others."""
    if got is None:
        assert inner is None
        return
    assert outer is not None
    if got[1] is None:  # an iteration that is not known
        assert outer[0] <= got[0]
        assert inner is None or got[0] <= inner[0]
        return
    assert outer <= got
    if inner is not None:
        assert got <= inner


# -- births


def check_births(program: Program, run: Run, session: Session) -> None:
    chains = [(one, False) for one in session.anomalies] + [(one, True) for one in session.hidden]
    found: dict[tuple[int, str], Anomaly] = {}
    for chain, _ in chains:
        for birth in chain.births:
            assert (birth.line, birth.kind) not in found
            found[birth.line, birth.kind] = birth
    rows = {row.line: row for row in session.table()}
    for one in statements(program.body):
        if one.op == "store":
            continue
        events, row = run.of(one), rows[one.line]
        for kind in ("nan", "inf"):
            check_birth(program, one, events, row, kind, found.pop((one.line, kind), None), rows)
    assert not found
    check_chains(program, chains, rows)


def check_birth(
    program: Program, one: Statement, events: list[Event], row: Row, kind: str,
    birth: Anomaly | None, rows: dict[int, Row],
) -> None:  # fmt: skip
    """Births of a kind at a statement; the exact ones, and the most that may be reported."""
    codes = [births(program, e, sentinels=False) for e in events]
    loose = [births(program, e, sentinels=program.has_infinities) for e in events]
    unknown = row.mask == "valid"  # then valid lanes are examined
    sure = [e.needed & (e.valid | (not unknown)) for e in events]
    possible = [e.valid if unknown else e.wide for e in events]
    least = [np.where(lanes, code, "") for lanes, code in zip(sure, codes, strict=True)]
    most = [np.where(lanes, code, "") for lanes, code in zip(possible, loose, strict=True)]
    signs = {"nan": ("nan",), "inf": ("+", "-")}[kind]
    inner, outer = (first(events, [np.isin(c, signs) for c in code]) for code in (least, most))
    if birth is None:
        assert inner is None, (one.line, kind, inner)
        return
    assert birth.verdict == ("seen" if unknown else "born")
    assert birth.variable == one.out.name if one.out is not None else False
    between(outer, place((birth.program, birth.iteration, birth.lane)), inner)
    for name, sign in (("nan", "nan"), ("posinf", "+"), ("neginf", "-")):
        low, high = (sum(int((c == sign).sum()) for c in code) for code in (least, most))
        assert low <= birth.counts[name] <= high, (one.line, name)
    padding = [
        sum(int(((c != "") & ~e.valid).sum()) for e, c in zip(events, code, strict=True))
        for code in (least, most)
    ]
    assert padding[0] <= birth.counts["padding"] <= padding[1]
    assert (birth.counts["lanes"], birth.counts["live"]) == (row.lanes, row.live)
    got = place((birth.program, birth.iteration, birth.lane))
    assert got is not None
    assert got[1] is not None or one in repeated_by_chance(program)
    seen = {s for name, s in (("posinf", "+"), ("neginf", "-")) if birth.counts[name]}
    assert birth.cause in {
        cause(program, e, lane, kind, seen)
        for e, code in zip(events, most, strict=True)
        for lane in [tuple(map(int, np.unravel_index(got[2], code.shape)))]
        if e.program == got[0] and got[1] in (None, e.iteration) and code[lane] in signs
    }
    check_operands(program, one, birth, rows)


def check_operands(program: Program, one: Statement, birth: Anomaly, rows: dict[int, Row]) -> None:
    """Operands that a statement made are named after it, with the numbers of its row."""
    made = {s.out: rows[s.line] for s in statements(program.body) if s.out is not None}
    real = [a for a in one.args if not (isinstance(a, Value) and a.dtype == "int32")]
    assert len(real) == len(birth.operands)
    for value, operand in zip(real, birth.operands, strict=True):
        row = made.get(value) if isinstance(value, Value) else None
        if row is not None:
            assert operand["name"] == value.name
            for name in ("lanes", "live", "nan", "posinf", "neginf", "zero", "min", "max"):
                assert operand[name] == getattr(row, name)


def check_chains(
    program: Program, chains: list[tuple[Anomaly, bool]], rows: dict[int, Row]
) -> None:
    """Births of which one can enter an operand of the other are one chain; a chain is hidden if
    nothing that it can enter stores a non-finite lane."""
    ways = reached(program)
    at = {one.line: one for one in statements(program.body)}

    def behind(line: int) -> set[int]:
        out = at[line].out
        return {one.line for one in ways.get(out, ())} if out is not None else set()

    groups = [[birth.line for birth in chain.births] for chain, _ in chains if chain.births]
    for group in groups:
        linked, todo = set(group[:1]), group[:1]
        while todo:
            line = todo.pop()
            near = {o for o in group if o in behind(line) or line in behind(o)} - linked
            linked |= near
            todo += near
        assert linked == set(group)
        for other in groups:
            if other is not group:
                assert not {o for line in group for o in behind(line)} & set(other)
    for chain, hidden in chains:
        if chain.kind not in ("nan", "inf"):
            continue
        starts = {birth.line for birth in chain.births} or {chain.line}
        stores = {o for line in starts for o in behind(line) if at[o].op == "store"}
        left = any(rows[o].nan or rows[o].posinf or rows[o].neginf for o in stores)
        assert hidden is not left


# -- what comes from memory


def check_loads(program: Program, run: Run, session: Session) -> None:
    """Loaded NaNs, and undefined lanes that matter."""
    everything = [*session.anomalies, *session.hidden]
    loaded = {one.line: one for one in everything if one.verdict == "loaded"}
    undefined = {one.line: one for one in everything if one.kind == "undefined_lanes"}
    rows = {row.line: row for row in session.table()}
    for one in statements(program.body):
        if one.op != "load":
            continue
        events, row = run.of(one), rows[one.line]
        anomaly = loaded.pop(one.line, None)
        assert (anomaly is not None) == (row.nan > 0)
        if anomaly is not None:
            assert anomaly.counts["nan"] == row.nan
            assert place((anomaly.program, anomaly.iteration, anomaly.lane)) == place(
                row.first_nonfinite
            )
        low = high = 0
        if one.mask is not None and one.other is None:
            low, high = (
                sum(int((lanes & ~e.valid).sum()) for e, lanes in zip(events, found, strict=True))
                for found in ([e.needed for e in events], [e.wide for e in events])
            )
        anomaly = undefined.pop(one.line, None)
        reported = 0 if anomaly is None else anomaly.details["undefined_lanes"]
        assert low <= reported <= high
    assert not loaded
    assert not undefined
    seen = [one for one in everything if one.verdict == "seen" and not one.births]
    assert not seen
