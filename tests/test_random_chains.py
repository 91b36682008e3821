"""Chains of random kernels and random programs, against walks over their graph and memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from graph_blocks import Run, Step, downstream, kernel, load, store
from hypothesis import given, settings
from hypothesis import strategies as st

from flagprism_torch.analysis.verdicts import AnomalyLog
from flagprism_torch.records.model import Anomaly

NAN, INF = np.nan, np.inf
BAD, FINE = [NAN, 1.0], [1.0, 2.0]
BORN, QUIET = (1, 0, 0, 0), (0, 0, 0, 0)


@st.composite
def graphs(draw: Any) -> list[Step]:
    """Every statement is bad by chance; births are where the draw says, whatever is upstream."""
    steps: list[Step] = []
    for index in range(draw(st.integers(1, 12))):
        kind = draw(st.sampled_from(["load", "value", "value", "store"]))
        bad = draw(st.sampled_from([FINE, FINE, [NAN, 1.0], [INF, 1.0]]))
        pool = [i for i, step in enumerate(steps) if step.role != "store"]
        if kind == "load" or not pool:
            steps.append(load(bad, f"in{index}"))
            continue
        sources = tuple(sorted(draw(st.sets(st.sampled_from(pool), min_size=1, max_size=2))))
        if kind == "store":
            steps.append(store(sources[0], bad, f"out{index}"))
        else:
            born = draw(st.sampled_from([None, (0, 0, 0, 0), BORN, (0, 0, 2, 0), (1, 1, 0, 0)]))
            steps.append(Step("arith.addf", bad, sources, born))
    return steps


def expected(steps: list[Step]) -> tuple[set[frozenset[Any]], set[frozenset[Any]]]:
    """Chains as sets of (statement, what): visible ones and hidden ones."""
    bad = [np.array(step.values) for step in steps]
    ways = [downstream(steps, index) for index in range(len(steps))]
    births = [i for i, step in enumerate(steps) if step.born and any(step.born)]
    groups = [{i} for i in births]
    for i in births:
        for j in births:
            if j in ways[i]:
                one, other = (next(g for g in groups if k in g) for k in (i, j))
                if one is not other:
                    groups.remove(other)
                    one |= other
    chains: list[set[Any]] = [{(i, "birth") for i in group} for group in groups]
    loads = [i for i, s in enumerate(steps) if s.role == "load" and np.isnan(bad[i]).any()]
    chains += [{(i, "loaded")} for i in loads]
    explained = {j for i in births + loads for j in ways[i]}
    for i in range(len(steps)):
        if np.isnan(bad[i]).any() and i not in explained:
            chains.append({(i, "seen")})
            explained |= ways[i]
    visible, hidden = set(), set()
    for chain in chains:
        reached = {j for i, _ in chain for j in ways[i] if steps[j].role == "store"}
        left = any(not np.isfinite(bad[j]).all() for j in reached)
        (visible if left else hidden).add(frozenset(chain))
    return visible, hidden


def chains_of(anomalies: Sequence[Anomaly]) -> set[frozenset[Any]]:
    return {
        frozenset((b.op_id, "birth") for b in one.births) or frozenset({(one.op_id, one.verdict)})
        for one in anomalies
    }


@settings(max_examples=300, deadline=None)
@given(graphs())
def test_random_kernels(steps: list[Step]) -> None:
    log = AnomalyLog()
    log.add(0, [kernel(steps)])
    visible, hidden = expected(steps)
    assert chains_of(log.anomalies()) == visible
    assert chains_of(log.hidden()) == hidden
    assert len(log.anomalies()) == len(visible)
    for one in log.anomalies():
        if one.births:
            assert one.op_id == min(b.op_id for b in one.births)


@st.composite
def programs(draw: Any) -> list[tuple[int, int, str]]:
    """Launches: (tensor read, tensor written, what the kernel does)."""
    what = st.sampled_from(["passes", "passes", "cleans", "births"])
    cells = st.integers(0, 4)
    return draw(st.lists(st.tuples(cells, cells, what), min_size=1, max_size=12))


@settings(max_examples=200, deadline=None)
@given(programs(), st.sets(st.integers(0, 4)))
def test_random_programs(program: list[tuple[int, int, str]], bad: set[int]) -> None:
    """Each cell of memory holds the number of the anomaly that its NaN belongs to."""
    run = Run()
    memory: dict[int, Any] = {cell: f"outside {cell}" for cell in bad}
    anomalies: dict[Any, list[str]] = {}
    for number, (source, target, what) in enumerate(program):
        name = f"k{number}"
        given_nan = memory.get(source)
        values = BAD if given_nan is not None else FINE
        middle: dict[str, tuple[Any, Any]] = {
            "passes": (values, QUIET), "cleans": (FINE, QUIET), "births": (BAD, BORN),
        }  # fmt: skip
        after, born = middle[what]
        steps = [load(values), Step("math.log", after, (0,), born, rule="log"), store(1, after)]
        run.launch(name, steps, in_ptr0=source, out_ptr0=target)
        owners = [] if given_nan is None else [given_nan]
        if isinstance(given_nan, str):  # every kernel that loads it says so for itself
            owners = [("loaded", number)]
        if what == "births":
            owners.append(("born", number))
        stored = after is BAD
        for owner in owners:
            if stored:
                anomalies.setdefault(owner, []).append(name)
        if stored:
            # of several behind one store, the first in the kernel is followed
            memory[target] = owners[0]
        else:
            memory.pop(target, None)
    found = {
        (one.verdict, int(one.kernel[1:])): [entry["kernel"] for entry in one.details["passed"]]
        for one in run.anomalies()
    }
    kernels = {owner: list(dict.fromkeys(names)) for owner, names in found.items()}
    assert kernels == anomalies
