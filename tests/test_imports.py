"""The shape of the project, checked from source: who imports whom, what stays in one place.

Nothing is imported; `ast` sees imports inside functions and under TYPE_CHECKING too. The rules are
explained in CONTRIBUTING.md.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "flagprism_torch"

# A room (folder or module of the package) may import rooms of the tiers above its own, and itself.
TIERS = (
    {"errors", "_compat"},
    {"config", "ir", "records"},
    {"backends", "provenance"},
    {"language"},
    {"instrument"},
    {"analysis"},
    {"hooks", "exporters"},
    {"session"},
    {"debugger", "cli", "pytest_plugin"},
    {"__init__", "__main__"},
)
RANK = {room: rank for rank, tier in enumerate(TIERS) for room in tier}

# Rooms that may use private modules of torch and Triton.
PRIVATE_ROOMS = {"hooks", "provenance", "instrument", "backends"}
LINE_LIMIT = 500


def rooms_imported(path: Path, tree: ast.AST, package: Path) -> Iterator[str]:
    """The rooms that a file of `package` imports, "__init__" for the package itself."""
    parts = path.relative_to(package.parent).parts
    for name in modules_imported(parts, tree):
        head, _, rest = name.partition(".")
        if head == package.name:
            yield rest.split(".")[0] or "__init__"


def modules_imported(parts: tuple[str, ...], tree: ast.AST) -> Iterator[str]:
    """Absolute names of everything imported; `parts` are the path of the file from its root.

    `from a import b` yields "a.b", since b may be a module.
    """
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(parts[: -node.level]) if node.level else ""
            module = ".".join(filter(None, (base, node.module)))
            yield from (
                module if alias.name == "*" else f"{module}.{alias.name}" for alias in node.names
            )


def room_of(path: Path, package: Path) -> str:
    return path.relative_to(package).parts[0].removesuffix(".py")


def tier_violations(package: Path) -> list[str]:
    found = []
    for path in sorted(package.rglob("*.py")):
        room = room_of(path, package)
        for target in rooms_imported(path, ast.parse(path.read_text()), package):
            # a public name imported from the package itself counts as __init__
            rank = RANK.get(target, RANK["__init__"])
            if target != room and rank >= RANK[room]:
                found.append(f"{path.relative_to(package)}: {room} -> {target}")
    return found


def tensorboard_violations(package: Path) -> list[str]:
    found = []
    for path in sorted(package.rglob("*.py")):
        name = path.relative_to(package).as_posix()
        tree = ast.parse(path.read_text())
        parts = path.relative_to(package.parent).parts
        if name == "exporters/tensorboard.py":
            # at use: not while the file is imported, so only inside functions
            inside = {
                id(node)
                for function in ast.walk(tree)
                if isinstance(function, ast.FunctionDef)
                for node in ast.walk(function)
            }
            nodes = [node for node in ast.walk(tree) if id(node) not in inside]
            names = [
                name
                for node in nodes
                if isinstance(node, (ast.Import, ast.ImportFrom))
                for name in modules_imported(parts, ast.Module([node], []))
            ]
        else:
            names = list(modules_imported(parts, tree))
        for module in names:
            if module.split(".")[0] in ("tensorboard", "tensorboardX", "tensorflow") or (
                module.startswith("torch.utils.tensorboard")
            ):
                found.append(f"{name}: {module}")
    return found


def private_violations(package: Path) -> list[str]:
    found = []
    for path in sorted(package.rglob("*.py")):
        if room_of(path, package) in PRIVATE_ROOMS:
            continue
        parts = path.relative_to(package.parent).parts
        for module in modules_imported(parts, ast.parse(path.read_text())):
            top, *rest = module.split(".")
            if top in ("torch", "triton") and any(part.startswith("_") for part in rest):
                found.append(f"{path.relative_to(package)}: {module}")
    return found


def exporter_violations(package: Path) -> list[str]:
    """Exporters know nothing of Triton."""
    return [
        f"{path.relative_to(package)}: {module}"
        for path in sorted((package / "exporters").rglob("*.py"))
        for module in modules_imported(
            path.relative_to(package.parent).parts, ast.parse(path.read_text())
        )
        if module.split(".")[0] == "triton"
    ]


def version_violations(package: Path) -> list[str]:
    """Comparisons of a version, or anything that only serves to compare one, outside _compat.py."""
    found = []
    for path in sorted(package.rglob("*.py")):
        if path == package / "_compat.py":
            continue
        tree = ast.parse(path.read_text())
        for node in ast.walk(tree):
            if isinstance(node, ast.Compare) and any(map(_is_version, ast.walk(node))):
                found.append(f"{path.relative_to(package)}:{node.lineno}: {ast.unparse(node)}")
        parts = path.relative_to(package.parent).parts
        for module in modules_imported(parts, tree):
            if module.startswith(("packaging.version", "torch.torch_version")):
                found.append(f"{path.relative_to(package)}: {module}")
    return found


def _is_version(node: ast.AST) -> bool:
    name = getattr(node, "attr", getattr(node, "id", None))
    return name in ("__version__", "version_of", "version_info")


def test_every_room_has_a_tier():
    rooms = {room_of(path, PACKAGE) for path in PACKAGE.rglob("*.py")}
    assert rooms - set(RANK) == set()


@pytest.mark.parametrize(
    "rule",
    [
        tier_violations,
        tensorboard_violations,
        private_violations,
        exporter_violations,
        version_violations,
    ],
)
def test_the_package_keeps_the_rules(rule):
    assert rule(PACKAGE) == []


def test_pins_agree():
    """pyproject.toml repeats the pins of requirements/dev.txt."""
    pinned = (ROOT / "requirements" / "dev.txt").read_text().split()
    extras = re.findall(r'"([\w-]+==[\d.]+)"', (ROOT / "pyproject.toml").read_text())
    assert len(extras) >= 6 and set(extras) - set(pinned) == set()


def test_files_stay_small():
    folders = ("flagprism_torch", "tests", "examples", "benchmarks")
    files = [
        path
        for folder in folders
        for suffix in ("*.py", "*.cpp", "*.h")
        for path in (ROOT / folder).rglob(suffix)
        if "golden" not in path.parts
    ]
    assert files
    lengths = {path: len(path.read_text().splitlines()) for path in files}
    assert [f"{path}: {n}" for path, n in lengths.items() if n > LINE_LIMIT] == []


GOOD = {
    "__init__.py": "from .session import debug\n",
    "errors.py": "import os\n",
    "_compat.py": "import torch\nNEW = torch.__version__ >= '2.13'\n",
    "records/__init__.py": "",
    "records/table.py": "from .model import Row\nfrom ..errors import FlagPrismError\n",
    "hooks/jit.py": "from torch._inductor import config\nfrom ..records import table\n",
    "exporters/tensorboard.py": "def write():\n    from tensorboard.summary import writer\n",
    "session.py": "import torch\nfrom . import hooks, exporters\nprint(torch.__version__)\n",
}


def make(folder: Path, files: dict[str, str]) -> Path:
    package = folder / "flagprism_torch"
    for name, text in (GOOD | files).items():
        path = package / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return package


@pytest.mark.parametrize(
    ("rule", "files", "expected"),
    [
        (tier_violations, {}, []),
        (
            tier_violations,
            {"hooks/jit.py": "def f():\n    from ..exporters import report\n"},
            ["hooks/jit.py: hooks -> exporters"],
        ),
        (
            tier_violations,
            {"exporters/report.py": "import flagprism_torch.hooks.jit\n"},
            ["exporters/report.py: exporters -> hooks"],
        ),
        (
            tier_violations,
            {"errors.py": "from flagprism_torch import config\n"},
            ["errors.py: errors -> config"],
        ),
        (
            tier_violations,
            {"records/table.py": "from .. import debug\n"},
            ["records/table.py: records -> debug"],
        ),
        (
            tier_violations,
            {"records/table.py": "from ..ir.module import Op\n"},
            ["records/table.py: records -> ir"],
        ),
        (tensorboard_violations, {}, []),
        (
            tensorboard_violations,
            {"exporters/tensorboard.py": "from torch.utils.tensorboard import SummaryWriter\n"},
            ["exporters/tensorboard.py: torch.utils.tensorboard.SummaryWriter"],
        ),
        (
            tensorboard_violations,
            {"session.py": "def f():\n    import tensorboard\n"},
            ["session.py: tensorboard"],
        ),
        (private_violations, {}, []),
        (
            private_violations,
            {"session.py": "from torch import _dynamo\nimport triton._C.libtriton\n"},
            ["session.py: torch._dynamo", "session.py: triton._C.libtriton"],
        ),
        (exporter_violations, {}, []),
        (
            exporter_violations,
            {"exporters/report.py": "from triton import knobs\n"},
            ["exporters/report.py: triton.knobs"],
        ),
        (version_violations, {}, []),
        (
            version_violations,
            {"session.py": "from ._compat import version_of\nX = version_of('torch') < (2, 12)\n"},
            ["session.py:2: version_of('torch') < (2, 12)"],
        ),
        (
            version_violations,
            {"session.py": "from packaging.version import Version\n"},
            ["session.py: packaging.version.Version"],
        ),
    ],
)
def test_the_rules_see_violations(rule, files: dict[str, str], expected: list[str], tmp_path: Path):
    assert rule(make(tmp_path, files)) == expected
