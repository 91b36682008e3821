"""The rules of conftest.py hold: a GPU run cannot pass by skipping, and leaks are seen."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

CONFTEST = Path(__file__).with_name("conftest.py")
GPU_TESTS = """
import pytest

def test_skips():
    pytest.skip("some reason")

@pytest.mark.xfail
def test_expected_failure():
    raise ValueError
"""
MODULE_SKIP = """
import pytest
pytest.importorskip("no_such_module_anywhere")
def test_never(): ...
"""
LEAK = """
import torch._inductor.config as config
from triton.runtime.jit import JITFunction

def test_leaks_a_patch():
    JITFunction.run = lambda self: None

def test_leaks_an_option():
    config.compile_threads += 1

def test_leaks_nothing():
    pass
"""


def run(folder: Path, fail_on_skip: str) -> tuple[int, str]:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-ra", str(folder)]
    environment = os.environ | {"FLAGPRISM_FAIL_ON_SKIP": fail_on_skip}
    ini = folder / "pytest.ini"
    ini.write_text("[pytest]\nmarkers =\n    gpu: needs an accelerator\n")
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder, env=environment)
    return done.returncode, done.stdout


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "conftest.py").write_text(CONFTEST.read_text())
    (tmp_path / "gpu").mkdir()
    return tmp_path


@pytest.mark.slow
def test_a_skipped_gpu_test_fails_on_request(project: Path):
    (project / "gpu" / "test_skips.py").write_text(GPU_TESTS)
    code, text = run(project, "0")
    assert code == 0 and "SKIPPED" in text, text
    code, text = run(project, "1")
    assert code == 1 and "gpu/test_skips.py::test_skips - " in text, text
    assert "a skipped GPU test is a failure" in text and "skipped in" not in text, text


@pytest.mark.slow
def test_a_skipped_gpu_module_fails_on_request(project: Path):
    (project / "gpu" / "test_module.py").write_text(MODULE_SKIP)
    code, text = run(project, "1")
    assert code != 0 and "no_such_module_anywhere" in text, text
    assert "a skipped GPU test is a failure" in text


@pytest.mark.slow
def test_a_leak_is_an_error(project: Path):
    (project / "test_leak.py").write_text(LEAK)
    code, text = run(project, "0")
    assert code == 1 and "2 errors" in text, text
    assert "left changed by this test: triton.runtime.jit.JITFunction.run" in text
    assert "left changed by this test: torch._inductor.config.compile_threads" in text
