"""Every example runs from start to end on the CPU."""

from __future__ import annotations

from pathlib import Path

import pytest
from example_runs import EXAMPLES, run_example


@pytest.mark.slow
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_example(path: Path, tmp_path: Path):
    assert run_example(path, "cpu", tmp_path).strip(), "an example prints what it found"


def test_there_are_examples():
    assert [path.stem for path in EXAMPLES if path.stem == "nan_hunt"] == ["nan_hunt"]
