"""Run a script under every Triton on this machine: the environment's own and those in .triton/."""

from __future__ import annotations

import fcntl
import importlib.metadata
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
OWN = importlib.metadata.distribution("triton")
FOLDERS: dict[str, Path] = {OWN.version: Path(str(OWN.locate_file("")))} | {
    folder.name: folder
    for folder in sorted((ROOT / ".triton").glob("*"))
    if (folder / "triton" / "__init__.py").exists()
}
VERSIONS = sorted(FOLDERS)


def run_child(
    version: str,
    script: Path,
    *arguments: object,
    env: dict[str, str] | None = None,
    timeout: float = 300,
) -> Any:
    """What the script prints as the last line of its output, a JSON value.

    The child must run under the wanted Triton: it is put before everything else on its path.
    """
    paths = [str(FOLDERS[version]), str(ROOT), str(ROOT / "tests")]
    done = subprocess.run(
        [sys.executable, str(script), *map(str, arguments)],
        env={**os.environ, **(env or {}), "PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True,
        text=True,
        timeout=timeout,
    )
    assert done.returncode == 0, f"{script.name} under Triton {version}:\n{done.stderr[-6000:]}"
    return json.loads(done.stdout.strip().splitlines()[-1])


def once(tmp_path_factory: pytest.TempPathFactory, name: str, make: Callable[[Path], Any]) -> Any:
    """What `make(folder)` returned, a JSON value; called by one worker of pytest-xdist only."""
    base = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        base = base.parent
    folder = base / name
    with (base / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        result = base / f"{name}.json"
        if not result.exists():
            folder.mkdir()  # exists if it failed before
            result.write_text(json.dumps(make(folder)))
    return json.loads(result.read_text())
