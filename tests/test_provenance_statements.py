"""The compile-time recorder, on real code generation (tests/inductor_codegen.py).

The recorder's patches are process-wide, so every compilation happens in a process of its own.
"""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
import torch

from flagprism_torch.provenance import nodes

CODEGEN = Path(__file__).with_name("inductor_codegen.py")
USER_KERNEL = Path(__file__).with_name("user_kernel_model.py")
SCENARIOS = (
    "transformer", "optimizer", "submodule", "regional", "shared", "function", "multi_kernel",
    "foreach", "user_kernel", "library_root", "accumulation", "broken", "uninstalled",
)  # fmt: skip
PLAIN = ("submodule", "shared")


def _start(cache: Path, *scenarios: str, recorder: bool = True) -> subprocess.Popen[str]:
    env = {
        **os.environ,
        "TORCHINDUCTOR_CACHE_DIR": str(cache),
        "TORCHINDUCTOR_COMPILE_THREADS": "1",
        "FLAGPRISM_PROVENANCE": "1" if recorder else "0",
    }
    command = [sys.executable, str(CODEGEN), *scenarios]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, env=env, stdout=pipe, stderr=pipe, text=True)


def _result(process: subprocess.Popen[str]) -> dict:
    try:
        out, err = process.communicate(timeout=300)
    finally:
        process.kill()
    assert process.returncode == 0, err[-4000:]
    return json.loads(out.splitlines()[-1])


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """(with the recorder, second process on the same caches without it, caches of its own without
    it). The first and the last run side by side."""
    cache = tmp_path_factory.mktemp("inductor")
    plain = _start(tmp_path_factory.mktemp("plain"), *PLAIN, recorder=False)
    try:
        recorded = _result(_start(cache, *SCENARIOS))
        second = _start(cache, "transformer", "regional", recorder=False)
        return recorded, _result(second), _result(plain)
    finally:
        plain.kill()


@pytest.fixture(scope="module")
def recorded(runs):
    return runs[0]


@pytest.fixture(scope="module")
def second_process(runs):
    return runs[1]


@pytest.fixture(scope="module")
def plain(runs):
    return runs[2]


def _code_line(text: str, file: Path = CODEGEN) -> int:
    """Number of the only line with this code."""
    (line,) = (i for i, code in enumerate(file.read_text().splitlines(), 1) if code.strip() == text)
    return line


def _owners(sites, aten, phase=None):
    """(module, model line) of every recorded value of an ATen op."""
    return {
        (module, line)
        for site in sites
        for module, _, op, _, line, when in site["statements"].values()
        if op == aten and phase in (None, when)
    }


# ---- a two-block transformer, forward and backward ----


def test_every_launch_and_every_variable_is_mapped(recorded):
    sites = recorded["transformer"]
    assert len(sites) > 20
    assert {s["source"] for s in sites} == {"recorded"}
    assert [s["unmapped"] for s in sites] == [[]] * len(sites)
    assert sum(len(s["statements"]) for s in sites) > 400
    assert {s["phase"] for s in sites} == {"forward", "backward"}
    assert recorded["failures"]["accumulation"] == {}  # nothing failed up to there
    assert recorded["missing"] == []


def test_modules_and_lines_of_single_values(recorded):
    sites = recorded["transformer"]
    residual = _code_line("x = x + self.attn(self.ln1(x))")
    last = _code_line("return x + self.mlp(self.ln2(x))")
    gelu = {(f"layers.{i}.mlp.1", last) for i in (0, 1)}
    assert _owners(sites, "aten.gelu") == gelu
    assert _owners(sites, "aten.gelu_backward") == gelu
    tanh = _code_line("return self.norm(x).tanh()  # ROOT-LINE")
    assert _owners(sites, "aten.tanh") == {("<Transformer>", tanh)}
    assert _owners(sites, "aten.tanh_backward") == {("<Transformer>", tanh)}
    norms = {(f"layers.{i}.ln1", residual) for i in (0, 1)} | {("norm", tanh)}
    norms |= {(f"layers.{i}.ln2", last) for i in (0, 1)}
    found = _owners(sites, "aten.native_layer_norm", "forward")
    # A value that two norms share (a constant) belongs to what they have in common.
    assert norms <= found and {m for m, _ in found - norms} <= {"layers.0", "layers.1", "layers"}
    adds = _owners(sites, "aten.add", "forward")
    assert {(f"layers.{i}", line) for i in (0, 1) for line in (residual, last)} <= adds
    files = {o[3] for s in sites for o in s["statements"].values()}
    assert files <= {str(CODEGEN), None}


def test_sum_of_gradients_is_backward(recorded):
    (site,) = (s for s in recorded["accumulation"] if s["phase"] == "backward")
    (added,) = (o for o in site["statements"].values() if o[2] == "aten.add")
    assert added[0] == "fork" and added[5] == "backward"
    (exp,) = {o[5] for o in site["statements"].values() if o[2] == "aten.exp"}
    assert exp == "backward"  # recomputed there; the ATen op says what it is


