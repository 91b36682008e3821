"""README and docs against the code: examples run, links lead somewhere, names and numbers hold."""

from __future__ import annotations

import inspect
import json
import os
import re
import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

import flagprism_torch
from flagprism_torch.analysis import verdicts
from flagprism_torch.config import Config
from flagprism_torch.exporters import report, tensorboard
from flagprism_torch.hooks import collector
from flagprism_torch.instrument import twin
from flagprism_torch.records import layout, ledger
from flagprism_torch.records.model import Anomaly
from flagprism_torch.records.table import FIELDS, SummaryTable

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])
NAMES = [page.relative_to(ROOT).as_posix() for page in PAGES]
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.M | re.S)


def _text(name: str) -> str:
    return (ROOT / name).read_text()


def _prose(name: str) -> str:
    return re.sub(r"\s+", " ", BLOCK.sub("", _text(name)))


def _python_blocks() -> list[tuple[str, str]]:
    return [
        (name, code)
        for name in NAMES
        for kind, code in BLOCK.findall(_text(name))
        if kind == "python"
    ]


def _column(name: str, after: str, column: int = 0) -> list[str]:
    """Names in backticks in a column of the first table behind `after`."""
    lines = _text(name).partition(after)[2].splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("|---"))
    found: list[str] = []
    for line in lines[start + 1 :]:
        if not line.startswith("|"):
            break
        found += re.findall(r"`([^`]+)`", line.split("|")[column + 1])
    return found


@pytest.mark.slow
def test_python_in_the_pages_runs(tmp_path: Path) -> None:
    blocks = _python_blocks()
    assert [name for name, _ in blocks] == ["README.md"]
    for name, code in blocks:
        script = tmp_path / f"{Path(name).stem}.py"
        script.write_text(code)
        paths = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
        done = subprocess.run(
            [sys.executable, script],
            env={**os.environ, "PYTHONPATH": paths},
            cwd=tmp_path,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout.startswith("flagprism_torch report: 3 steps, 2 modules")
        assert "Anomalies: none" in done.stdout
        assert re.search(r"^1 forward tl\.store\(.* 128 0 -0\.\d+ ", done.stdout, re.M)
        assert list((tmp_path / "runs" / "first").glob("events.out.tfevents.*"))


def _anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.*)$", BLOCK.sub("", page.read_text()), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("name", NAMES)
def test_links_lead_somewhere(name: str) -> None:
    text = re.sub(r"`[^`\n]*`", "", BLOCK.sub("", _text(name)))
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        file, _, anchor = target.partition("#")
        assert "://" not in target, f"{name}: {target} cannot be checked"
        page = (ROOT / name).parent / file if file else ROOT / name
        assert page.exists(), f"{name}: {target}"
        assert not anchor or anchor in _anchors(page), f"{name}: {target}"


@pytest.mark.parametrize("name", NAMES)
def test_paths_exist(name: str) -> None:
    """What looks like a path of the repository is one; `room/file.py` is in the package."""
    tops = r"(?:flagprism_torch|tests|examples|benchmarks|docs|requirements)"
    text = _text(name)
    for path in re.findall(rf"(?<![\w./<]){tops}/[\w./-]*\w", text):
        assert (ROOT / path).exists(), f"{name}: {path}"
    rooms = "|".join(p.name for p in (ROOT / "flagprism_torch").iterdir() if p.is_dir())
    for path in re.findall(rf"(?<![\w./])(?:{rooms})/\w+\.(?:py|h|cpp|json)\b", text):
        assert (ROOT / "flagprism_torch" / path).exists(), f"{name}: {path}"


def test_signature_of_debug() -> None:
    written = re.search(
        r"flagprism_torch\.debug\((.*?)\) -> Session", _text("docs/contract.md"), re.S
    )
    assert written is not None
    scope: dict[str, Any] = {}
    exec(f"def documented({written[1]}): pass", scope)
    real = inspect.signature(flagprism_torch.debug).parameters.values()
    documented = inspect.signature(scope["documented"]).parameters.values()
    assert [(p.name, p.kind, p.default) for p in documented] == [
        (p.name, p.kind, p.default) for p in real
    ]
    described = _column("docs/contract.md", "## Calls")
    assert described == [p.name for p in real]
    defaults = Config()
    for parameter in real:
        if hasattr(defaults, parameter.name):
            assert parameter.default == getattr(defaults, parameter.name)


def test_members_of_session() -> None:
    session = flagprism_torch.debug(logdir=False)
    public = {name for name in dir(session) if not name.startswith("_")}
    documented = {}
    for member in _column("docs/contract.md", "**`Session`**"):
        name, _, arguments = member.partition("(")
        documented[name] = arguments.rstrip(")")
    assert set(documented) == public
    for name, arguments in documented.items():
        if arguments:
            scope: dict[str, Any] = {}
            exec(f"def documented({arguments}): pass", scope)
            wanted = inspect.signature(scope["documented"]).parameters.values()
            real = inspect.signature(getattr(session, name)).parameters.values()
            assert [(p.name, p.default) for p in wanted] == [(p.name, p.default) for p in real]


