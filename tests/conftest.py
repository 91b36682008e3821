"""What every test shares: private compiler caches, the rule for GPU tests, and a check that no test
leaves Triton or Inductor changed.

Environment variables:
    FLAGPRISM_FAIL_ON_SKIP=1  a GPU test that would be skipped fails, so that a run meant for an
        accelerator cannot pass without one.
    FLAGPRISM_ACCEPT=1        golden files are rewritten instead of compared (see CONTRIBUTING.md).
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

# Before torch and triton are imported: each process (also each xdist worker) has caches of its own,
# so that no result depends on what an earlier run compiled.
_CACHE = Path(tempfile.mkdtemp(prefix="flagprism_test_"))
os.environ["TRITON_CACHE_DIR"] = str(_CACHE / "triton")
os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(_CACHE / "inductor")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # tensorboard imports TensorFlow where installed
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")

GPU_FOLDER = Path(__file__).parent / "gpu"
FAIL_ON_SKIP = os.environ.get("FLAGPRISM_FAIL_ON_SKIP") == "1"


def pytest_configure() -> None:
    try:
        from hypothesis import settings
    except ImportError:  # not where only the GPU tests run
        return
    settings.register_profile("same", derandomize=True)
    settings.load_profile("same")


def pytest_unconfigure() -> None:
    shutil.rmtree(_CACHE, ignore_errors=True)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if GPU_FOLDER in item.path.parents:
            item.add_marker(pytest.mark.gpu)


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("gpu") and _accelerator() is None:
        pytest.skip("no accelerator on this machine")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    report = yield
    skipped = report.skipped and not hasattr(report, "wasxfail")
    if FAIL_ON_SKIP and skipped and item.get_closest_marker("gpu"):
        _fail(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Iterator[None]:
    report = yield
    if FAIL_ON_SKIP and report.skipped and GPU_FOLDER in (collector.path, *collector.path.parents):
        _fail(report)  # importorskip and the like
    return report


def _fail(report: pytest.TestReport | pytest.CollectReport) -> None:
    reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
    report.outcome = "failed"
    report.longrepr = f"{reason} (FLAGPRISM_FAIL_ON_SKIP=1: a skipped GPU test is a failure)"


def _accelerator() -> str | None:
    import torch

    found = torch.accelerator.current_accelerator(check_available=True)
    return None if found is None else found.type


@pytest.fixture(scope="session")
def device() -> str:
    """The accelerator's device type, "cpu" without one. Tests never spell a device."""
    return _accelerator() or "cpu"


# (module, attribute path) of everything that launch hooks and the CPU backend may replace. Only
# modules that are loaded are looked at.
WATCHED = [
    ("triton.runtime.jit", "JITFunction.run"),
    ("triton.runtime.interpreter", "InterpretedFunction.run"),
    ("triton.compiler.compiler", "CompiledKernel.__getitem__"),
    ("triton.runtime.autotuner", "Autotuner.run"),
    ("triton.runtime.autotuner", "Autotuner._bench"),
    ("torch._inductor.runtime.triton_heuristics", "CachingAutotuner.run"),
    ("torch._inductor.config", "cpu_backend"),
    ("torch._inductor.config", "compile_threads"),
]


def _foreign_state() -> dict[str, object]:
    state: dict[str, object] = {}
    for module, path in WATCHED:
        owner = sys.modules.get(module)
        if owner is None:
            continue
        *parents, name = path.split(".")
        for parent in parents:
            owner = getattr(owner, parent)
        # a raw class entry, because an attribute that was only inherited must not stay behind
        found = vars(owner).get(name) if parents else getattr(owner, name)
        state[f"{module}.{path}"] = found
    backends = sys.modules.get("triton.backends")
    if backends is not None:
        state["triton.backends.backends"] = tuple(backends.backends)
    return state


@pytest.fixture(autouse=True)
def _seeded() -> None:
    """Every test draws the same numbers in every run."""
    import torch

    torch.manual_seed(0)
    np.random.seed(0)


@pytest.fixture(autouse=True)
def clean_state() -> Iterator[None]:
    """Fails a test that leaves launch hooks or Inductor's configuration changed.

    Fixtures of a wider scope are set up before this one, so what they change on purpose counts as
    the state to keep.
    """
    before = _foreign_state()
    yield
    after = _foreign_state()
    changed = [name for name, value in before.items() if after[name] != value]
    assert not changed, f"left changed by this test: {', '.join(changed)}"
