"""Runs a case of tests/cases under a session and compares what the session says with what the case
expects. tests/cases/README.md explains the names that a case defines."""

from __future__ import annotations

import functools
import importlib.util
import sys
import warnings
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

import numpy as np
import torch
import torch._dynamo

import flagprism_torch
from flagprism_torch.records.model import Anomaly, Row
from flagprism_torch.session import Session

FOLDER = Path(__file__).parent / "cases"
TOLERANCE = 2e-6  # relative, of functions that NumPy and the backend may round differently
# Numbers of EXPECT that `Anomaly.details` must repeat under the same key.
DETAILS = (
    "undefined_lanes",
    "wrapped_lanes",
    "lost_additions",
    "saturated_lanes",
    "operand_lanes_not_tf32",
    "consumer",
    "argument",
    "shape",
    "strides",
    "writer",
    "launches",
    "benchmark_launches",
    "user_launches",
)
COUNTS = ("nan", "posinf", "neginf", "zero")


def names() -> list[str]:
    return sorted(path.stem for path in FOLDER.glob("[0-9]*.py"))


@functools.cache
def load(name: str) -> ModuleType:
    """The case of a file name or its number."""
    (path,) = FOLDER.glob(f"{name.partition('_')[0]}_*.py")
    module_name = f"case_{path.stem}"
    spec = importlib.util.spec_from_file_location(module_name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module  # where Dynamo and pickling look for it
    spec.loader.exec_module(module)
    return module


@dataclass(frozen=True)
class Run:
    """`plain`: outputs without a session, None for compiled cases."""

    session: Session
    out: Mapping[str, torch.Tensor]
    plain: Mapping[str, torch.Tensor] | None


@functools.cache
def run(name: str, device: str, addr_level: int = 1) -> Run:
    """One run of the case under a session, compiled if it is a model."""
    case = load(name)
    if case.MODE == "triton":
        plain = case.run(device)
        with flagprism_torch.debug(level=1, addr_level=addr_level, logdir=False) as session:
            return Run(session, case.run(device), plain)
    torch._dynamo.reset()
    built = case.build(device)
    with (
        mock.patch.object(case, "build", return_value=built),
        flagprism_torch.debug(
            level=1, addr_level=addr_level, logdir=False, model=built[0]
        ) as session,
    ):
        return Run(session, case.run(device, compile=True), None)


def expected(case: ModuleType, device: str) -> dict[str, Any]:
    """EXPECT, with what is different on a GPU."""
    return case.EXPECT | (getattr(case, "ON_GPU", {}) if device != "cpu" else {})


def oracle(case: ModuleType) -> dict[str, Any]:
    """oracle() of the case, {} without one; it may overflow on purpose."""
    if not hasattr(case, "oracle"):
        return {}
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        return case.oracle()


# -- outputs


def wrong_outputs(case: ModuleType, done: Run, device: str = "cpu") -> Iterator[str]:
    """Outputs against the oracle, the counts of EXPECT, and the run without a session."""
    outputs = oracle(case).get("out", {})
    if device != "cpu" and hasattr(case, "gpu_outputs"):
        outputs = outputs | case.gpu_outputs()
    for name, values in outputs.items():
        got, values = _array(done.out[name]), _array(values)
        if got.shape != values.shape or not np.allclose(
            got, values, rtol=1e-5, atol=1e-6, equal_nan=True
        ):
            yield f"{name} is {got.ravel()[:8]}, wanted {values.ravel()[:8]}"
    declared = dict(case.EXPECT.get("out", {}))
    if "compiled_cpu" in case.EXPECT and case.EXPECT["where"] != "cpp":
        declared["out"] = case.EXPECT["compiled_cpu"]
    for name, counts in declared.items():
        got = _array(done.out[name])
        found = {
            "nan": int(np.isnan(got).sum()),
            "inf": int(np.isinf(got).sum()),
            "zero": int((got == 0).sum()),
            "rows": sorted({int(i) for i in np.nonzero(~np.isfinite(got))[0]}),
        }
        yield from (
            f"{name}: {key} {found[key]}, wanted {count}"
            for key, count in counts.items()
            if key in found and found[key] != count
        )
    for name, values in (done.plain or {}).items():
        if _bits(values) != _bits(done.out[name]):
            yield f"{name} differs from the run without a session"


def _bits(tensor: torch.Tensor) -> bytes:
    return tensor.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes()


def _array(values: Any) -> np.ndarray:
    """Floats as float64, which is exact."""
    if isinstance(values, torch.Tensor):
        values = values.detach().cpu()
        values = values.double().numpy() if values.is_floating_point() else values.numpy()
    values = np.asarray(values)
    return values.astype(np.float64) if values.dtype.kind == "f" else values


# -- rows


def numbers(values: Any) -> dict[str, Any]:
    """The numbers of STATS: counts exactly, min and max over finite values."""
    data = _array(values)
    result: dict[str, Any] = {"count": int(data.size)}
    finite = data
    if data.dtype.kind == "f":
        finite = data[np.isfinite(data)]
        result |= {
            "nan": int(np.isnan(data).sum()),
            "posinf": int(np.isposinf(data).sum()),
            "neginf": int(np.isneginf(data).sum()),
        }
    return result | {
        "zero": int((finite == 0).sum()),
        "min": float(finite.min()) if finite.size else None,
        "max": float(finite.max()) if finite.size else None,
    }


def wrong_rows(case: ModuleType, table: Iterable[Row], index_left_out: bool) -> Iterator[str]:
    """The rows of each statement of STATS. `index_left_out`: the coverage names index arithmetic as
    left out, so a statement of integers may have no row.

    STATS counts all lanes, a row those that are live: equal where the mask is "all" or where the
    oracle says which lanes are live; otherwise a row holds a part of STATS.
    """
    stats = {statement: numbers(v) for statement, v in oracle(case).get("stats", {}).items()}
    for statement, everything in getattr(case, "STATS", stats).items():
        rows = _results(table, statement)
        if not rows:
            if not index_left_out or "nan" in everything:
                yield f"no row of {statement!r}"
            continue
        if sum(row.lanes for row in rows) != everything["count"]:
            yield f"{statement!r}: {[row.lanes for row in rows]} lanes of {everything['count']}"
        live = oracle(case).get("live", {}).get(statement)
        if live is not None:
            wanted = numbers(_array(oracle(case)["stats"][statement])[np.asarray(live, bool)])
            yield from _unequal(statement, rows, wanted, case)
        elif all(row.mask == "all" for row in rows):
            yield from _unequal(statement, rows, everything, case)
        else:
            yield from _beyond(statement, rows, everything, case)
    for row in table:
        if row.live == row.nonfinite and (row.mean, row.min, row.max) != (None, None, None):
            yield f"{row.statement!r}: a mean of nothing, {row.mean}"


def _results(table: Iterable[Row], statement: str) -> list[Row]:
    """The rows of what a statement computes in the end: of the last operation in it, one for each
    call site and variant of the kernel. Their op ids rise."""
    last: dict[Any, Row] = {}
    variant, before = 0, -1
    for row in table:
        variant += row.op_id <= before
        before = row.op_id
        if row.statement == statement:
            last[row.site, row.kernel, row.call, variant] = row
    return list(last.values())


def _merged(rows: list[Row]) -> dict[str, Any]:
    low = [row.min for row in rows if row.min is not None]
    high = [row.max for row in rows if row.max is not None]
    return {
        "count": sum(row.live for row in rows),
        **{key: sum(getattr(row, key) for row in rows) for key in COUNTS},
        "min": min(low) if low else None,
        "max": max(high) if high else None,
    }


def _unequal(
    statement: str, rows: list[Row], wanted: Mapping[str, Any], case: ModuleType
) -> Iterator[str]:
    got = _merged(rows)
    tolerance = getattr(case, "RTOL", TOLERANCE)
    for key, value in wanted.items():
        close = key in ("min", "max") and None not in (value, got[key])
        if (
            not np.isclose(got[key], value, rtol=tolerance, atol=1e-30)
            if close
            else got[key] != value
        ):
            yield f"{statement!r}: {key} {got[key]}, wanted {value}"


def _beyond(
    statement: str, rows: list[Row], limits: Mapping[str, Any], case: ModuleType
) -> Iterator[str]:
    got = _merged(rows)
    tolerance = getattr(case, "RTOL", TOLERANCE)
    for key in ("count", *COUNTS):
        if got[key] > limits.get(key, 0):
            yield f"{statement!r}: {key} {got[key]} of {limits.get(key, 0)}"
    for key, sign in (("min", -1), ("max", 1)):
        if got[key] is None:
            continue
        limit = limits[key]
        if limit is None or sign * (got[key] - limit) > tolerance * abs(limit):
            yield f"{statement!r}: {key} {got[key]} beyond {limit}"


# -- verdicts


def wrong_verdicts(
    expect: Mapping[str, Any], anomalies: tuple[Anomaly, ...], table: Iterable[Row]
) -> Iterator[str]:
    """`session.anomalies` and `session.table()` against EXPECT."""
    if expect["verdict"] in ("healthy", "info"):
        yield from (f"reported: {anomaly}" for anomaly in anomalies)
        return
    if not anomalies:
        yield "nothing reported"
        return
    # one anomaly per causal chain
    if "further" in expect:
        yield from _compare("further anomalies", len(anomalies) - 1, len(expect["further"]))
        for wanted, found in zip(expect["further"], anomalies[1:], strict=False):
            yield from _wrong_births(wanted, found)
    else:
        yield from _compare("further anomalies", [a.statement for a in anomalies[1:]],
                            [expect["also"]] if "also" in expect else [])  # fmt: skip
    chain = anomalies[0]
    kind = expect["anomaly"]
    if kind not in ("nan", "inf"):
        yield from _wrong_finding(expect, chain)
    elif expect.get("op") == "tt.load":
        yield from _wrong_loaded(expect, chain, table)
    else:
        yield from _wrong_births(expect, chain)
    if "compiled_first" in expect:
        largest = max(row.max for row in table if row.max is not None)
        yield from _compare("largest finite value", largest,
                            expect["compiled_first"]["max_before_cast"])  # fmt: skip
    for module, nan in expect.get("forward_nan", {}).items():
        last = [
            row.nan
            for row in table
            if row.op == "extern" and row.module == module and row.phase == "forward"
        ]
        yield from _compare(f"NaN that leave {module}", last[-1:], [nan])


def _births(chain: Anomaly, kind: str) -> list[Anomaly]:
    return [birth for birth in chain.births or (chain,) if birth.kind == kind]


def _wrong_births(expect: Mapping[str, Any], chain: Anomaly) -> Iterator[str]:
    """The first inf and the first NaN of a chain."""
    main = expect["anomaly"]
    other = "inf" if main == "nan" else "nan"
    births = {kind: _births(chain, kind)[:1] for kind in (main, other)}
    wanted = {main: dict(expect)}
    if f"{other}_op" in expect:
        keys = ("statement", "op", "module", "aten", "cause")
        given = {k: expect[f"{other}_{k}"] for k in keys if f"{other}_{k}" in expect}
        wanted[other] = {k: expect[k] for k in ("kernel",) if k in expect} | given
    for later in expect.get("later", ()):
        wanted[later["anomaly"]] = dict(later)
    if "compiled_first" in expect:
        compiled = expect["compiled_first"]
        wanted[main] |= {k: compiled[k] for k in ("module", "op")} | {"inf_count": compiled["inf"]}
    for kind, place in wanted.items():
        count = f"{kind}_count"
        if count in expect:
            place[count] = expect[count]
        per_module = expect.get("eager", {}).get(place.get("module"))
        if count not in place and isinstance(per_module, Mapping):
            place[count] = per_module[kind]
        if not births[kind]:
            yield f"no {kind} in {[f'{b.kind} {b.statement}' for b in chain.births]}"
            continue
        birth = births[kind][0]
        yield from _compare(f"{kind}: verdict", birth.verdict, "born")
        yield from _wrong_place(kind, birth, place)
        if count in place:
            found = birth.counts["nan"]
            if kind == "inf":
                found = birth.counts["posinf"] + birth.counts["neginf"]
            yield from _compare(f"{kind}: lanes", found, place[count])
        if kind == main and "padding_count" in expect:
            yield from _compare("padding", birth.counts["padding"], expect["padding_count"])
        if birth.module in expect.get("healthy_modules", ()):
            yield f"{birth.module} is healthy"
    if other not in wanted:
        yield from (f"born too: {birth}" for birth in births[other])


def _wrong_loaded(expect: Mapping[str, Any], chain: Anomaly, table: Iterable[Row]) -> Iterator[str]:
    yield from _compare("verdict", chain.verdict, "loaded")
    yield from _compare("kind", chain.kind, "nan")
    yield from _wrong_place("nan", chain, expect)
    yield from _compare("nan: lanes", chain.counts["nan"], expect["nan_count"])
    if "argument" in expect:
        yield from _compare("argument", chain.details.get("argument"), expect["argument"])
    if "nan_statement" in expect:  # it hands the loaded NaN on
        passed = [row.nan for row in _results(table, expect["nan_statement"])]
        yield from _compare(expect["nan_statement"], passed, [expect["nan_count"]])


def _wrong_finding(expect: Mapping[str, Any], found: Anomaly) -> Iterator[str]:
    """Trouble that no NaN and no infinity shows."""
    yield from _compare("kind", found.kind, expect["anomaly"])
    yield from _wrong_place(found.kind, found, expect)
    for key in DETAILS:
        if key in expect:
            yield from _compare(key, found.details.get(key), expect[key])


def _wrong_place(kind: str, found: Anomaly, wanted: Mapping[str, Any]) -> Iterator[str]:
    for key in ("kernel", "statement", "op", "module", "cause"):
        if key in wanted:
            yield from _compare(f"{kind}: {key}", getattr(found, key), wanted[key])
    if "aten" in wanted:
        yield from _compare(f"{kind}: aten", found.aten, f"aten.{wanted['aten'].partition('.')[0]}")
    if "phase_first_seen" in wanted:
        yield from _compare(f"{kind}: phase", found.phase, wanted["phase_first_seen"])
    if "first" in wanted:
        first = {"iteration": 0, **wanted["first"]}
        got = {key: getattr(found, key) for key in first}
        yield from _compare(f"{kind}: first", got, first)
    if "nan_per_run" in wanted:  # run k is launch k
        bad = next(k for k, nan in enumerate(wanted["nan_per_run"]) if nan)
        yield from _compare(f"{kind}: launch", found.launch, bad)


def _compare(what: str, got: Any, wanted: Any) -> Iterator[str]:
    if got != wanted:
        yield f"{what} {got!r}, wanted {wanted!r}"
