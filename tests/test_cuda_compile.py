"""Instrumented kernels reach machine code: sm_90 with Triton's own ptxas, and gfx942.

Compiled in a child process per Triton version, on any machine. `cuda_kernels.py` has the kernels,
`cuda_compiles.py` what is noted of each compilation.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from cuda_kernels import KERNELS
from triton_versions import OWN, VERSIONS, once, run_child

pytestmark = pytest.mark.slow

HERE = Path(__file__).parent
HIDDEN = ["flagprism_records", "!tt.ptr<i32>"]
SCRATCH = ["u64", "u64"]  # the last two parameters of every kernel
INDUCTOR = {"dropout", "layernorm_gelu", "long_reduction", "softmax"}


@pytest.fixture(scope="module", params=VERSIONS)
def compiled(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    def generate(folder: Path) -> Any:
        env = {"TORCHINDUCTOR_CACHE_DIR": str(folder / "cache")}
        found = run_child(OWN.version, HERE / "inductor_sources.py", folder, env=env)
        return [str(folder), found]

    def compile_(folder: Path) -> Any:
        env = {
            "TRITON_CACHE_DIR": str(folder / "triton"),
            "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"),
        }
        return run_child(request.param, HERE / "cuda_compiles.py", sources, env=env)

    sources, files = once(tmp_path_factory, "inductor-sources", generate)
    found = once(tmp_path_factory, f"compiles-{request.param}", compile_)
    assert found["triton"] == request.param
    assert len(found["inductor"]) == len(files)
    return found


def _check(kernel: dict[str, Any]) -> None:
    """The twin has code of its own and one more argument, at the end."""
    plain, twin = kernel["plain"], kernel["twin"]
    assert twin["binary"] > plain["binary"] > 0
    assert plain["arguments"]
    assert twin["arguments"] == [*plain["arguments"], HIDDEN]
    assert kernel["roles"]["store"] >= 1


def _check_parameters(kernel: dict[str, Any]) -> None:
    """The entry of the PTX has one more 64 bit parameter, before the scratch pointers."""
    plain, twin = kernel["plain"]["parameters"], kernel["twin"]["parameters"]
    assert plain[-2:] == SCRATCH and len(plain) == len(kernel["plain"]["arguments"]) + 2
    assert twin == [*plain[:-2], "u64", *SCRATCH]


@pytest.mark.parametrize("name", KERNELS)
def test_sm90(compiled: Any, name: str) -> None:
    kernel = compiled["cuda"][name]
    if name == "atomics":  # stores nothing but by atomics
        kernel["roles"]["store"] = kernel["roles"].pop("atomic")
    _check(kernel)
    _check_parameters(kernel)


@pytest.mark.parametrize("name", KERNELS)
def test_arguments_are_the_kernels(compiled: Any, name: str) -> None:
    """None is renamed, moved or left out."""
    case = KERNELS[name]
    names = [argument for argument, _ in compiled["cuda"][name]["twin"]["arguments"]]
    signature, constants, _ = case.arguments()
    assert names == [n for n in signature if n not in constants] + [HIDDEN[0]]


@pytest.mark.parametrize("name", [name for name, case in KERNELS.items() if case.flat])
def test_probes_move_no_lanes_between_threads(compiled: Any, name: str) -> None:
    """Note [Lane order] in instrument/values.py: a thread reduces its own elements first."""
    kernel = compiled["cuda"][name]
    allowed = kernel["plain"]["conversions"]
    if KERNELS[name].recipe.get("histograms"):
        allowed += 1
    assert kernel["twin"]["conversions"] <= allowed


def test_matmul_stays_asynchronous(compiled: Any) -> None:
    """Loads that probes look at are still copied ahead, products still run on tensor cores."""
    kernel = compiled["cuda"]["matmul"]
    for what in ("copies", "products"):
        assert kernel["twin"][what] == kernel["plain"][what] > 0
    assert kernel["twin"]["conversions"] == kernel["plain"]["conversions"]


@pytest.mark.parametrize("model", sorted(INDUCTOR))
def test_inductor_kernels_for_sm90(compiled: Any, model: str) -> None:
    assert {name.split(".")[0] for name in compiled["inductor"]} == INDUCTOR
    kernels = {n: k for n, k in compiled["inductor"].items() if n.split(".")[0] == model}
    for kernel in kernels.values():
        _check(kernel)
        _check_parameters(kernel)
    if model == "long_reduction":
        assert any(name.split(".")[1].startswith("triton_red_") for name in kernels)


def test_gfx942(compiled: Any) -> None:
    if compiled["hip"] is None:
        pytest.skip("this Triton was built without its AMD backend")
    assert list(compiled["hip"]) == ["vadd", "softmax"]
    for kernel in compiled["hip"].values():
        _check(kernel)
        assert kernel["twin"]["conversions"] <= kernel["plain"]["conversions"]
