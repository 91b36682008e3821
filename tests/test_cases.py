"""The case set: small programs with a known defect, or with what only looks like one, and the
answer that a session must give. What a case defines: tests/cases/README.md."""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
import torch
import torch._dynamo
from case_runs import (
    load,
    names,
    numbers,
    oracle,
    run,
    wrong_outputs,
    wrong_rows,
    wrong_verdicts,
)
from triton_versions import OWN, run_child

import flagprism_torch.backends.cpu as cpu
from flagprism_torch.records.model import Anomaly

NAMES = names()

# Verdicts that no session gives yet: number of the case -> what is missing. An entry whose case
# passes fails the suite.
ADDRESSES = "needs records of addresses"
COMPARED = "needs a comparison of eager and compiled runs"
NOT_YET: dict[str, str] = {
    "24": ADDRESSES,
    "25": ADDRESSES,
    "31": ADDRESSES,
    "36": "needs a split reduction: Inductor's Triton code of this size stays finite",
    "37": COMPARED,
    "44": COMPARED,
}


@pytest.fixture(scope="module", autouse=True)
def inductor() -> Iterator[None]:
    assert cpu.enable_cpu()
    yield
    torch._dynamo.reset()
    cpu.disable_cpu()


# what Inductor writes is the same under every Triton
PARAMS = [pytest.param(name, marks=[pytest.mark.slow] * ("compile" in name)) for name in NAMES]


@pytest.fixture(scope="module", params=PARAMS)
def name(request: pytest.FixtureRequest) -> str:
    """Each case; of this scope, so that the tests of a case run one after another."""
    return request.param


def number(name: str) -> str:
    return name.partition("_")[0]


def test_verdict(name: str, request: pytest.FixtureRequest) -> None:
    if number(name) in NOT_YET:
        reason = NOT_YET[number(name)]
        request.applymarker(pytest.mark.xfail(strict=True, reason=reason))
    expect, session = load(name).EXPECT, run(name, "cpu").session
    assert list(wrong_verdicts(expect, session.anomalies, session.table())) == []
    assert [hidden.statement for hidden in session.hidden] == expect.get("hidden", [])


@pytest.mark.parametrize("loaded", [name for name in NAMES if hasattr(load(name), "LOADED")])
def test_loaded(loaded: str) -> None:
    """Without addresses, which tell more."""
    session = run(loaded, "cpu", addr_level=0).session
    assert list(wrong_verdicts(load(loaded).LOADED, session.anomalies, session.table())) == []


@pytest.mark.slow
def test_kernels_as_on_a_gpu(tmp_path: Path) -> None:
    """What ON_GPU says of compiled cases, without a GPU."""
    differ = [n for n in NAMES if load(n).MODE == "compile" and hasattr(load(n), "ON_GPU")]
    script, cache = Path(__file__).with_name("cases_as_on_gpu.py"), str(tmp_path)
    wrong = run_child(OWN.version, script, *differ, env={"TORCHINDUCTOR_CACHE_DIR": cache})
    assert wrong == {name: [] for name in differ} and differ


def test_rows(name: str) -> None:
    session = run(name, "cpu").session
    table = session.table()
    assert [row.statement for row in table if row.mask == "unknown"] == []
    if number(name) == "28":
        return  # its STATS count launches of the autotuner too, which are not recorded
    left_out = {entry["reason"] for entry in session.coverage.to_dict()["left_out"]}
    assert list(wrong_rows(load(name), table, "index arithmetic" in left_out)) == []


def test_outputs(name: str) -> None:
    case, done = load(name), run(name, "cpu")
    assert list(wrong_outputs(case, done)) == []
    if hasattr(case, "verify"):
        eager_only = case.EXPECT.get("where") in ("eager", "cpp")
        case.verify(case.run("cpu") if eager_only else done.out)


def test_not_yet_names_cases() -> None:
    assert NOT_YET.keys() <= {number(name) for name in NAMES}


def test_case_is_sound(name: str) -> None:
    """STATS is what the oracle says, and EXPECT names statements that exist once."""
    case = load(name)
    assert "\n" not in (case.__doc__ or "\n")
    stats = oracle(case).get("stats", {})
    declared = getattr(case, "STATS", {})
    assert declared.keys() in (stats.keys(), set())
    for statement, wanted_numbers in declared.items():
        found = numbers(stats[statement])
        for key, wanted in wanted_numbers.items():
            value = found[key]
            close = key in ("min", "max") and value is not None
            assert np.isclose(value, wanted, rtol=1e-6) if close else value == wanted, statement
    for key, naive in (("naive_nan", np.isnan), ("naive_inf", np.isinf)):
        for statement, count in case.EXPECT.get(key, {}).items():
            if statement in stats:
                assert naive(stats[statement]).sum() == count, statement
    if "kernel" not in case.EXPECT:
        return
    source = inspect.getsource(getattr(case, case.EXPECT["kernel"]).fn)
    for key, statement in case.EXPECT.items():
        if re.search(r"statement$|^(consumer|also|writer|discarded_by)$", key):
            found = re.findall(rf"^ +{re.escape(statement)}( +#.*)?$", source, re.MULTILINE)
            assert len(found) == 1, statement


# -- the comparison itself: it accepts the right answer and notices each wrong field


