"""The report a person reads, and the same as JSON (docs/report-schema.md).

Both are plain functions of their arguments: no terminal width, colour, time or machine goes in.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from typing import Any

import numpy as np

from ..analysis.coverage import Coverage
from ..analysis.totals import Totals, merged, stored
from ..records.model import Anomaly, Row
from ..records.table import FIELDS, SummaryTable

SCHEMA_VERSION = 2
DETAILS = ("module", "kernel", "statement")
STATEMENT_WIDTH = 60  # statements are cut to this in tables; the JSON report has them whole
MODULES_IN_HEADER = 3
ANOMALIES_LISTED = 20  # the rest is counted in one line
STEPS_LISTED = 3  # births, and kernels that were passed, in the line of a chain

_ALIGN_LEFT = ("module", "phase", "nan/inf", "line", "value", "op", "dtype", "mask", "statement")


def text(
    table: SummaryTable,
    anomalies: Sequence[Anomaly],
    coverage: Coverage,
    *,
    steps: int,
    detail: str = "kernel",
    hidden: Sequence[Anomaly] = (),
) -> str:
    """The report as text: anomalies, modules, kernels with their values, coverage.

    The first `ANOMALIES_LISTED` anomalies are listed, with at most three lines below each: what it
    is, its cause, and what it led to. The others are counted in one line.
    `detail`: "module" stops at modules, "kernel" lists of each kernel the values it stores and
    those with a finding, "statement" lists every value. `steps`: steps the table covers. `hidden`:
    findings that did not leave their kernel; they are counted in one line.

    Raises:
        ValueError: `detail` is none of `DETAILS`.
    """
    _check(detail)
    lines = [f"flagprism_torch report: {_count(steps, 'step')}, {_overview(table)}", ""]
    lines += _anomaly_lines(anomalies, hidden)
    lines += ["", "Modules: values that their kernels store", *_module_lines(table)]
    if detail != "module":
        chosen = "all values" if detail == "statement" else "stored values and findings (!)"
        lines += ["", f"Kernels: {chosen}", *_kernel_lines(table, anomalies, detail)]
    lines += ["", "Coverage", str(coverage)]
    return "\n".join(lines) + "\n"


def to_json(
    table: SummaryTable,
    anomalies: Sequence[Anomaly],
    coverage: Coverage,
    *,
    steps: int,
    detail: str = "statement",
    hidden: Sequence[Anomaly] = (),
) -> dict[str, Any]:
    """The report as JSON types, valid against `report.schema.json`; arguments as in `text`.

    `rows` has every value for "statement", stored values and findings for "kernel", findings only
    for "module". Floats that JSON cannot hold are the strings "NaN", "Infinity" and "-Infinity".
    """
    _check(detail)
    marked = _marked(anomalies)
    return {
        "schema_version": SCHEMA_VERSION,
        "steps": steps,
        "detail": detail,
        "anomalies": [_anomaly_json(anomaly) for anomaly in anomalies],
        "hidden": [_anomaly_json(anomaly) for anomaly in hidden],
        "modules": [
            {"module": module, "phase": phase, **_totals_json(merged(rows))}
            for (module, phase), rows in _by_module(table).items()
        ],
        "rows": [_row_json(row) for row in _chosen(table, marked, detail)],
        "coverage": _plain(coverage.to_dict()),
    }


def _check(detail: str) -> None:
    if detail not in DETAILS:
        raise ValueError(f"detail={detail!r} is not supported; allowed: {', '.join(DETAILS)}")


def _count(n: int, thing: str) -> str:
    return f"{n} {thing}" if n == 1 else f"{n} {thing}{'es' if thing.endswith('ch') else 's'}"


def _overview(table: SummaryTable) -> str:
    modules, kernels = len(table.modules()), len(table.kernels())
    return ", ".join(
        (_count(modules, "module"), _count(kernels, "kernel"), _count(len(table), "value"))
    )


# Anomalies


def _anomaly_lines(anomalies: Sequence[Anomaly], hidden: Sequence[Anomaly]) -> list[str]:
    lines = [f"Anomalies: {len(anomalies) or 'none'}"]
    for anomaly in anomalies[:ANOMALIES_LISTED]:
        below = (_detail(anomaly), _cause(anomaly), _then(anomaly))
        lines += [str(anomaly), *(f"     {line}" for line in below if line)]
    more = len(anomalies) - ANOMALIES_LISTED
    if more > 0:
        lines.append(f"and {more} more (in session.anomalies and the JSON report)")
    if hidden:
        lines.append(f"Hidden: {_count(len(hidden), 'chain')} that did not leave the kernel")
    return lines


def _detail(anomaly: Anomaly) -> str:
    steps = f"step {anomaly.step}"
    if anomaly.last_step != anomaly.step:
        steps = f"steps {anomaly.step} to {anomaly.last_step}, seen {anomaly.occurrences} times"
    variable = f" {anomaly.variable}" if anomaly.variable else ""
    c = anomaly.counts
    parts = [
        f"{anomaly.severity}, {steps}, {anomaly.phase}",
        f"{_name(anomaly.file)}:{anomaly.line} {anomaly.op}{variable}",
        f"live {c['live']} of {c['lanes']}",
    ]
    if anomaly.kind in ("nan", "inf"):
        parts[-1] = f"nan {c['nan']}, +inf {c['posinf']}, -inf {c['neginf']}, {parts[-1]}"
    if c["padding"]:
        parts[-1] += f", padding {c['padding']}"
    if not c["lanes"]:
        parts.pop()  # no lane was looked at
    if len(anomaly.modules) > 1:
        parts.append("owners " + ", ".join(anomaly.modules))
    return "; ".join(parts)


def _cause(anomaly: Anomaly) -> str:
    operands = "; ".join(_operand(operand) for operand in anomaly.operands)
    parts = [f"cause: {anomaly.cause}"] * bool(anomaly.cause)
    parts += [f"operands: {operands}"] * bool(operands)
    if "headroom" in anomaly.details:
        parts.append(f"wraps at {_number(anomaly.details['headroom'])}x this size")
    if "indexed_by" in anomaly.details:
        parts.append(f"indexed by: {', '.join(anomaly.details['indexed_by'])}")
    if "consumer" in anomaly.details:
        parts.append(f"used in: {anomaly.details['consumer']}")
    if "writer" in anomaly.details:
        parts.append(f"stored in: {anomaly.details['writer']}")
    return "; ".join(parts)


def _operand(operand: Mapping[str, Any]) -> str:
    """`tmp10 4752 finite, 48 -inf`; the range of an operand that is finite throughout."""
    if "live" not in operand:
        return str(operand["name"])
    counts = {
        "finite": operand["live"] - operand["nan"] - operand["posinf"] - operand["neginf"],
        "nan": operand["nan"],
        "inf": operand["posinf"],
        "-inf": operand["neginf"],
    }
    kinds = ", ".join(f"{n} {kind}" for kind, n in counts.items() if n) or "no live lane"
    if counts["finite"] == operand["live"] > 0:
        kinds += f" in [{_number(operand['min'])}, {_number(operand['max'])}]"
    return f"{operand['name']} {kinds}"


def _then(anomaly: Anomaly) -> str:
    """What a chain led to: later births, kernels it passed, where it is visible."""
    parts = []
    later = anomaly.births[1:]
    if later:
        parts.append(_listed([_birth(birth) for birth in later]))
    passed = dict.fromkeys(
        f"{entry['kernel']} ({entry['module']})"
        for entry in anomaly.details.get("passed", ())
        if entry["site"] != anomaly.site
    )
    if passed:
        parts.append(f"passed {_listed(list(passed))}")
    visible = anomaly.details.get("visible")
    if visible is not None:
        parts.append(
            f"visible in {visible['kernel']} ({visible['module']}): {visible['statement']}"
        )
    return f"then: {'; '.join(parts)}" if parts else ""


def _birth(birth: Anomaly) -> str:
    infinite = birth.counts["posinf"] + birth.counts["neginf"]
    lanes = infinite if birth.kind == "inf" else birth.counts["nan"]
    return f"{birth.kind} in {birth.statement} ({birth.cause}, {_count(lanes, 'lane')})"


def _listed(items: Sequence[str]) -> str:
    more = len(items) - STEPS_LISTED
    return ", ".join(items[:STEPS_LISTED]) + (f", +{more} more" if more > 0 else "")


def _marked(anomalies: Iterable[Anomaly]) -> set[tuple[str, str, int]]:
    found = (one for anomaly in anomalies for one in (anomaly, *anomaly.births))
    return {(one.site, one.kernel, one.op_id) for one in found}


def _is_marked(row: Row, marked: set[tuple[str, str, int]]) -> bool:
    return (row.site, row.kernel, row.op_id) in marked


# Tables


def _by_module(table: SummaryTable) -> dict[tuple[str, str], list[Row]]:
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in stored(table):
        groups.setdefault((row.module, row.phase), []).append(row)
    return groups


def _chosen(rows: Iterable[Row], marked: set[tuple[str, str, int]], detail: str) -> list[Row]:
    if detail == "statement":
        return list(rows)
    rows = list(rows)
    kept = {id(row) for row in stored(rows)} if detail == "kernel" else set()
    return [row for row in rows if id(row) in kept or _is_marked(row, marked)]


def _module_lines(table: SummaryTable) -> list[str]:
    lines = [
        {"module": module, "phase": phase, "values": str(len(rows)), **_cells(merged(rows))}
        for (module, phase), rows in _by_module(table).items()
    ]
    return _aligned(lines) or ["  none"]


def _kernel_lines(table: SummaryTable, anomalies: Sequence[Anomaly], detail: str) -> list[str]:
    marked = _marked(anomalies)
    launches: dict[tuple[str, int, str], list[Row]] = {}
    for row in table:
        launches.setdefault((row.kernel, row.call, row.site), []).append(row)
    lines = []
    for (kernel, call, site), rows in launches.items():
        modules = list(dict.fromkeys(row.module for row in rows))
        more = len(modules) - MODULES_IN_HEADER
        named = ", ".join(modules[:MODULES_IN_HEADER]) + (f" and {more} more" if more > 0 else "")
        lines.append(
            f"{kernel}.{call} | {rows[0].phase} | {named} | "
            f"{_count(rows[0].launches, 'launch')} | {_name(site)}"
        )
        values = [_value_cells(row, marked) for row in _chosen(rows, marked, detail)]
        lines += _aligned(values) or ["  no stored values"]
    return lines or ["  none"]


def _value_cells(row: Row, marked: set[tuple[str, str, int]]) -> dict[str, str]:
    cells = _cells(row)
    if row.inexact:
        cells["mean"] += "~"
    statement = row.statement
    if len(statement) > STATEMENT_WIDTH:
        statement = statement[: STATEMENT_WIDTH - 3] + "..."
    return {
        "": "!" if _is_marked(row, marked) else "",
        "line": f"L{row.line}",
        "value": row.variable or "-",
        "op": row.role if row.role != "value" else row.op.rpartition(".")[2],
        "dtype": row.dtype,
        "mask": row.mask,
        **cells,
        "statement": statement,
    }


def _cells(what: Row | Totals) -> dict[str, str]:
    bad = [
        f"{name} {n}"
        for name, n in (("nan", what.nan), ("+inf", what.posinf), ("-inf", what.neginf))
        if n
    ]
    return {
        "live": str(what.live),
        "nan/inf": ", ".join(bad) or "-",
        **{stat: _number(getattr(what, stat)) for stat in ("min", "max", "mean", "l2")},
    }


def _aligned(lines: Sequence[Mapping[str, str]]) -> list[str]:
    """A table with a heading, indented by two; numbers to the right. Empty for no lines."""
    if not lines:
        return []
    names = list(lines[0])
    table = [dict(zip(names, names, strict=True)), *lines]
    width = {name: max(len(line[name]) for line in table) for name in names}
    return [
        "  "
        + "  ".join(
            line[name].ljust(width[name]) if name in _ALIGN_LEFT else line[name].rjust(width[name])
            for name in names
        ).rstrip()
        for line in table
    ]


def _number(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, int) and abs(value) < 10**9:
        return str(value)
    return f"{value:.4g}"


def _name(path: str) -> str:
    return path.replace("\\", "/").rpartition("/")[2]


# JSON


def _plain(value: Any) -> Any:
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, Mapping):
        return {str(name): _plain(entry) for name, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(entry) for entry in value]
    return str(value)


def _row_json(row: Row) -> dict[str, Any]:
    result = {name: _plain(getattr(row, name)) for name in FIELDS}
    if row.first_nonfinite is not None:
        program, iteration, lane = row.first_nonfinite
        place = {"program": program, "iteration": iteration, "lane": lane}
        result["first_nonfinite"] = _plain(place)
    return result


def _anomaly_json(anomaly: Anomaly) -> dict[str, Any]:
    result = {field.name: _plain(getattr(anomaly, field.name)) for field in fields(Anomaly)}
    result["births"] = [_anomaly_json(birth) for birth in anomaly.births]
    return {"text": str(anomaly), **result}


def _totals_json(totals: Totals) -> dict[str, Any]:
    return {field.name: _plain(getattr(totals, field.name)) for field in fields(Totals)}