def test_layers_that_share_a_kernel_are_told_apart(recorded):
    sites = recorded["transformer"]
    shared = {k for k, n in Counter(s["kernel"] for s in sites).items() if n > 1}
    gelu = [s for s in sites if s["kernel"] in shared and s["aten"][-1] == "aten.gelu"]
    assert [s["module"] for s in gelu] == ["layers.0.mlp", "layers.1.mlp"]
    assert len({s["kernel"] for s in gelu}) == 1 and len({s["line"] for s in gelu}) == 2
    assert [s["modules"] for s in gelu] == [[f"layers.{i}.mlp.{j}" for j in (0, 1)] for i in (0, 1)]


def test_extern_calls_of_the_wrappers(recorded):
    externs = recorded["transformer"][0]["externs"]
    assert externs["extern_kernels.addmm"] == 8  # qkv, out and two of the mlp, in two blocks


# ---- other shapes of programs ----


def test_compiled_optimizer(recorded):
    sites = recorded["optimizer"]
    adam = str(Path(torch.optim.__file__).with_name("adam.py"))
    assert len(sites) >= 2
    for site in sites:
        assert (site["phase"], site["module"], site["unmapped"]) == ("optimizer", "<none>", [])
        assert site["model"][0] == adam
        for module, _, aten, file, line, phase in site["statements"].values():
            assert (module, file, phase) == ("<none>", adam, "optimizer")
            assert aten is not None and line > 0


def test_submodule_compiled_alone(recorded):
    root, alone = recorded["submodule"]["root"], recorded["submodule"]["no root"]
    assert {m for s in root for m in s["modules"]} == {"b", "b.ln"}
    assert {m for s in alone for m in s["modules"]} == {"<Sub>", "ln"}
    assert {s["phase"] for s in root} == {"forward", "backward"}
    assert not any(s["unmapped"] for s in root)


@pytest.mark.parametrize("roots", ["given", "discovered"])
def test_layers_compiled_one_by_one_share_a_wrapper(recorded, second_process, roots):
    for run in (recorded, second_process):
        located = run["regional"][roots]
        forward = [module for _, _, module, phase in located if phase == "forward"]
        assert forward == ["0", "1", "2.0"]
        backward = [m.removesuffix(".ln") for _, _, m, phase in located if phase == "backward"]
        backward = list(dict.fromkeys(backward))
        assert backward == ["2.0", "1", "0"]
        keys = [(kernel, key) for kernel, key, *_ in located]
        assert len(set(keys)) == len(keys)


def test_module_called_twice(recorded):
    sites = recorded["shared"]
    names = {m for s in sites for m in s["modules"]}
    assert names == {"<Twice>", "shared", "shared.ln"}
    assert not any(s["unmapped"] for s in sites)
    owners = {o[0] for s in sites for o in s["statements"].values() if o[2] == "aten.cos"}
    assert "<Twice>" in owners


def test_compiled_function_with_code_outside_modules(recorded):
    sites = recorded["function"]
    loss = _code_line("return (net(x).tanh() ** 2).mean()")
    assert _owners(sites, "aten.tanh") == _owners(sites, "aten.mean") == {("<none>", loss)}
    sine = _code_line("return self.ln(x).sin() * 2")
    assert _owners(sites, "aten.sin") == {("<Sub>", sine)}
    assert not any(s["unmapped"] for s in sites)


def test_multi_kernel_and_foreach(recorded):
    for name in ("multi_kernel", "foreach"):
        for site in recorded[name]:
            assert (site["source"], site["unmapped"]) == ("recorded", [])
    assert {m for s in recorded["multi_kernel"] for m in s["modules"]} == {"<Sub>", "ln"}
    text = Path(recorded["multi_kernel"][0]["file"]).read_text()
    assert "multi_kernel_0.run(" in text
    (foreach,) = recorded["foreach"]
    assert foreach["aten"] == ["aten._foreach_add"] and len(foreach["statements"]) == 8


def test_user_kernel_inside_a_compiled_model(recorded):
    user = [s for s in recorded["user_kernel"] if s["kernel"] == "user_add"]
    line = _code_line(
        "user_add[(triton.cdiv(n, 256),)](x, y, out, n, BLOCK=256)  # LAUNCH-LINE", USER_KERNEL
    )
    assert [s["module"] for s in user] == ["first", "second"]
    assert all(s["source"] == "recorded" and s["phase"] == "forward" for s in user)
    assert all(s["model"] == [str(USER_KERNEL), line] for s in user)


