"""What a GPU is given at a launch, seen on machines without one.

A stub libcuda stands behind Triton's own NVIDIA driver and launcher (`libcuda_dirs` in
triton/backends/nvidia/driver.py finds it), in a child process per Triton version. It executes
nothing, so nothing here is about numbers. `fake_cuda/launches.py` says what is launched.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from triton_versions import FOLDERS, OWN, VERSIONS, once, run_child

HERE = Path(__file__).parent / "fake_cuda"
POINTER = 8
# every launcher ends with these two pointers, null unless a kernel asks for scratch memory
SCRATCH = [[POINTER, "00" * POINTER]] * 2
CASES = ["vadd", "keywords", "mixed", "described", "shared slots", "tuned 1000", "tuned 2000"]

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("gcc") is None, reason="the stub is built with gcc"),
]


def _build(folder: Path) -> Path:
    """Build the stub, under both names that are looked for."""
    include = FOLDERS[OWN.version] / "triton" / "backends" / "nvidia" / "include"
    built = folder / "libcuda.so.1"
    command = ["gcc", "-shared", "-fPIC", "-Wall", "-Werror", f"-I{include}"]
    subprocess.run([*command, HERE / "cuda_stub.c", "-o", built], check=True)
    (folder / "libcuda.so").symlink_to(built.name)
    return folder


@pytest.fixture(scope="module", params=VERSIONS)
def seen(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    def launch(folder: Path) -> Any:
        library = _build(folder)
        path = [str(library), *filter(None, [os.environ.get("LD_LIBRARY_PATH")])]
        env = {
            "TRITON_LIBCUDA_PATH": str(library),
            "LD_LIBRARY_PATH": os.pathsep.join(path),
            "TRITON_CACHE_DIR": str(folder / "cache"),
            "CUDA_STUB_LOG": str(folder / "log"),
        }
        return run_child(request.param, HERE / "launches.py", env=env)

    found = once(tmp_path_factory, f"launches-{request.param}", launch)
    assert found["triton"] == request.param
    assert list(found["cases"]) == CASES
    return found


def _launches(case: dict[str, Any], *phases: str) -> list[dict[str, Any]]:
    """Launches of some phases, without those of an autotuner's benchmark, which come first."""
    return [case["phases"][phase][-1] for phase in phases]


def _hidden(pointer: int) -> list[Any]:
    return [POINTER, pointer.to_bytes(POINTER, "little").hex()]


@pytest.mark.parametrize("name", CASES)
def test_plain_launches_outside(seen: Any, name: str) -> None:
    case = seen["cases"][name]
    *before, after = _launches(case, "before", "after")
    assert after["parameters"] == case["passed"] + SCRATCH
    if not name.startswith("tuned"):  # there, "before" had another problem size
        assert before == [after]


@pytest.mark.parametrize("name", CASES)
def test_hidden_pointer_follows_the_kernels_own_arguments(seen: Any, name: str) -> None:
    case = seen["cases"][name]
    launches = _launches(case, "inside", "again")
    assert len(case["buffers"]) == len(launches)
    for launch, buffer in zip(launches, case["buffers"], strict=True):
        assert launch["parameters"] == [*case["passed"], _hidden(buffer["pointer"]), *SCRATCH]


@pytest.mark.parametrize("name", CASES)
def test_twin_is_another_function_on_the_same_grid(seen: Any, name: str) -> None:
    case = seen["cases"][name]
    inside, again, after = _launches(case, "inside", "again", "after")
    assert inside["function"] == again["function"] != after["function"]
    for key in ("kernel", "grid", "threads", "stream"):
        assert inside[key] == after[key]
    assert inside["stream"] == seen["stream"]


@pytest.mark.parametrize("name", CASES)
def test_every_launch_is_launched_once_and_recorded(seen: Any, name: str) -> None:
    case = seen["cases"][name]
    # two configurations, two calls each
    benchmarks = 4 if name.startswith("tuned") else 0
    counts = {phase: len(launches) for phase, launches in case["phases"].items()}
    first = benchmarks if name == "tuned 1000" else 0  # the first key is new outside, too
    assert counts == {"before": 1 + first, "inside": 1 + benchmarks, "again": 1, "after": 1}
    assert case["recorded"] == [2]
    coverage = case["coverage"]
    assert (coverage["launches"], coverage["instrumented"]) == (2, 1)
    assert not coverage["stepped_down"] and not coverage["not_instrumented"]


@pytest.mark.parametrize("name", ["tuned 1000", "tuned 2000"])
def test_benchmark_launches_are_plain(seen: Any, name: str) -> None:
    case = seen["cases"][name]
    *benchmarks, _ = case["phases"]["inside"]
    assert [b["parameters"] for b in benchmarks] == [case["passed"] + SCRATCH] * 4
    assert len({b["function"] for b in benchmarks}) == 2
    assert case["phases"]["after"][0]["function"] in {b["function"] for b in benchmarks}
    passed = [(p["reason"], p["launches"]) for p in case["coverage"]["passed"]]
    assert passed == [("benchmark", 4)]


def test_a_grid_beyond_the_capacity_shares_slots(seen: Any) -> None:
    assert [b["slots"] for b in seen["cases"]["shared slots"]["buffers"]] == [3, 3]
    assert [b["slots"] for b in seen["cases"]["vadd"]["buffers"]] == [0, 0]
