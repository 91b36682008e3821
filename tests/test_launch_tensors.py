"""Tensors noted at a launch: under the names of the op table, with address and extent."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

import flagprism_torch
from flagprism_torch.backends.cpu import register, unregister
from flagprism_torch.errors import InstrumentationError
from flagprism_torch.hooks import jit
from flagprism_torch.hooks.tensors import pointer_names, tensor_notes
from flagprism_torch.records.model import Launch, TensorNote


@pytest.fixture(autouse=True)
def _driver() -> Iterator[None]:
    register("test_launch_tensors")
    yield
    unregister("test_launch_tensors")


@triton.jit
def copy(x, n, out, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(out + i, tl.load(x + i, i < n), i < n)


@triton.jit
def add_all(pairs, desc, nested, out, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    a, b = pairs
    scale = nested[0]
    c, d = nested[1]
    loaded = desc.load([0, 0])
    tile = tl.sum(loaded, 1)
    v = tl.load(a + i)
    w = tl.load(b + i)
    x = tl.load(c + i)
    tl.store(d + i, x)
    tl.store(out + i, (v + w) * scale + x + tile)


@triton.jit
def by_address(address, out, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    v = tl.load(address.to(tl.pointer_type(tl.float32)) + i)
    tl.store(out + i, v)


def only(session: flagprism_torch.Session) -> Launch:
    found = session._collector.tensors.launch(0, 0)
    assert found is not None and session._collector.tensors.launch(0, 1) is None
    return found


def place(tensor: torch.Tensor) -> tuple[int, int]:
    """(address, bytes) from the addresses of all elements."""
    offsets = np.lib.stride_tricks.as_strided(
        np.zeros(1, np.int8), tensor.shape, [0] * tensor.dim()
    )
    last = [sum(i * s for i, s in zip(index, tensor.stride(), strict=True))
            for index in np.ndindex(offsets.shape)]  # fmt: skip
    return tensor.data_ptr(), (max(last) + 1) * tensor.element_size()


def test_plain_arguments():
    x, out = torch.ones(8), torch.zeros(8)
    with flagprism_torch.debug(logdir=False) as session:
        copy[(1,)](x, 8, out, BLOCK=8)
    notes = only(session).tensors
    assert notes == (TensorNote("x", *place(x)), TensorNote("out", *place(out)))


def test_keywords_in_any_order():
    x, out = torch.ones(8), torch.zeros(8)
    with flagprism_torch.debug(logdir=False) as session:
        copy[(1,)](BLOCK=8, out=out, n=8, x=x)
    assert [(n.name, n.address) for n in only(session).tensors] == [
        ("x", x.data_ptr()),
        ("out", out.data_ptr()),
    ]


def test_tuples_and_descriptors_are_named_as_in_the_op_table():
    """Every pointer of the table leads to the tensor that the statement loads from or stores to."""
    a, b, c = (torch.full((8,), value) for value in (1.0, 2.0, 4.0))
    d, out = torch.zeros(8), torch.zeros(8)
    tile = torch.full((8, 8), 0.5)
    with flagprism_torch.debug(logdir=False) as session:
        add_all[(1,)]((a, b), TensorDescriptor.from_tensor(tile, [8, 8]), (3.0, (c, d)), out,
                      BLOCK=8)  # fmt: skip
    assert out.tolist() == [17.0] * 8
    launch = only(session)
    at = {note.name: note.address for note in launch.tensors}
    assert list(at.values()) == [t.data_ptr() for t in (a, b, tile, c, d, out)]
    reached = {
        (op.role, op.variable if op.role == "load" else None, at[str(op.pointer)])
        for op in launch.table.ops
        if op.role in ("load", "store")
    }
    assert reached >= {
        ("load", "v", a.data_ptr()),
        ("load", "w", b.data_ptr()),
        ("load", "x", c.data_ptr()),
        ("store", None, d.data_ptr()),
        ("store", None, out.data_ptr()),
    }
    assert ("load", tile.data_ptr()) in {(role, address) for role, _, address in reached}


def test_an_address_that_is_an_integer_is_no_tensor():
    x, out = torch.ones(8), torch.zeros(8)
    with flagprism_torch.debug(logdir=False) as session:
        by_address[(1,)](x.data_ptr(), out, BLOCK=8)
    assert only(session).tensors == (TensorNote("out", *place(out)),)


@pytest.mark.parametrize(
    "view",
    [
        lambda t: t,
        lambda t: t.t(),
        lambda t: t[1:, 2:],
        lambda t: t[::2, ::3],
        lambda t: t[0].expand(5, 8),
        lambda t: t[3, 3],
        lambda t: t.to(torch.float16)[1:],
    ],
)
def test_extents(view: Any):
    tensor = view(torch.zeros(6, 8))
    assert tensor_notes(["x"], [tensor]) == (TensorNote("x", *place(tensor)),)


@pytest.mark.filterwarnings("ignore:Accessing the data pointer of FakeTensor")
def test_arguments_without_memory():
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        fake = torch.ones(3)
    real, sparse = torch.ones(3), torch.eye(3).to_sparse()
    values = [1, fake, torch.ones(0), None, sparse, 2.5, torch.ones(2, device="meta"), real]
    names = ["fake", "empty", "sparse", "meta", "real"]
    assert tensor_notes(names, values) == (TensorNote("real", real.data_ptr(), 12),)


def test_more_tensors_than_pointers_are_not_guessed():
    assert tensor_notes(["x"], [torch.ones(3), torch.ones(3)]) == ()
    assert tensor_notes(["x", "flagprism_records"], [torch.ones(3)])[0].name == "x"


def test_pointer_names():
    text = """module {
  tt.func private @helper(%p: !tt.ptr<f32>) { tt.return }
  tt.func public @k(%a.0: !tt.ptr<f32> {tt.divisibility = 16 : i32} loc("a, (b"(#loc)), %n: i32,
"""
    header = text.rstrip().rstrip(",") + ", %d: !tt.tensordesc<16x8xf32>, %q: i1) attributes {x} {"
    assert pointer_names(header) == ("a.0", "d")
    assert pointer_names("module {}") == ()


def test_a_launch_without_a_twin_may_have_written(monkeypatch: pytest.MonkeyPatch):
    def fail(*args: Any) -> Any:
        raise InstrumentationError("no twin today")

    x, out, end = torch.ones(8), torch.zeros(8), torch.zeros(8)
    x[2] = math.nan
    with flagprism_torch.debug(logdir=False) as session:
        copy[(1,)](x, 8, out, BLOCK=8)
        with monkeypatch.context() as patch:
            patch.setattr(jit.Building, "finish", fail)
            copy[(1,)](out, 8, end, BLOCK=8, num_warps=8)  # compiled afresh
        copy[(1,)](end, 8, x, BLOCK=8)
    assert x.isnan().sum() == 1
    log = session._collector.tensors
    first, hidden, last = (log.launch(0, number) for number in range(3))
    assert first is not None and hidden is not None and last is not None
    found = log.writer_before(last, "x")
    assert found is not None and (found.launch, found.certain) == (hidden, False)
    assert [t.address for t in hidden.tensors] == [out.data_ptr(), end.data_ptr()]
    assert log.writer_before(hidden, hidden.tensors[0].name).launch is first  # type: ignore[union-attr]


def test_a_parameter_of_the_model_and_a_subclass():
    class Mine(torch.Tensor):
        pass

    x, out = torch.nn.Parameter(torch.ones(8)), torch.zeros(8).as_subclass(Mine)
    with flagprism_torch.debug(logdir=False) as session:
        copy[(1,)](x, 8, out, BLOCK=8)
    assert [(n.name, n.address, n.nbytes) for n in only(session).tensors] == [
        ("x", x.data_ptr(), 32),
        ("out", out.data_ptr(), 32),
    ]
