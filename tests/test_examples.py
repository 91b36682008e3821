"""Every example runs from start to end on the CPU and finds what was planted."""

from __future__ import annotations

from pathlib import Path

import pytest
from example_runs import EXAMPLES, check_output, run_example


@pytest.mark.slow
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_example(path: Path, tmp_path: Path):
    check_output(path, run_example(path, "cpu", tmp_path), tmp_path)


def test_there_are_examples():
    assert [path.stem for path in EXAMPLES if path.stem == "nan_hunt"] == ["nan_hunt"]
