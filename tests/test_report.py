"""The reports: text against golden files (FLAGPRISM_ACCEPT=1 accepts), JSON against its schema."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from oracle import block_of, entry_of

from flagprism_torch.analysis import join
from flagprism_torch.analysis.coverage import Coverage
from flagprism_torch.analysis.verdicts import AnomalyLog
from flagprism_torch.exporters import report
from flagprism_torch.records.model import (
    Anomaly,
    Block,
    CallSite,
    CheckEntry,
    Found,
    Operand,
    Origin,
    StatementOrigin,
)
from flagprism_torch.records.table import SummaryTable

GOLDEN = Path(__file__).parent / "golden"
SCHEMA = Path(report.__file__).with_name("report.schema.json")
F32 = np.float32


def _golden(name: str, got: str) -> None:
    path = GOLDEN / name
    if os.environ.get("FLAGPRISM_ACCEPT") == "1":
        path.write_text(got)
    assert got == path.read_text(), f"{path.name} differs; accept with FLAGPRISM_ACCEPT=1"


def _softmax(call: int, module: str, launch: int, scores: Any) -> Block:
    scores = np.array(scores, F32)
    with np.errstate(invalid="ignore", over="ignore"):
        shifted = scores - scores.max()
        weights = np.exp(shifted)
    softmax = StatementOrigin(
        module, (module, "layers.9.other"), "aten._softmax", "/home/user/model.py", 88, "forward"
    )
    origin = Origin(
        module="layers",
        phase="forward",
        aten=("aten.mm",),
        source="recorded",
        statements={"tmp10": softmax, "tmp12": softmax, "out_ptr0": softmax},
    )
    kernel = "triton_per_fused__softmax_2"
    place = {"file": "/tmp/torchinductor/abc/triton_per.py"}
    load = {"role": "load", "pointer": "in_ptr0", "variable": "tmp0", "reaches": (0, 1, 2)}
    store = {"role": "store", "pointer": "out_ptr0", "variable": "tmp13", "histogram": 0}
    long = "tl.store(out_ptr0 + (r0_1 + 128*x0 + 4096*ks0), tmp13, rmask & xmask, other=None)"
    block = block_of(
        [
            (entry_of(0, "tt.load", scores, "fp32", **place, **load), scores, None),
            (
                entry_of(
                    *(1, "arith.subf", shifted, "fp32"),
                    **place,
                    variable="tmp12",
                    statement="tmp12 = tmp10 - tmp11",
                    reaches=(1, 2),
                ),
                shifted,
                None,
            ),
            (
                entry_of(2, "tt.store", weights, "fp32", **place, **store, statement=long),
                weights,
                None,
            ),
        ],
        kernel=kernel,
        site=CallSite(f"/tmp/wrapper.py:{100 + call}", kernel, call, origin),
        launch=launch,
    )
    born = int(np.isnan(shifted).sum())
    place_of_nan = (launch, (0, 0, 0), 0, int(np.isnan(shifted).argmax()), 2)
    found = Found(born, 0, 0, 0, place_of_nan) if born else None
    return _checked(block, 1, "sub", (Operand("tmp10", 0), Operand("tmp11")), found)


def _checked(
    block: Block, op_id: int, rule: str, operands: tuple[Operand, ...], found: Found | None
) -> Block:
    """The block with a check of one of its values."""
    e = block.table.ops[op_id]
    check = CheckEntry(
        *("birth", rule, e.op, e.dtype, e.shape, "needed", e.file, e.line, e.variable, e.statement),
        operands=operands,
        op_id=op_id,
        reaches=e.reaches,
    )
    return replace(
        block,
        table=replace(block.table, checks=(check,)),
        found={} if found is None else {0: found},
    )


def _overflow() -> Block:
    x = np.array([90.0, 0.5, -3.0], F32)
    with np.errstate(over="ignore"):
        y = np.exp(x)
    store = entry_of(2, "tt.store", y, "fp32", role="store", pointer="out_ptr0", variable="tmp1")
    values = [
        (entry_of(0, "tt.load", x, "fp32", role="load", pointer="in_ptr0"), x, None),
        (
            entry_of(
                1, "math.exp", y, "fp32", statement="tmp1 = libdevice.exp(tmp0)", reaches=(1, 2)
            ),
            y,
            None,
        ),
        (store, y, None),
    ]
    origin = Origin("head", ("head",), "backward", ("aten.exp",), "/home/user/model.py", 9)
    block = block_of(values, kernel="triton_poi_fused_exp_0", origin=origin, launch=9)
    found = Found(0, 1, 0, 0, None, (9, (0, 0, 0), 0, 0, 0))
    return _checked(block, 1, "exp", (Operand("tmp0", 0),), found)


def _integers() -> Block:
    values = np.array([2**53, 1, 7])
    entry = entry_of(
        0, "tt.store", values, "int64", role="store", variable=None, mask="unknown", line=3
    )
    return block_of([(entry, values, None)], kernel="count_kernel", origin=Origin())


def _contents() -> tuple[SummaryTable, tuple[Anomaly, ...], Coverage]:
    blocks = [
        _softmax(0, "layers.0.attn", 4, [1.0, 2.0, 3.0]),
        _softmax(1, "layers.1.attn", 7, [1.0, np.inf, -np.inf]),
        _overflow(),
        _integers(),
    ]
    log = AnomalyLog()
    for step in (0, 1):
        log.add(step, blocks)
    coverage = Coverage()
    for name in ("triton_per_fused__softmax_2", "triton_poi_fused_exp_0", "count_kernel"):
        coverage.saw(name)
        coverage.instrumented(name)
    coverage.passed("triton_mm", "benchmark")
    coverage.left_out("count_kernel", "max_values", 2)
    coverage.extern("aten.addmm", 12)
    coverage.provenance("recorded", 2)
    coverage.launches(6)
    coverage.note("a remark")
    return SummaryTable(join.rows(None, blocks)), log.anomalies(), coverage


@pytest.mark.parametrize("detail", report.DETAILS)
def test_text(detail: str) -> None:
    table, anomalies, coverage = _contents()
    assert [one.kind for one in anomalies] == ["nan", "inf"]
    got = report.text(table, anomalies, coverage, detail=detail, steps=2)
    _golden(f"report_{detail}.txt", got)


def test_text_without_anything() -> None:
    got = report.text(SummaryTable(), (), Coverage(), steps=0)
    _golden("report_empty.txt", got)


def test_text_of_a_chain() -> None:
    """At most three lines under an anomaly, whatever it led to."""
    table, anomalies, coverage = _contents()
    nan, inf = anomalies
    others = [replace(inf, statement=f"tmp{n} = x") for n in range(5)]
    passed = [
        {"kernel": f"k{n}", "module": "m", "site": "elsewhere", "role": "store", "statement": "s"}
        for n in range(9)
    ]
    chain = replace(
        nan,
        births=(nan, *others),
        operands=({"name": "0.0"}, *nan.operands),
        details={**nan.details, "passed": tuple(passed), "visible": passed[-1]},
    )
    got = report.text(table, (chain,), coverage, steps=1, detail="module", hidden=anomalies)
    lines = got.splitlines()
    start = lines.index("Anomalies: 1")
    assert lines[start + 1] == str(chain)
    assert [line[:5] for line in lines[start + 2 : start + 6]] == [" " * 5] * 3 + ["Hidde"]
    assert lines[start + 3] == (
        "     cause: inf - inf; operands: 0.0; tmp10 1 finite, 1 inf, 1 -inf; tmp11"
    )
    overflow = "(exp overflows fp32, 1 lane)"
    assert lines[start + 4] == (
        f"     then: inf in tmp0 = x {overflow}, inf in tmp1 = x {overflow}, inf in tmp2 = x "
        f"{overflow}, +2 more; passed k0 (m), k1 (m), k2 (m), +6 more; visible in k8 (m): s"
    )
    assert lines[start + 5] == "Hidden: 2 chains that did not leave the kernel"
    plain = replace(nan, operands=(), cause="", births=(), details={})
    lines = report.text(table, (plain,), coverage, steps=1, detail="module").splitlines()
    assert lines[lines.index("Anomalies: 1") + 3] == ""


def test_operands_that_are_finite_throughout_have_a_range() -> None:
    table, (_, inf), coverage = _contents()
    got = report.text(table, (inf,), coverage, steps=1, detail="module")
    assert "cause: exp overflows fp32; operands: tmp0 3 finite in [-3, 90]" in got
    empty = {**inf.operands[0], "live": 0, "min": None, "max": None}
    got = report.text(table, (replace(inf, operands=(empty,)),), coverage, steps=1)
    assert "operands: tmp0 no live lane" in got


def test_text_lists_the_first_anomalies_and_counts_the_rest() -> None:
    table, anomalies, coverage = _contents()
    limit = report.ANOMALIES_LISTED
    many = tuple(replace(anomalies[0], op_id=n, statement=f"x{n} = y") for n in range(limit + 3))
    for count, closing in (
        (limit, []),
        (limit + 3, ["and 3 more (in session.anomalies and the JSON report)"]),
    ):
        shown = report.text(table, many[:count], coverage, steps=1, detail="module").splitlines()
        start = shown.index(f"Anomalies: {count}") + 1
        assert shown[start : start + 4 * limit : 4] == [str(entry) for entry in many[:limit]]
        assert shown[
            start + 4 * limit : shown.index("Modules: values that their kernels store")
        ] == [
            *closing,
            "",
        ]
    got = report.to_json(table, many, coverage, steps=1)
    assert len(got["anomalies"]) == limit + 3


def test_text_does_not_depend_on_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    table, anomalies, coverage = _contents()
    wide = report.text(table, anomalies, coverage, steps=2)
    monkeypatch.setenv("COLUMNS", "20")
    assert report.text(table, anomalies, coverage, steps=2) == wide
    assert all(line == line.rstrip() for line in wide.splitlines())


def _strict(text: str) -> Any:
    def refuse(token: str) -> None:
        raise AssertionError(f"{token} is not JSON")

    return json.loads(text, parse_constant=refuse)


@pytest.mark.parametrize("detail", report.DETAILS)
def test_json_meets_its_schema(detail: str) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    schema = json.loads(SCHEMA.read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    table, anomalies, coverage = _contents()
    got = report.to_json(table, anomalies, coverage, detail=detail, steps=2, hidden=anomalies)
    assert _strict(json.dumps(got)) == got
    validator = jsonschema.Draft202012Validator(schema)
    validator.validate(got)
    for broken in (
        {**got, "schema_version": 1},
        {**got, "extra": 1},
        {key: value for key, value in got.items() if key != "rows"},
        {**got, "modules": [{**got["modules"][0], "live": -1}]},
        {**got, "anomalies": [{**got["anomalies"][0], "severity": "fatal"}]},
        {**got, "anomalies": [{**got["anomalies"][0], "verdict": "guessed"}]},
        {**got, "anomalies": [{**got["anomalies"][0], "operands": [{"live": 1}]}]},
        {**got, "hidden": [{**got["anomalies"][0], "details": {"stored_nan": 1}}]},
    ):
        assert not validator.is_valid(broken)


def test_json_of_nothing_meets_its_schema() -> None:
    jsonschema = pytest.importorskip("jsonschema")
    got = report.to_json(SummaryTable(), (), Coverage(), steps=0)
    jsonschema.validate(got, json.loads(SCHEMA.read_text()))


def test_json_values() -> None:
    table, anomalies, coverage = _contents()
    got = report.to_json(table, anomalies, coverage, steps=2)
    for detail, count in (("module", 2), ("kernel", 6), ("statement", 10)):
        rows = report.to_json(table, anomalies, coverage, steps=2, detail=detail)["rows"]
        assert len(rows) == count
    assert got["anomalies"][0]["text"] == str(anomalies[0])
    assert got["anomalies"][0]["counts"]["nan"] == anomalies[0].counts["nan"]
    by_op = {(row["kernel"], row["call"], row["op_id"]): row for row in got["rows"]}
    integers = by_op["count_kernel", 0, 0]
    assert (integers["max"], integers["inexact"]) == (2**53, True)
    bad = by_op["triton_per_fused__softmax_2", 1, 1]
    assert bad["first_nonfinite"] == {"program": [0, 0, 0], "iteration": 0, "lane": 0}
    names = [module["module"] for module in got["modules"]]
    assert names == ["layers.0.attn", "layers.1.attn", "head", "<none>"]
    assert got["coverage"] == coverage.to_dict()


def test_json_turns_what_it_cannot_hold_into_strings() -> None:
    array = np.array([1.7e308, 1.7e308])
    entry = entry_of(0, "tt.store", array, "fp64", role="store")
    rows = SummaryTable(join.rows(0, [block_of([(entry, array, None)])]))
    got = report.to_json(rows, (), Coverage(), steps=1)
    assert got["rows"][0]["l2"] == "Infinity"
    assert got["rows"][0]["mean"] is None
    assert got["modules"][0]["l2"] == "Infinity"
    _strict(json.dumps(got))


def test_wrong_detail() -> None:
    for build in (report.text, report.to_json):
        with pytest.raises(ValueError, match="'all'"):
            build(SummaryTable(), (), Coverage(), detail="all", steps=0)
