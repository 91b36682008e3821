"""No value without an owner, and none with a wrong one: real code generation of many programs.

tests/provenance_programs.py, provenance_templates.py and provenance_random.py compile; each run is
a process of its own, and nothing in them asks the recorder what it should have recorded.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
MODELS = (
    "transformer", "optimizer", "conv_net", "language", "unet", "recurrent", "experts", "assorted",
    "dynamic", "checkpointed", "user_kernels",
)  # fmt: skip
OPTIONS = (
    "combo", "looped", "cooperative", "mix_order", "multi_kernel", "tiles", "unsplit",
    "block_pointers",
)  # fmt: skip
# Ops of nodes that Inductor makes after its comments' bookkeeping: copies of a convolution's inputs
# in another layout, and in-place writes.
LATE = {"aten.convolution", "aten.slice_scatter", "aten.select_scatter"}


def _run(script: str, *arguments: str) -> dict:
    done = subprocess.run(
        [sys.executable, str(HERE / script), *arguments],
        env={
            **os.environ,
            "TORCHINDUCTOR_FORCE_DISABLE_CACHES": "1",
            "TORCHINDUCTOR_COMPILE_THREADS": "1",
            "FLAGPRISM_PROVENANCE": "1",
        },
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def programs() -> dict:
    return _run("provenance_programs.py", *MODELS, *OPTIONS)


@pytest.fixture(scope="module")
def templates() -> dict:
    return _run("provenance_templates.py", "products", "batched", "combined")


def _owners(sites: list[dict], aten: str) -> set[str]:
    return {one[0] for s in sites for one in s["statements"].values() if one[2] == aten}


@pytest.mark.parametrize("name", [*MODELS, *OPTIONS])
def test_every_value_of_every_kernel_has_an_owner(programs, name):
    sites = [s for s in programs[name] if s["kernel"] != "scale_kernel"]  # hand-written
    assert len(sites) >= 4
    assert {s["source"] for s in sites} == {"recorded"}
    assert {s["kernel"]: s["unknown"] for s in sites if s["unknown"]} == {}
    assert sum(len(s["statements"]) for s in sites) >= (20 if name == "user_kernels" else 100)
    assert programs["failures"] == {}


@pytest.mark.parametrize("name", [*MODELS, *OPTIONS])
def test_ops_are_those_of_the_comment_on_the_kernel(programs, name):
    strangers = {op for s in programs[name] for _, op in s["foreign"]}
    assert strangers <= LATE


@pytest.mark.parametrize("name", [m for m in (*MODELS, *OPTIONS) if m != "optimizer"])
def test_values_of_a_model_have_a_module_and_a_phase(programs, name):
    for site in programs[name]:
        owners = site["statements"].values()
        assert all(one[0] != "<none>" for one in owners), site["kernel"]
        # What runs in a backward graph is backward, also what is recomputed there.
        assert {one[5] for one in owners} <= {site["phase"]}
        assert site["phase"] in ("forward", "backward")


def test_an_optimizer_has_no_module(programs):
    for site in programs["optimizer"]:
        for module, _, aten, file, line, phase in site["statements"].values():
            assert (module, phase) == ("<none>", "optimizer")
            assert aten and file.endswith("optim/adam.py") and line > 0


def test_modules_of_single_ops(programs):
    conv = programs["conv_net"]
    assert _owners(conv, "aten.copy_") == {"bn1", "bn2"}  # running statistics
    assert _owners(conv, "aten.convolution") >= {"conv1", "conv2"}  # inputs in another layout
    assert _owners(conv, "aten.mean") == {"<ConvNet>"}
    language = programs["language"]
    assert _owners(language, "aten.embedding") <= {"embed", "<Language>"}
    assert _owners(language, "aten.nll_loss_forward") == {"<Language>"}
    assert _owners(language, "aten.nll_loss_backward") == {"<Language>"}
    unet = programs["unet"]
    assert _owners(unet, "aten.native_group_norm_backward") <= {"norm1", "norm2", "<UNetBlock>"}
    recurrent = programs["recurrent"]
    for site in recurrent:
        modules = {one[0] for one in site["statements"].values()}
        if "lstm" not in site["modules"]:
            assert modules <= {"gru", "<Recurrent>"}
    experts = programs["experts"]
    assert _owners(experts, "aten.scatter_add") == {"<Experts>"}


def test_gradients_whose_forward_node_is_not_found(programs):
    """AOTAutograd loses the stack of products inside a GRU cell; their neighbours in time tell."""
    backward = [s for s in programs["recurrent"] if s["phase"] == "backward"]
    products = [
        one[0]
        for site in backward
        if "gru" in site["modules"]
        for one in site["statements"].values()
        if one[2] == "aten.mul"
    ]
    assert len(products) > 20 and set(products) == {"gru"}
    assert _owners(backward, "aten.mul") == {"gru", "lstm"}


def test_recomputed_values_keep_op_and_module(programs):
    backward = [s for s in programs["checkpointed"] if s["phase"] == "backward"]
    norms = _owners(backward, "aten.native_layer_norm")
    assert {"first.ln", "second.ln"} <= norms


def test_hand_written_kernels_in_compiled_code(programs):
    sites = [s for s in programs["user_kernels"] if s["kernel"] == "scale_kernel"]
    assert [(s["module"], s["phase"]) for s in sites] == [
        ("function", "forward"),
        ("operator", "forward"),
        ("operator", "backward"),
        ("function", "backward"),
    ]
    text = (HERE / "provenance_programs.py").read_text().splitlines()
    lines = {s["module"]: text[s["model"][1] - 1] for s in sites}
    assert lines["function"].endswith("# SCALE") and "triple(x.cos())" in lines["operator"]


def test_templates_with_prologue_and_epilogue(templates):
    (product,) = templates["products"]
    owners = {name: one[:2] for name, one in product["owners"].items()}
    assert set(product["values"]) | set(product["pointers"]) <= set(owners)
    assert owners["*"] == owners["acc"] == ["linear", "aten.mm"]
    ops = {
        "tl_math.sin": ["<Product>", "aten.sin"],
        "libdevice.erf": ["act", "aten.gelu"],
        "triton_helpers.maximum": ["<Product>", "aten.relu"],
    }
    for call, owner in ops.items():
        (line,) = (text for text in product["source"].splitlines() if call + "(" in text)
        assert owners[line.split("=")[0].strip()] == owner
    assert owners["out_ptr1"] == ["<Product>", "aten.add"]
    (batched,) = templates["batched"]
    assert batched["owners"]["*"][1] == "aten.bmm"
    assert batched["owners"]["tmp0"][1] == batched["owners"]["out_ptr1"][1] == "aten.sigmoid"


def test_combo_kernels(templates):
    combined = [k for k in templates["combined"] if "ComboKernelGrid" in k["source"]]
    assert combined
    for kernel in templates["combined"]:
        owners = kernel["owners"]
        assert set(kernel["values"]) | set(kernel["pointers"]) <= set(owners)
    found = {tuple(one[:2]) for kernel in combined for one in kernel["owners"].values()}
    assert {("left", "aten.sum"), ("right", "aten.sum"), ("<Sides>", "aten.exp")} <= found
    stores = {one[0] for k in combined for n, one in k["owners"].items() if "ptr" in n}
    assert stores == {"left", "right", "<Sides>"}


def test_functions_tell_the_module():
    found = _run("provenance_random.py", *map(str, range(12)))
    assert found["seen"] >= 100
    assert found["wrong"] == []