def test_model_made_of_library_modules(recorded):
    sites = recorded["library_root"]
    assert {m for s in sites for m in s["modules"]} == {"0", "1"}
    assert sites[0]["module"] == "<Sequential>"
    assert not any(s["unmapped"] for s in sites)


# ---- what the recorder leaves alone ----


def test_second_process_resolves_from_the_cache(recorded, second_process):
    assert second_process["reason"] == "FLAGPRISM_PROVENANCE=0"
    assert second_process["hits"]["transformer"] == 2
    assert second_process["token"] != recorded["token"]
    drop = ("file", "line", "externs")
    first, second = (
        [{k: v for k, v in site.items() if k not in drop} for site in run["transformer"]]
        for run in (recorded, second_process)
    )
    for site in (*first, *second):
        site.pop("unmapped")  # the second process has no kernel text to compare with
    assert second == first


def test_kernels_are_byte_identical_and_comments_the_only_change(recorded, plain):
    for name in PLAIN:
        assert plain["kernels"][name] == recorded["kernels"][name]
        assert len(plain["kernels"][name]) == 3
    texts = []
    for run in (recorded, plain):
        files = {s["file"] for s in run["shared"]}
        texts.append([Path(file).read_text() for file in files])
    with_recorder, without = (sorted(_program(text) for text in run) for run in texts)
    assert with_recorder == without
    assert all("# [flagprism]" in text for text in texts[0])
    assert not any("flagprism]" in text for text in texts[1])


def _program(text: str) -> str:
    """What a wrapper runs; comments left out."""
    tree = ast.parse(text)
    bodies = [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef) and n.name == "call"]
    return "\n".join(ast.unparse(body) for body in bodies)


def test_compiled_without_the_recorder_falls_back_to_comments(recorded, plain):
    sites, known = plain["shared"], recorded["shared"]
    assert {s["source"] for s in sites} == {"comments"}
    for what in ("kernel", "phase"):
        assert [s[what] for s in sites] == [s[what] for s in known]
    assert [set(s["aten"]) for s in sites] == [set(s["aten"]) for s in known]
    assert all(s["aten"] for s in sites)
    assert {s["module"] for s in sites} == {"<none>"} and not any(s["statements"] for s in sites)


def test_uninstall_restores_everything(recorded):
    found = recorded["uninstalled"]
    assert found["installed"] and found["during"] > 10 and found["changed"] >= 9
    assert found["restored"] and found["after"] == 0
    assert {s["source"] for s in found["sites"]} == {"comments"}


def test_failures_are_counted_and_break_nothing(recorded):
    (site,) = recorded["broken"]
    assert site["source"] == "comments"
    assert recorded["failures"]["broken"] == {"call site: ValueError: broken on purpose": 1}


# ---- installation ----


def _python(code: str, **env: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, **env}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout.strip()


INSTALLATION = """
import sys
import flagprism_torch
from flagprism_torch.hooks import provenance_patches as p
waiting = lambda: sum(type(f).__name__ == "_Waiting" for f in sys.meta_path)
print("torch._inductor.codegen.triton" in sys.modules, p.applied(), waiting(), p.reason())
import torch._inductor.codegen.triton as t
print(p.applied() > 10, waiting(), p.reason(), type(t.__spec__.loader).__name__)
p.uninstall(); p.uninstall()
print(p.applied(), p.reason())
p.install(); p.install()
print(p.applied() > 10, p.missing())
# A torch without a name that the statement map needs, then one with another define_kernel.
p.uninstall()
import torch._inductor.loop_body as body
real = body.LightTracer
del body.LightTracer
p.install()
print(0 < p.applied() < 6, *p.missing())
p.uninstall()
body.LightTracer = real
t.TritonScheduling.define_kernel = lambda self, text, nodes: None
p.install()
print(p.applied(), p.reason())
"""


def test_installation_and_steps_down():
    """The recorder waits for the code generator, is idempotent, and does what torch allows."""
    done = subprocess.run([sys.executable, "-c", INSTALLATION], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-4000:]
    assert done.stdout.splitlines() == [
        "False 0 1 waiting for torch._inductor.codegen",
        "True 0 None SourceFileLoader",
        "0 not installed",
        "True []",
        "True statement_points: module 'torch._inductor.loop_body' has no attribute 'LightTracer'",
        "0 launch_points: TritonScheduling.define_kernel has no parameter "
        "src_code, node_schedule, kernel",
    ]


# ---- names of FX nodes ----


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("L['self'].layers.0.attn.q_proj", "layers.0.attn.q_proj"),
        ("L['self'].layers[0]._modules['attn']", "layers.0.attn"),
        ("L['self'].named['k'].lin", "named.k.lin"),
        ("G['net'].a", "a"),
        ("L['self']", ""),
        ("L['self']._orig_mod.a", "a"),
        ("a.b", "a.b"),
    ],
)
def test_clean_fqn(text, name):
    assert nodes.clean_fqn(text) == name
