"""Reading call sites back: wrapper text -> origin. Written wrappers are checked in
test_provenance_statements.py; here are the rules of reading."""

from __future__ import annotations

import os
import sys

import pytest

from flagprism_torch.provenance import callsites, markers
from flagprism_torch.provenance.markers import Marker, ModuleRef, Owner
from flagprism_torch.provenance.modules import ModuleNames, Running
from flagprism_torch.records.model import Origin, StatementOrigin

A = ModuleRef("11", "layers.0.a", "Linear", "Net")
B = ModuleRef("12@1", "layers.0.b", "Linear", "Net")
ROOT = ModuleRef("10", "", "Net", "Net")
OTHER = ModuleRef("99", "", "Loss", "Loss")


def _owner(module=None, aten="aten.add", line=7, phase="forward"):
    return Owner(module, aten, "/home/me/model.py", line, phase)


def _wrapper(tmp_path, *lines, phase="forward", name="wrapper.py"):
    """A file like Inductor's; returns its path and the line numbers of `lines`."""
    head = [f"# AOT ID: ['0_{phase}']", "class Runner:", "    def call(self, args):"]
    path = tmp_path / name
    path.write_text("\n".join(head + ["        " + line for line in lines]) + "\n")
    return str(path), [len(head) + 1 + i for i in range(len(lines))]


def test_marker_round_trip():
    small = Marker(
        "triton_poi_0",
        backward=True,
        token="t",
        root=ROOT,
        owners=[_owner(A), _owner(None, None, None, "none")],
        variables={"tmp0": (_owner(A),), "tmp1": (_owner(A), _owner(B))},
        stores={"out_ptr0": _owner(B, 'aten."quoted"\n#', 9, "backward")},
    )
    line = markers.encode(small)
    assert "\n" not in line and line.startswith("# [flagprism] {")
    assert markers.decode("        " + line) == small


def test_big_markers_are_compressed():
    owners = [_owner(ModuleRef(str(i), f"layers.{i}", "Block", "Net"), line=i) for i in range(100)]
    big = Marker("k", owners=owners, variables={f"tmp{i}": (o,) for i, o in enumerate(owners)})
    line = markers.encode(big)
    assert line.startswith("# [flagprism] z:") and len(line) < 2500
    assert markers.decode(line) == big


@pytest.mark.parametrize(
    "text", ["{", "z:AAAA", "z:%%", '{"v":2,"k":"x"}', '{"v":1,"k":"x"}', "[]", ""]
)
def test_damaged_markers_are_ignored(text):
    assert markers.decode(markers.PREFIX + text) is None


def test_each_launch_has_the_nearest_marker_above(tmp_path):
    def mark(module):
        return markers.encode(Marker("k0", owners=[_owner(module)]))

    path, lines = _wrapper(
        tmp_path, mark(A), "k0.run(x)", mark(B), "s = get_raw_stream(0)", "k0.run(y)"
    )
    assert callsites.resolve(path, lines[1], "k0").module == "layers.0.a"
    assert callsites.resolve(path, lines[4], "k0").module == "layers.0.b"
    assert callsites.resolve(path, lines[0], "k0") is None


def test_choices_of_a_multi_kernel(tmp_path):
    first = markers.encode(Marker("k0", owners=[_owner(A)]))
    second = markers.encode(Marker("k1", owners=[_owner(B)]))
    path, lines = _wrapper(tmp_path, first, second, "multi_kernel_0.run(x)")
    assert callsites.resolve(path, lines[2], "k0").module == "layers.0.a"
    assert callsites.resolve(path, lines[2], "k1").module == "layers.0.b"


def test_user_kernels_have_another_name_in_the_wrapper(tmp_path):
    path, lines = _wrapper(
        tmp_path, markers.encode(Marker("add_0", owners=[_owner(A)])), "add_0.run(x)"
    )
    assert callsites.resolve(path, lines[1], "add").module == "layers.0.a"


@pytest.mark.parametrize(
    ("owners", "module"),
    [
        ([A], "layers.0.a"),
        ([A, B], "layers.0"),
        ([A, ROOT], "<Net>"),
        ([A, None], "layers.0.a"),
        ([None], "<none>"),
        ([A, OTHER], "<none>"),  # no root in common
        ([ModuleRef("1", "ab.c", "X", "Net"), ModuleRef("2", "a.c", "X", "Net")], "<Net>"),
    ],
)
def test_several_owners(tmp_path, owners, module):
    marker = Marker(
        "k0",
        owners=[_owner(o, line=i + 1) for i, o in enumerate(owners)],
        variables={"tmp0": tuple(_owner(o, line=i + 1) for i, o in enumerate(owners))},
    )
    path, lines = _wrapper(tmp_path, markers.encode(marker), "k0.run(x)")
    origin = callsites.resolve(path, lines[1], "k0")
    assert origin.module == origin.statements["tmp0"].module == module
    assert len(origin.modules) == sum(o is not None for o in owners)
    assert origin.source == "recorded" and origin.aten == ("aten.add",)
    assert (origin.model_file, origin.model_line) == ("/home/me/model.py", len(owners))
    assert origin.statements["tmp0"].model_line == 1  # the defining owner


