"""Runs one example in a process of its own: `main(device)` of a file in examples/."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
CODE = "import importlib, sys; importlib.import_module(sys.argv[1]).main(sys.argv[2])"


def run_example(path: Path, device: str, folder: Path) -> str:
    """What the example prints; its working directory is `folder`, so that its files land there."""
    places = [str(ROOT), str(path.parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    done = subprocess.run(
        [sys.executable, "-c", CODE, path.stem, device],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(places)},
        cwd=folder,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
