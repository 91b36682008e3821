"""The rules about arguments of launches, each against NumPy or against what it must not say; and
what no launch on one machine shows."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from flagprism_torch.analysis.configuration import agree_below, configuration
from flagprism_torch.hooks.parameters import Parameters, Tuned, read_flat
from flagprism_torch.hooks.tensors import tensor_layouts
from flagprism_torch.records.address_model import TensorLayout
from flagprism_torch.records.hint_model import Hint
from flagprism_torch.records.ledger import KEPT_STEPS
from flagprism_torch.records.model import CallSite, Launch, OpTable, Origin
from flagprism_torch.records.remarks import Remark, Remarks

# -- layouts: the rule


def layout(shape: tuple[int, ...], strides: tuple[int, ...], name: str = "x") -> TensorLayout:
    tensor = torch.empty_strided(shape, strides)
    (found,) = tensor_layouts((name,), (tensor,))
    return found


def contiguous(shape: tuple[int, ...]) -> TensorLayout:
    return layout(shape, torch.empty(shape).stride(), "plain")


def offsets(one: TensorLayout) -> np.ndarray:
    """Where the elements lie, in row-major order of the index."""
    return sum(
        (
            stride * np.arange(n).reshape([-1 if a == axis else 1 for a in range(len(one.shape))])
            for axis, (n, stride) in enumerate(zip(one.shape, one.strides, strict=True))
        ),
        np.zeros(one.shape, int),
    ).ravel()


shapes = st.lists(st.integers(1, 4), min_size=1, max_size=4).map(tuple)


@st.composite
def layouts(draw: Any) -> TensorLayout:
    """Dense, permuted, sliced with steps, expanded and overlapping tensors."""
    shape = draw(shapes)
    if draw(st.booleans()):  # any strides at all
        return layout(shape, tuple(draw(st.integers(0, 9)) for _ in shape))
    return sliced(draw, shape)


def sliced(draw: Any, shape: tuple[int, ...]) -> TensorLayout:
    """A permuted tensor with steps: no element twice."""
    steps = [draw(st.integers(1, 2)) for _ in shape]
    order = draw(st.permutations(range(len(shape))))
    outer = torch.empty([shape[axis] * steps[axis] for axis in order])
    back = [list(order).index(axis) for axis in range(len(shape))]
    view = outer.permute(back)[tuple(slice(None, None, step) for step in steps)]
    assert view.shape == shape
    return layout(shape, view.stride())


@settings(max_examples=300)
@given(layouts())
def test_rule_against_numpy(odd: TensorLayout) -> None:
    """Found where a flat index reads another element, unless the tensor ends before the index does,
    or is expanded."""
    where = offsets(odd)
    wrong = bool((where != np.arange(where.size)).any())
    leaves = where.size > where.max() + 1
    expanded = any(n > 1 and not s for n, s in zip(odd.shape, odd.strides, strict=True))
    found = read_flat(odd, contiguous(odd.shape), 4)
    assert found == (wrong and not leaves and not expanded)
    assert not read_flat(contiguous(odd.shape), contiguous(odd.shape), 4)
    assert not read_flat(odd, odd, 4) and not read_flat(contiguous(odd.shape), odd, 4)


def test_rule_of_other_tensors() -> None:
    odd = layout((8, 8), (1, 8))
    assert read_flat(odd, contiguous((8, 8)), 4)
    assert not read_flat(odd, contiguous((64,)), 4)
    assert not read_flat(odd, contiguous((8, 4)), 4)
    assert not read_flat(odd, contiguous((8, 8)), 2)
    half = contiguous((8, 8))._replace(itemsize=2)
    assert not read_flat(odd, half, 4) and not read_flat(odd, half, 2)
    assert not read_flat(layout((0, 8), (1, 8)), contiguous((0, 8)), 4)


@settings(max_examples=200)
@given(st.data())
def test_agreement_against_numpy(data: Any) -> None:
    """The first offset with different elements, of two layouts without overlaps."""
    shape = data.draw(shapes)
    one, other = sliced(data.draw, shape), sliced(data.draw, shape)
    a, b = ({int(at): index for index, at in enumerate(offsets(x))} for x in (one, other))
    first = next((at for at in sorted({*a, *b}) if a.get(at) != b.get(at)), None)
    assert agree_below(shape, one.strides, other.strides) == first


# -- the rooms themselves: what no launch of this machine shows


def twin(names: tuple[str, ...], attrs: Any = (), table: OpTable | None = None) -> Any:
    signature = {name: "*fp32" if name.endswith("ptr") else "i32" for name in names}
    hidden = {"flagprism_records": "*i32"}
    source = SimpleNamespace(
        fn=SimpleNamespace(arg_names=[*names, *hidden]), hidden=hidden, attrs=dict(attrs),
        signature=signature | hidden,
    )  # fmt: skip

    class Built:
        kernel = SimpleNamespace(src=source)
        launcher = None

    built = Built()
    built.table = table or OpTable("k", "k.py", 3, ())  # type: ignore[attr-defined]
    return built


def launch(values: dict[str, Any], table: OpTable | None = None, **fields: Any) -> Launch:
    site = CallSite("user.py:1", "k", 0, Origin())
    tensors = {n: v for n, v in values.items() if isinstance(v, torch.Tensor)}
    known = tensor_layouts(list(tensors), list(tensors.values()))
    made: dict[str, Any] = {"number": 0, "step": 0, "grid": (1, 1, 1), "layouts": known} | fields
    return Launch(site=site, table=table or OpTable("k", "k.py", 3, ()), **made)


def checked(
    values: dict[str, Any], attrs: Any = (), table: OpTable | None = None,
    device: str = "cpu", **options: Any,
) -> list[Remark]:  # fmt: skip
    room = Parameters()
    note = launch(values, table)
    room.check(note, twin(tuple(values), attrs, table), values.values(),
               torch.device(device), **options)  # fmt: skip
    return list(room.remarks.of(0))


DIVISIBLE = {(0,): [["tt.divisibility", 16]], (2,): [["tt.divisibility", 16]]}


def test_compiled_for_multiples() -> None:
    x = torch.zeros(64)
    assert x.data_ptr() % 16 == 0
    fits = {"x_ptr": x, "y_ptr": x[1:], "n": 48, "m": 7}
    assert checked(fits, DIVISIBLE) == []
    odd = {"x_ptr": x[1:], "y_ptr": x[1:], "n": 40, "m": 7}
    found = checked(odd, DIVISIBLE)
    assert [(r.argument, r.problem, r.kind) for r in found] == [
        ("x_ptr", "alignment", "parameter"),
        ("n", "alignment", "parameter"),
    ]
    assert found[0].details == {"divisor": 16, "remainder": 4}
    assert checked(odd) == []


def test_arguments_of_a_launcher() -> None:
    """Inductor's launchers take names of their own, without constexprs."""
    values = {"x_ptr": torch.zeros(64)[1:], "n": 16}
    made = twin(("x_ptr", "flag", "n", "BLOCK"), {(0,): [["tt.divisibility", 16]]})
    made.launcher = SimpleNamespace(def_args=("x_ptr", "n"))
    room = Parameters()
    room.check(launch(values), made, values.values(), torch.device("cpu"))
    assert [r.argument for r in room.remarks.of(0)] == ["x_ptr"]
    made = twin(("x_ptr", "flag", "n", "BLOCK"), {(0,): [["tt.divisibility", 16]]})
    room.check(launch(values, step=1), made, values.values(), torch.device("cpu"))
    assert room.remarks.of(1) == ()  # unknown which is which


