"""Every example runs from start to end on the accelerator."""

from __future__ import annotations

from pathlib import Path

import pytest
from example_runs import EXAMPLES, run_example


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_example(path: Path, device: str, tmp_path: Path):
    assert run_example(path, device, tmp_path).strip(), "an example prints what it found"