@pytest.mark.parametrize(
    ("backward", "phases", "phase"),
    [
        (False, ["forward", "forward"], "forward"),
        (False, ["forward", "backward"], "forward"),
        (False, ["backward"], "backward"),
        (True, ["forward"], "backward"),
        (False, ["optimizer", "optimizer"], "optimizer"),
        (False, [], "none"),
    ],
)
def test_phase_of_a_launch(tmp_path, backward, phases, phase):
    marker = Marker("k0", backward, owners=[_owner(A, phase=p, line=1) for p in phases])
    path, lines = _wrapper(tmp_path, markers.encode(marker), "k0.run(x)")
    assert callsites.resolve(path, lines[1], "k0").phase == phase


def test_names_relative_to_the_running_module(tmp_path):
    """One wrapper serves every layer of a class; ids in it are of the first one."""
    root = ModuleRef("10", "", "Block", "Block")
    part = ModuleRef("11", "attn", "Attention", "Block")
    marker = Marker("k0", root=root, owners=[_owner(part)], variables={"tmp0": (_owner(root),)})
    path, lines = _wrapper(tmp_path, markers.encode(marker), "k0.run(x)")
    running = Running("layers.3", "Block", "Net", 77, None, None)
    origin = callsites.resolve(path, lines[1], "k0", None, running)
    assert origin.module == "layers.3.attn"
    assert origin.statements["tmp0"].module == "layers.3"
    stranger = Running("layers.3", "Other", "Net", 77, None, None)
    assert callsites.resolve(path, lines[1], "k0", None, stranger).module == "attn"


def test_ids_of_another_process_are_not_used(tmp_path):
    import torch

    net = torch.nn.Sequential(torch.nn.Linear(1, 1), torch.nn.Linear(1, 1))
    ref = ModuleRef(f"{id(net[1])}@2", "linear", "Linear", "Part")
    names = ModuleNames(net)
    for token, module in ((markers.PROCESS_TOKEN, "1"), ("elsewhere", "linear")):
        marker = Marker("k0", token=token, owners=[_owner(ref)])
        path, lines = _wrapper(tmp_path, markers.encode(marker), "k0.run(x)", name=f"{module}.py")
        assert callsites.resolve(path, lines[1], "k0", names).module == module


def test_inductor_comments_are_the_fallback(tmp_path):
    comment = "# Topologically Sorted Source Nodes: [a, b], Original ATen: [aten.add, aten.gelu]"
    path, lines = _wrapper(
        tmp_path, comment, "k0.run(x)", "k1.run(x)", comment, "extern_kernels.mm(x)", "k0.run(x)",
        phase="backward",
    )  # fmt: skip
    origin = callsites.resolve(path, lines[1], "k0")
    assert origin == Origin(phase="backward", aten=("aten.add", "aten.gelu"), source="comments")
    assert callsites.resolve(path, lines[2], "k1") is None  # the comment is of the launch before
    assert callsites.resolve(path, lines[5], "k0") is None  # and here of the extern call
    running = Running("b", "Sub", "Net", 1, None, None)
    assert callsites.resolve(path, lines[1], "k0", None, running).module == "b"


def test_no_wrapper_no_origin(tmp_path):
    assert callsites.resolve(str(tmp_path / "missing.py"), 3, "k0") is None
    assert callsites.resolve("<string>", 3, "k0") is None
    assert callsites.resolve(__file__, 3, "k0") is None
    binary = tmp_path / "binary.py"
    binary.write_bytes(b"\xff\xfe\x00")
    assert callsites.resolve(str(binary), 3, "k0") is None


def test_a_changed_file_is_read_again(tmp_path):
    def write(module):
        return _wrapper(tmp_path, markers.encode(Marker("k0", owners=[_owner(module)])), "k0.run()")

    path, lines = write(A)
    assert callsites.resolve(path, lines[1], "k0").module == "layers.0.a"
    write(B)
    os.utime(path, ns=(1, 1))
    assert callsites.resolve(path, lines[1], "k0").module == "layers.0.b"


def test_extern_calls(tmp_path):
    path, _ = _wrapper(
        tmp_path,
        "# extern_kernels.mm(commented)",
        "assert_size_stride(x, (1, ), (1, ))",
        "extern_kernels.addmm(a, reinterpret_tensor(b, (1, ), (1, ), 0), out=c)",
        "extern_kernels.addmm(a, b, out=c)",
        "buf1 = torch.ops.aten.sort.stable(a)",
        "cpp_fused_add_0(a, b)",
        "k0.run(x, 64, stream=raw_stream0)",
    )
    assert callsites.extern_calls(path) == {
        "extern_kernels.addmm": 2,
        "torch.ops.aten.sort.stable": 1,
        "cpp_fused_add_0": 1,
    }
    assert callsites.extern_calls(__file__) == {}