def test_fields_of_results() -> None:
    assert sorted(_column("docs/contract.md", "`Anomaly` is a frozen dataclass")) == sorted(
        field.name for field in fields(Anomaly)
    )
    listed = re.search(r"^step, site, call,.*?\.$", _text("docs/contract.md"), re.M | re.S)
    assert listed is not None
    assert tuple(re.findall(r"\w+", listed[0])) == FIELDS
    selects = re.search(
        r"`table\.where\(\.\.\.\)`, (.*?) select and convert", _prose("docs/contract.md")
    )
    assert selects is not None
    for name in re.findall(r"`(\w+)\(\)`", selects[1]):
        assert callable(getattr(SummaryTable, name))


def test_public_names_are_explained() -> None:
    text = _text("README.md") + _text("docs/contract.md") + _text("docs/limits.md")
    bases = {"FlagPrismError"}
    for name in set(flagprism_torch.__all__) - bases:
        assert f"`{name}" in text, name


def test_report_schema_page() -> None:
    page = _text("docs/report-schema.md")
    schema = json.loads(Path(report.__file__).with_name("report.schema.json").read_text())
    assert _column("docs/report-schema.md", "## Top level") == list(schema["properties"])
    coverage = _column("docs/report-schema.md", "## `coverage`")
    assert sorted(coverage) == sorted(schema["$defs"]["coverage"]["properties"])
    for part in ("row", "module", "anomaly"):
        for name in schema["$defs"][part]["properties"]:
            assert re.search(rf"`{name}`", page), name


NUMBERS = [
    ("docs/contract.md", "lists the first {} anomalies", report.ANOMALIES_LISTED),
    ("docs/contract.md", "one of the last {} steps", ledger.KEPT_STEPS),
    ("docs/contract.md", "{} of them at most", verdicts.CAPACITY),
    ("docs/contract.md", "takes {} series", tensorboard.MAX_SERIES),
    ("docs/contract.md", "`histogram`: {} counts", layout.HIST_BUCKETS),
    ("docs/contract.md", "clamped to {}", f"{layout.HIST_MIN_EXP}..{layout.HIST_MAX_EXP}"),
    ("docs/limits.md", "At most {} anomalies", verdicts.CAPACITY),
    ("docs/limits.md", "and {} TensorBoard series", tensorboard.MAX_SERIES),
    ("docs/limits.md", "would pass {} MiB", collector.SCRATCH_BYTES >> 20),
    ("docs/limits.md", "then {} slots", collector.SHARED_SLOTS),
    ("docs/limits.md", "Beyond 2**{} programs", layout.PROGRAM_BITS),
    ("docs/limits.md", "(2**{} over the lanes", layout.PLACE_BITS - layout.PROGRAM_BITS),
    ("docs/launch.md", "{} bytes per op", layout.RECORD_BYTES),
    ("docs/launch.md", "last {} steps", ledger.KEPT_STEPS),
    ("docs/glossary.md", "({} bytes)", layout.RECORD_BYTES),
    ("docs/report-schema.md", "`histogram` has {} counts", layout.HIST_BUCKETS),
    ("docs/report-schema.md", "`schema_version` | {} |", report.SCHEMA_VERSION),
    ("README.md", "lists the first {}.", report.ANOMALIES_LISTED),
]


@pytest.mark.parametrize(("name", "sentence", "value"), NUMBERS)
def test_numbers(name: str, sentence: str, value: object) -> None:
    assert sentence.format(value) in _prose(name)


def test_stepping_down() -> None:
    steps = twin.Recipe(1, Config().max_values, False).steps()
    fewer = ", ".join(f"{step.max_values} values" for step in steps[1:-1])
    assert steps[-1].stores_only
    assert f"tried again with {fewer}, then stored values only" in _prose("docs/limits.md")


def test_report_excerpt_fits_the_example() -> None:
    """The excerpt in the README still points at the planted fault, and says what was left out."""
    (excerpt,) = (code for kind, code in BLOCK.findall(_text("README.md")) if kind == "text")
    place = re.search(
        r"^BORN nan \| layers\.1\.attn \| aten\.div \| nan_hunt\.py:(\d+) ", excerpt, re.M
    )
    assert place is not None
    line = _text("examples/nan_hunt.py").splitlines()[int(place[1]) - 1]
    assert "# the fault" in line
    count = re.search(r"^Anomalies: (\d+)$", excerpt, re.M)
    assert count is not None
    shown = re.findall(r"^(?:BORN|LOADED|FOUND|SEEN) ", excerpt, re.M)
    assert len(shown) < int(count[1]) <= report.ANOMALIES_LISTED
    assert "\n[...]\n" in excerpt.partition("Modules:")[0]
