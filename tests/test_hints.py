"""Hints of a kernel's IR: loads that pipelining may move, arguments that share offsets, in-place
updates, unmasked accesses; and the equality of places that they rest on."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import triton
import triton.language as tl
from ttir_text import line_of, ops, ttir

from flagprism_torch.instrument import twin
from flagprism_torch.instrument.hints import hints
from flagprism_torch.ir.module import Module
from flagprism_torch.ir.terms import Terms
from flagprism_torch.records.hint_model import Hint
from flagprism_torch.records.model import OpTable

INTEGERS = ("n", "m", "stride", "stride_x", "stride_y")


def module_of(fn: Any, types: dict[str, str] | None = None, **constants: Any) -> Module:
    names = [name for name in fn.arg_names if name not in constants]
    signature = {name: "i32" if name in INTEGERS else "*fp32" for name in names}
    return Module(ttir(fn, signature | (types or {}), constants))


def found(
    fn: Any, kind: str, types: dict[str, str] | None = None, num_stages: int = 1, **constants: Any
) -> list[Hint]:
    listed = hints(module_of(fn, types, **constants), num_stages)
    return [hint for hint in listed if hint.kind == kind]


def arguments(listed: list[Hint]) -> list[tuple[str, ...]]:
    return [hint.arguments for hint in listed]


# -- places


@triton.jit
def spelled(x_ptr, y_ptr, z_ptr, n, m, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    i = tl.arange(0, BLOCK)
    a = tl.load(x_ptr + row * n + i)
    b = tl.load(y_ptr + (row * n + i))
    c = tl.load(z_ptr + (i + row * n).to(tl.int64))
    tl.store(x_ptr + row * m + i, a + b + c)
    tl.store(y_ptr + row * n + i * 2, a + b + c)
    tl.store(z_ptr + row * n + i + 1, a + b + c)


def test_sums_are_equal_however_they_are_written() -> None:
    module = module_of(spelled, BLOCK=16)
    terms = Terms(module)
    loads = [terms.place(op.operands[0]) for op in ops(module, "tt.load")]
    stores = [terms.place(op.operands[0]) for op in ops(module, "tt.store")]
    assert None not in (*loads, *stores)
    assert len({place.terms for place in loads if place}) == 1
    assert [place.argument.name for place in loads if place] == ["%x_ptr", "%y_ptr", "%z_ptr"]
    assert len({place.terms for place in (*loads, *stores) if place}) == 4


@triton.jit
def two_axes(x_ptr, y_ptr, z_ptr, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    rows, columns = i[:, None], i[None, :]
    a = tl.load(x_ptr + rows * n + columns)
    b = tl.load((y_ptr + i * n)[:, None] + columns)
    tl.store(z_ptr + columns * n + rows, a + b)


def test_axes_count() -> None:
    """Element (i, j) of one is not element (j, i) of the other."""
    module = module_of(two_axes, BLOCK=16)
    terms = Terms(module)
    a, b = (terms.place(op.operands[0]) for op in ops(module, "tt.load"))
    (c,) = (terms.place(op.operands[0]) for op in ops(module, "tt.store"))
    assert a and b and c and a.terms != c.terms
    assert b.terms != c.terms


@triton.jit
def carried(x_ptr, y_ptr, z_ptr, n, m, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    xs, ys, zs = x_ptr + i, y_ptr + i, z_ptr + i
    for _ in range(n):
        tl.store(zs, tl.load(xs) + tl.load(ys))
        xs += BLOCK
        ys += BLOCK
        zs += m
    tl.store(xs, tl.load(ys) * tl.load(zs))


def test_pointers_that_a_loop_moves() -> None:
    module = module_of(carried, BLOCK=16)
    terms = Terms(module)
    places = [terms.place(op.operands[0]) for op in module.entry.walk()
              if op.name in ("tt.load", "tt.store")]  # fmt: skip
    x, y, z, y_after, z_after, x_after = (place.terms for place in places if place)
    assert x == y != z
    assert x_after == y_after != z_after
    assert x != x_after


@triton.jit
def chosen(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    a = tl.load(tl.where(i < n, x_ptr + i, y_ptr + i))
    tl.store((x_ptr + i).to(tl.pointer_type(tl.int32), bitcast=True), a.to(tl.int32))


def test_pointers_without_a_place() -> None:
    module = module_of(chosen, BLOCK=16)
    terms = Terms(module)
    for name in ("tt.load", "tt.store"):
        (op,) = ops(module, name)
        assert terms.place(op.operands[0]) is None


# -- reload


@triton.jit
def again(p_ptr, o_ptr, n, STAGES: tl.constexpr, BARRIER: tl.constexpr, OTHER: tl.constexpr):
    for at in tl.range(0, n, num_stages=STAGES):
        i = at * 64 + tl.arange(0, 64)
        value = i.to(tl.float32)
        tl.store(p_ptr + i, value)
        if BARRIER:
            tl.debug_barrier()
        back = tl.load(p_ptr + i + OTHER)
        tl.store(o_ptr + i, back)


@pytest.mark.parametrize("stages", [1, 2, 4])
@pytest.mark.parametrize("barrier", [False, True])
@pytest.mark.parametrize("other", [0, 1])
def test_reload(stages: int, barrier: bool, other: int) -> None:
    listed = found(again, "reload", STAGES=stages, BARRIER=barrier, OTHER=other)
    if stages == 1 or barrier or other:
        assert listed == []
        return
    (hint,) = listed
    assert (hint.op, hint.statement) == ("tt.load", "back = tl.load(p_ptr + i + OTHER)")
    assert (hint.file, hint.line) == (__file__, line_of(again, "back = tl.load"))
    assert (hint.arguments, hint.variable) == (("p_ptr",), "back")
    assert hint.details == {"writer": "tl.store(p_ptr + i, value)", "num_stages": stages}


@triton.jit
def before(p_ptr, o_ptr, n, NEST: tl.constexpr, ONE: tl.constexpr):
    for at in tl.range(0, n, num_stages=3):
        i = at * 64 + tl.arange(0, 64)
        first = tl.load(p_ptr + i)
        tl.store(p_ptr + i, first + 1.0)
        if NEST:
            for _ in range(n):
                tl.store(o_ptr + i, first)
            tl.store(o_ptr + i, tl.load(p_ptr + i))
        if ONE:
            tl.store(o_ptr + at, tl.load(o_ptr + at) + 1.0)
            tl.store(o_ptr + at, tl.load(o_ptr + at) + 2.0)


@pytest.mark.parametrize(("nest", "one"), [(False, False), (True, False), (False, True)])
def test_no_reload(nest: bool, one: bool) -> None:
    """A load before the store; a loop around another; single lanes. None is pipelined."""
    assert found(before, "reload", NEST=nest, ONE=one) == []


@triton.jit
def product(a_ptr, b_ptr, o_ptr, n, RELOAD: tl.constexpr, FEED: tl.constexpr):
    i = tl.arange(0, 16)
    tile = i[:, None] * 16 + i[None, :]
    total = tl.zeros((16, 16), tl.float32)
    for at in range(n):
        b = tl.load(b_ptr + at * 256 + tile)
        if RELOAD:
            tl.store(a_ptr + tile, b * 2.0)
        a = tl.load(a_ptr + tile)
        total = tl.dot(a if FEED else b, b, total)
        if not FEED:
            tl.store(o_ptr + at * 256 + tile, a)
    tl.store(o_ptr + tile, total)


@pytest.mark.parametrize(("feed", "num_stages"), [(True, 3), (True, 1), (False, 3)])
def test_reload_of_kernel_stages(feed: bool, num_stages: int) -> None:
    """Without stages of its own a loop is pipelined for what a dot multiplies."""
    listed = found(product, "reload", num_stages=num_stages, RELOAD=True, FEED=feed)
    wanted = [("a_ptr",)] if feed and num_stages > 1 else []
    assert arguments(listed) == wanted
    assert found(product, "reload", num_stages=num_stages, RELOAD=False, FEED=feed) == []


# -- layout


@triton.jit
def scale(x_ptr, o_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + i, mask=i < n)
    tl.store(o_ptr + i, x * 2.0, mask=i < n)


def test_layout() -> None:
    """Both ways round: either argument may be the one that lies otherwise."""
    listed = found(scale, "layout", BLOCK=16)
    assert arguments(listed) == [("x_ptr", "o_ptr"), ("o_ptr", "x_ptr")]
    assert [hint.op for hint in listed] == ["tt.load", "tt.store"]
    assert [hint.details for hint in listed] == [{"itemsize": 4}] * 2
    listed = found(scale, "layout", {"x_ptr": "*fp16", "o_ptr": "*bf16"}, BLOCK=16)
    assert [hint.details for hint in listed] == [{"itemsize": 2}] * 2


@triton.jit
def strides(x_ptr, y_ptr, o_ptr, stride_x, stride_y, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + tl.program_id(0) * stride_x + i)
    y = tl.load(y_ptr + tl.program_id(0) * stride_y + i)
    tl.store(o_ptr + tl.program_id(0) * BLOCK + i, x + y)


@triton.jit
def apart(x_ptr, y_ptr, o_ptr, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + i)
    y = tl.load(y_ptr + i)
    tl.store(o_ptr, tl.sum(x) + tl.sum(y))


@triton.jit
def unrelated(x_ptr, y_ptr, o_ptr, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + i)
    tl.store(y_ptr + i, i.to(tl.float32))
    tl.store(o_ptr, tl.sum(x))


@triton.jit
def first_elements(x_ptr, y_ptr, o_ptr):
    tl.store(o_ptr, tl.load(x_ptr) + tl.load(y_ptr))


@triton.jit
def turned(x_ptr, o_ptr, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tile = i[:, None] * BLOCK + i[None, :]
    tl.store(o_ptr + tile, tl.trans(tl.load(x_ptr + tile)))


@triton.jit
def halved(x_ptr, o_ptr, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(o_ptr + i, tl.load(x_ptr + i).to(tl.float16))


@triton.jit
def one_argument(x_ptr, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(x_ptr + i, tl.load(x_ptr + i) * 2.0)


@pytest.mark.parametrize("fn", [strides, apart, unrelated, turned, halved, one_argument])
def test_no_layout(fn: Any) -> None:
    types = {"o_ptr": "*fp16"} if fn is halved else {}
    assert found(fn, "layout", types, BLOCK=16) == []


def test_no_layout_of_first_elements() -> None:
    assert found(first_elements, "layout") == []


@triton.jit
def several(x_ptr, y_ptr, z_ptr, o_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + i, mask=i < n)
    y = tl.load(y_ptr + i, mask=i < n)
    z = tl.load(z_ptr + i, mask=i < n)
    total = tl.where(x > y, x, 0.0)
    for _ in range(n):
        total += y
    tl.store(o_ptr + i, total + tl.sum(z), mask=i < n)


def test_layout_of_several() -> None:
    """Through comparisons, selections and loops, not through a reduction."""
    assert {a[0]: set(a[1:]) for a in arguments(found(several, "layout", BLOCK=16))} == {
        "x_ptr": {"y_ptr", "o_ptr"},
        "y_ptr": {"x_ptr", "o_ptr"},
        "o_ptr": {"x_ptr", "y_ptr"},
    }


# -- inplace


@triton.jit
def update(x_ptr, y_ptr, HOW: tl.constexpr):
    i = tl.arange(0, 16)
    x = tl.load(x_ptr + i)
    if HOW == "double":
        tl.store(x_ptr + i, x * 2.0)
    elif HOW == "shifted":
        tl.store(x_ptr + i + 16, x * 2.0)
    elif HOW == "relu":
        tl.store(x_ptr + i, tl.maximum(x, 0.0))
    elif HOW == "clean":
        tl.store(x_ptr + i, tl.where(x == x, x, 0.0))
    elif HOW == "same":
        tl.store(x_ptr + i, x)
    elif HOW == "other":
        tl.store(x_ptr + i, tl.load(y_ptr + i) * 2.0)
        tl.store(y_ptr + i + 16, x)
    elif HOW == "normalize":
        tl.store(x_ptr + i, x - tl.max(x))
    elif HOW == "add":
        tl.atomic_add(y_ptr + i, x)
    elif HOW == "max":
        tl.atomic_max(y_ptr + i, x)
    elif HOW == "counter":
        if tl.atomic_add(y_ptr, 1.0) == 3.0:
            tl.atomic_xchg(y_ptr, 0.0)
    elif HOW == "loop":
        total = x
        for at in range(4):
            total += tl.load(y_ptr + at)
        tl.store(x_ptr + i, total)


INPLACE = {
    "double": [("x_ptr",)],
    "shifted": [],
    "relu": [],
    "clean": [],
    "same": [],
    "other": [],
    "normalize": [("x_ptr",)],
    "add": [("y_ptr",)],
    "max": [],
    "counter": [],
    "loop": [("x_ptr",)],
}


@pytest.mark.parametrize("how", INPLACE)
def test_inplace(how: str) -> None:
    """Another run changes the argument again: oracle, the kernel's meaning."""
    listed = found(update, "inplace", HOW=how)
    assert arguments(listed) == INPLACE[how]
    assert [hint.op for hint in listed] == ["tt.atomic_rmw" if how == "add" else "tt.store"] * len(
        listed
    )


