"""Every example runs from start to end on the accelerator and finds what was planted."""

from __future__ import annotations

from pathlib import Path

import pytest
from example_runs import EXAMPLES, check_output, run_example


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_example(path: Path, device: str, tmp_path: Path):
    check_output(path, run_example(path, device, tmp_path), tmp_path)