def test_other_device() -> None:
    """Memory of the host is Triton's to refuse: pinned memory can be read."""
    x = torch.zeros(4)
    assert checked({"x_ptr": x}, device="cuda:0") == []
    meta = torch.zeros(4, device="meta")
    (found,) = checked({"x_ptr": meta}, device="cuda:0")
    assert (found.problem, found.details["launch_device"]) == ("device", "cuda:0")
    assert checked({"x_ptr": meta}, device="meta") == []


UNMASKED = Hint("unmasked", "tt.load", "k.py", 7, "x", "x = tl.load(x_ptr)", ("x_ptr",))
SHARED = Hint("layout", "tt.load", "k.py", 7, "x", "x = tl.load(x_ptr)", ("x_ptr", "y_ptr"),
              {"itemsize": 4})  # fmt: skip


def test_empty_tensor() -> None:
    table = OpTable("k", "k.py", 3, (), hints=(UNMASKED,))
    assert checked({"x_ptr": torch.zeros(1)}, table=table) == []
    found = checked({"x_ptr": torch.zeros(0, 4)}, table=table)
    assert [(r.argument, r.problem) for r in found] == [("x_ptr", "empty")]
    assert checked({"x_ptr": torch.zeros(0, 4)}) == []


def test_generated_kernels_know_their_strides() -> None:
    table = OpTable("k", "k.py", 3, (), hints=(SHARED,))
    values = {"x_ptr": torch.zeros(4, 4).t(), "y_ptr": torch.zeros(4, 4)}
    assert [r.kind for r in checked(values, table=table)] == ["noncontiguous_argument"]
    assert checked(values, table=table, generated=True) == []


def test_what_an_autotuner_restores() -> None:
    hint = Hint("inplace", "tt.store", "k.py", 7, None, "tl.store(x_ptr, x)", ("x_ptr",))
    table = OpTable("k", "k.py", 3, (), hints=(hint,))
    values = {"x_ptr": torch.zeros(4)}
    assert checked(values, table=table) == []
    assert checked(values, table=table, tuned=Tuned(6, frozenset({"x_ptr"}))) == []
    (found,) = checked(values, table=table, tuned=Tuned(6, frozenset({"y_ptr"})))
    assert (found.kind, found.details["launches"]) == ("autotune_mutation", 7)


def test_remarks_are_bounded() -> None:
    remarks = Remarks(capacity=2)
    for step in range(KEPT_STEPS + 3):
        for number in range(4):
            note = launch({}, step=step, number=number)
            for _ in range(2):
                remarks.add(Remark("parameter", f"a{number}", note, "", "stride"))
    assert [r.argument for r in remarks.of(KEPT_STEPS + 2)] == ["a0", "a1"]
    assert [bool(remarks.of(step)) for step in (0, 2, 3)] == [False, False, True]


def test_places_of_remarks() -> None:
    """A remark without a hint: the kernel; arguments of one kernel stay apart."""
    note = launch({})
    found = list(configuration(0, [], [
        Remark("parameter", "n", note, "n=3 is odd", "alignment"),
        Remark("config_dependent", "", note, "moved", hint=UNMASKED),
    ]))  # fmt: skip
    (first, about), (second, _) = found
    assert about == ("n", "alignment") and first.order < second.order
    assert (first.anomaly.file, first.anomaly.line, first.anomaly.statement) == ("k.py", 3, "")
    assert str(first.anomaly) == "FOUND parameter | <none> | - | - | k | - | argument n"
    assert (second.anomaly.line, second.anomaly.variable) == (7, "x")
    assert "argument" not in second.anomaly.details