def answer(**fields: Any) -> Anomaly:
    base: dict[str, Any] = dict.fromkeys(f.name for f in dataclasses.fields(Anomaly))
    counts = dict.fromkeys(("lanes", "live", "padding", "nan", "posinf", "neginf"), 0)
    base |= {"verdict": "born", "iteration": 0, "births": (), "details": {}, "operands": ()}
    return Anomaly(**base | fields | {"counts": MappingProxyType(counts | fields["counts"])})


SOFTMAX = answer(
    kind="nan", kernel="row_softmax", statement="shifted = logit - top", op="arith.subf",
    cause="inf - inf",
    program=(3, 0, 0), lane=0, counts={"nan": 64, "padding": 16},
)  # fmt: skip
OVERFLOW = answer(
    kind="inf", kernel="gated_keys", statement="eg = tl.exp(c)", op="math.exp",
    cause="exp overflows fp32",
    program=(0, 0, 0), lane=(0, 0), counts={"posinf": 12},
)  # fmt: skip
PRODUCT = answer(
    kind="nan", kernel="gated_keys", statement="kg = k * eg", op="arith.mulf",
    cause="0 * inf",
    program=(0, 0, 0), lane=(2, 1), counts={"nan": 1},
)  # fmt: skip
DIVISION = answer(
    kind="inf", kernel="triton_per_0", module="blocks.1", aten="aten.div", cause="x / 0",
    counts={"posinf": 4},
)  # fmt: skip
DIFFERENCE = answer(
    kind="nan", kernel="triton_per_0", module="blocks.2", aten="aten.sub", counts={"nan": 4},
)  # fmt: skip
UNDEFINED = answer(
    kind="undefined_lanes", kernel="row_max", op="tt.load", program=(0, 0, 0), lane=13,
    statement="x = tl.load(x_ptr + row * n + cols, mask=cols < n)", counts={},
    details={"undefined_lanes": 12, "consumer": "top = tl.max(x, axis=0)"},
)  # fmt: skip
GATHERED = answer(
    kind="nan", verdict="loaded", kernel="gather_table", op="tt.load", program=(2, 0, 0), lane=0,
    statement="v = tl.load(tab_ptr + idx * D + d)", counts={"nan": 24},
    details={"argument": "tab_ptr"},
)  # fmt: skip


def chain(*births: Anomaly) -> Anomaly:
    return dataclasses.replace(births[0], births=births)


def replaced(anomaly: Anomaly, field: str) -> Anomaly:
    """`anomaly` with another value of the field, count or detail."""
    if field in anomaly.counts:
        counts = MappingProxyType({**anomaly.counts, field: anomaly.counts[field] + 1})
        return dataclasses.replace(anomaly, counts=counts)
    if field in anomaly.details:
        return dataclasses.replace(anomaly, details={**anomaly.details, field: "else"})
    other = "else" if isinstance(getattr(anomaly, field), str) else 7777
    return dataclasses.replace(anomaly, **{field: other})


RIGHT = [
    (
        "01",
        "EXPECT",
        [SOFTMAX],
        "kernel statement op program lane iteration nan padding verdict cause",
    ),
    ("04", "EXPECT", [OVERFLOW, PRODUCT], "kernel statement op program lane posinf verdict"),
    ("04", "EXPECT", [PRODUCT, OVERFLOW], "kernel statement op nan verdict"),
    ("35", "EXPECT", [DIVISION, DIFFERENCE], "module aten posinf"),
    ("35", "EXPECT", [DIFFERENCE, DIVISION], "module aten nan"),
    ("08", "EXPECT", [UNDEFINED], "kernel statement op program lane undefined_lanes consumer"),
    ("18", "LOADED", [GATHERED], "kernel statement op program lane nan verdict argument"),
]


@pytest.mark.parametrize(("which_case", "which", "births", "fields"), RIGHT)
def test_comparison(which_case: str, which: str, births: list[Anomaly], fields: str) -> None:
    case = load(which_case)
    expect = getattr(case, which)
    table = run(case.__name__.removeprefix("case_"), "cpu").session.table()
    assert list(wrong_verdicts(expect, (chain(*births),), table)) == []
    for field in fields.split():
        changed = replaced(births[0], field)
        assert list(wrong_verdicts(expect, (chain(changed, *births[1:]),), table)), field
    assert list(wrong_verdicts(expect, (), table)) == ["nothing reported"]
    assert list(wrong_verdicts(expect, (chain(*births), births[0]), table))
    healthy = load("50").EXPECT
    assert list(wrong_verdicts(healthy, (chain(*births),), table))


def test_comparison_of_rows() -> None:
    """A row that is off by one lane, or an extreme that is off, is noticed."""
    for known in ("06_block_quant_zero_block", "01_softmax_masked_row"):
        case, rows = load(known), list(run(known, "cpu").session.table())
        assert list(wrong_rows(case, rows, False)) == []
        at = next(i for i, row in enumerate(rows) if row.statement in case.STATS)
        for field in ("lanes", "live", "nan", "zero", "max"):
            row = rows[at]
            more = 400 + (getattr(row, field) or 0)
            changed = dataclasses.replace(row, **{field: more})
            assert list(wrong_rows(case, [*rows[:at], changed, *rows[at + 1 :]], False)), field