@pytest.mark.parametrize(
    ("variable", "pointer", "statement", "found"),
    [
        ("tmp7", None, "", "v"),
        ("_tmp7", None, "", "v"),
        ("tmp7_mean", None, "", "v"),
        ("tmp7", "out_ptr0", "", "p"),  # a store belongs to what it writes
        ("tmp7", "in_ptr0", "", "v"),
        ("_tmp8", None, "", "accumulator"),  # has an entry of its own
        ("tmp8", None, "", None),
        (None, "out_ptr0", "", "p"),
        (None, "tmp7_ws", "", "v"),  # workspace of a cooperative reduction
        ("tmp70", None, "", None),
        ("tmp7x", None, "", None),
        ("xindex", None, "", None),
        (None, None, "", None),
        # Operations without a name of their own belong to what the line assigns or stores.
        (None, None, "tmp7 = tl.load(in_ptr0 + (x0), xmask).to(tl.float32)", "v"),
        (None, None, "tmp7_mean, tmp7_m2 = triton_helpers.welford(tmp1, tmp2)", "v"),
        (None, "ws_ptr", "tl.store(tmp9_ws + (x0), tmp7, xmask)", "v"),
        (None, "ws_ptr", "tl.store(out + (x0), tl.broadcast_to(tmp7, [XBLOCK]), xmask)", "v"),
        (None, None, "tl.device_assert(tmp7 < 4, 'index out of bounds')", None),
        (None, None, "xindex = tmp7 + 1", None),
        (None, None, "tmp7 = tl.load(", None),  # half a statement
        ("tmp6", None, "tmp7 = tmp6", "other"),  # the name comes first
    ],
)
def test_statement_of(variable, pointer, statement, found):
    owners = {"tmp7": "v", "out_ptr0": "p", "_tmp8": "accumulator", "tmp6": "other"}
    origin = Origin(
        module="kernel",
        phase="forward",
        aten=("aten.a", "aten.b"),
        statements={name: StatementOrigin(module) for name, module in owners.items()},
    )
    owner = callsites.statement_of(origin, variable, pointer, statement)
    assert (owner.module if owner else None) == found
    whole = callsites.owner(origin, variable, pointer, statement)
    assert (whole.module, whole.phase) == (found or "kernel", "forward")
    assert whole.aten == (None if found else "aten.a, aten.b")


def test_the_body_of_a_template_belongs_to_it():
    owners = {"*": "mm", "tmp0": "gelu", "out_ptr1": "gelu"}
    origin = Origin(statements={name: StatementOrigin(module) for name, module in owners.items()})
    for variable, pointer, statement, found in (
        ("acc", None, "acc += tl.dot(a, b)", "mm"),
        (None, None, "a = tl.load(A + xindex)", "mm"),
        (None, None, "tmp0 = tl.load(in_ptr0)", "gelu"),
        (None, "out_ptr1", "tl.store(out_ptr1 + xindex, tmp0, mask)", "gelu"),
    ):
        assert callsites.owner(origin, variable, pointer, statement).module == found
    user = Origin(module="layer")  # a hand-written kernel: its names mean nothing here
    assert callsites.statement_of(user, "tmp0", "out_ptr1", "tmp0 = 1") is None
    assert callsites.owner(user, "tmp0").module == "layer"


def test_several_owners_and_no_name_for_all():
    shared = StatementOrigin(modules=("layers.0.a", "layers.0.b"), phase="optimizer")
    owner = callsites.owner(Origin(phase="forward", statements={"tmp0": shared}), "tmp0")
    assert (owner.module, owner.phase) == ("layers.0", "optimizer")


def test_launching_frame_skips_inductor(tmp_path):
    import torch._inductor.config

    inductor = torch._inductor.config.__file__.replace("config.py", "codegen/multi_kernel.py")
    space: dict = {"sys": sys}
    exec(compile("def dispatch():\n    return sys._getframe()", inductor, "exec"), space)
    wrapper = str(tmp_path / "c.py")
    exec(compile("\n\ndef call():\n    return dispatch()", wrapper, "exec"), space)
    assert callsites.launching_frame(space["call"]()) == (wrapper, 4)


def test_locate_without_a_wrapper():
    names = ModuleNames()
    line = sys._getframe().f_lineno + 1
    key, origin = callsites.locate(sys._getframe(), "k0", names)
    assert key == f"{__file__}:{line}|<none>"
    assert (origin.source, origin.model_line) == ("frames", line)