# -- unmasked


@triton.jit
def guarded(x_ptr, y_ptr, z_ptr, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + i, mask=i < n, other=0.0)
    if n > 0:
        x += tl.load(y_ptr + i)
    tl.store(z_ptr + i, x)


def test_unmasked() -> None:
    (hint,) = found(guarded, "unmasked", BLOCK=16)
    assert (hint.arguments, hint.statement) == (("z_ptr",), "tl.store(z_ptr + i, x)")


# -- kernels without any trouble


@triton.jit
def attention_like(q_ptr, k_ptr, o_ptr, stride_x, stride_y, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    q = tl.load(q_ptr + i[:, None] * stride_x + i[None, :])
    total = tl.zeros((BLOCK, BLOCK), tl.float32)
    for at in tl.range(0, n, num_stages=3):
        k = tl.load(k_ptr + (at * BLOCK + i)[:, None] * stride_y + i[None, :])
        total += tl.dot(q, tl.trans(k))
    tl.store(o_ptr + i[:, None] * stride_x + i[None, :], total)


def test_healthy_loop() -> None:
    kinds = {hint.kind for hint in hints(module_of(attention_like, BLOCK=16), 3)}
    assert kinds == {"unmasked"}


def test_kept_with_the_twin(tmp_path: Path) -> None:
    """Triton's cache gives back the hints that were put there."""
    listed = hints(module_of(again, STAGES=2, BARRIER=False, OTHER=0))
    table = OpTable("again", __file__, 1, (), hints=listed)
    file = tmp_path / "table.json"
    file.write_text(json.dumps(twin._table_json(table)))
    loaded = twin._load_table(SimpleNamespace(get_file=lambda name: str(file)))
    assert loaded is not None and loaded.hints == listed
    assert {hint.kind for hint in listed} == {"reload", "layout"}
