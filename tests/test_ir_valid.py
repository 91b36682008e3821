"""Valid lanes of whole kernels, against NumPy, and their descriptions.

A shown description has a leaf as the integer arguments that its comparison depends on.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import ir_kernels
import lane_kernels
import numpy as np
import pytest
import torch
from lane_oracle import described
from ttir_text import named, ops, ttir

from flagprism_torch.ir.masks import ALL, NONE, UNKNOWN, Mask
from flagprism_torch.ir.module import Module, Value
from flagprism_torch.ir.valid import ValidLanes

SIZES: Mapping[str, Mapping[str, int]] = {
    "masked": {"BLOCK": 64},
    "two_masks": {"BLOCK": 64},
    "shapes": {"ROWS": 8, "COLUMNS": 16},
    "product": {"SIZE": 32},
    "loops": {"BLOCK": 16},
    "branches": {"BLOCK": 16},
    "early_return": {"BLOCK": 16},
    "regions": {"BLOCK": 16},
    "atomics": {"BLOCK": 16},
    "descriptors": {"ROWS": 8, "COLUMNS": 16},
}
TYPES = {
    **dict.fromkeys(("x_ptr", "y_ptr", "o_ptr", "a_ptr", "b_ptr", "in_ptr", "out_ptr"), "*fp32"),
    **dict.fromkeys(("n", "m", "k", "i", "j", "xnumel"), "i32"),
}


@cache
def lanes_of(kernel: str) -> tuple[Module, ValidLanes]:
    types = {**TYPES, "x_ptr": "*i32", "o_ptr": "*i32"} if kernel == "atomics" else TYPES
    module = Module(ttir(getattr(ir_kernels, kernel), types, SIZES[kernel]))
    return module, ValidLanes(module.entry)


def _arguments(value: Value) -> set[str]:
    """Integer arguments (of kernel or loop) that a value is computed from."""
    if value.op is None:
        return {value.name.lstrip("%")} if value.type.text == "i32" else set()
    return set().union(*(_arguments(operand) for operand in value.op.operands))


def shown(mask: Mask) -> str:
    if mask in (ALL, NONE, UNKNOWN):
        return mask.kind
    parts = [shown(part) for part in mask.arguments if isinstance(part, Mask)]
    if mask.kind == "value":
        return "+".join(sorted(_arguments(mask.arguments[0]))) or "data"
    if mask.kind in ("and", "or"):
        return f"({f' {mask.kind} '.join(parts)})"
    if mask.kind == "any":
        return f"any({parts[0]}, {mask.arguments[1]})"
    if mask.kind == "not":
        return f"not {parts[0]}"
    assert mask.kind == "op"
    return f"{mask.arguments[1].removeprefix('tt.')}({parts[0]})"


def mask_of(kernel: str, variable: str) -> tuple[str, tuple[int, ...]]:
    """Shown mask, and its shape, of the last value of a statement."""
    module, lanes = lanes_of(kernel)
    value = named(module, variable)[-1]
    mask = lanes.of(value)
    if mask not in (ALL, UNKNOWN):
        assert mask.type.element == "i1"
        assert mask.type.dims == value.type.dims
    return shown(mask), value.type.dims


@pytest.mark.parametrize(
    ("kernel", "variable", "expected"),
    [
        ("masked", "x", "n"),
        ("masked", "whole", "all"),
        ("masked", "square", "n"),
        ("masked", "mixed", "n"),
        ("masked", "doubled", "all"),
        ("masked", "narrow", "n"),
        ("masked", "shifted", "n"),
        ("two_masks", "a", "n"),
        ("two_masks", "b", "m"),
        ("two_masks", "both", "(n and m)"),
        ("two_masks", "chosen", "n"),  # a constant side takes no part
        ("two_masks", "other", "(n or m)"),  # n: a, which is valid there; else b
        ("two_masks", "either", "((n and m) or (m and not m))"),
        ("two_masks", "kept", "n"),
        ("two_masks", "turned", "unknown"),  # lanes change places by exclusive or
        ("shapes", "row", "m"),
        ("shapes", "tile", "m+n"),
        ("shapes", "wide", "expand_dims(m)"),
        ("shapes", "summed", "(m+n and broadcast(expand_dims(m)))"),
        ("shapes", "whole", "all"),
        ("shapes", "turned", "(trans(m+n) and trans(broadcast(expand_dims(m))))"),
        ("shapes", "flat", "(reshape(m+n) and reshape(broadcast(expand_dims(m))))"),
        ("shapes", "running", "(m+n and broadcast(expand_dims(m)))"),
        ("product", "a", "k+n"),
        ("product", "b", "k+m"),
        ("loops", "x", "n+start"),
        ("loops", "total", "all"),  # a sum that starts valid
        ("loops", "peak", "all"),
        ("branches", "x", "all"),
        ("early_return", "x", "all"),
        ("early_return", "y", "all"),
        ("regions", "at", "all"),
        ("atomics", "old", "n"),
        ("atomics", "seen", "all"),  # what memory held
    ],
)
def test_masks(kernel: str, variable: str, expected: str) -> None:
    assert mask_of(kernel, variable)[0] == expected


def test_branches() -> None:
    module, lanes = lanes_of("branches")
    both = ops(module, "scf.if")[0]
    assert [shown(lanes.of(v)) for v in both.results] == ["all", "all"]
    assert shown(lanes.of(named(module, "y")[0])) == "all"


def test_scalars_are_valid() -> None:
    module, lanes = lanes_of("shapes")
    (_, whole) = ops(module, "tt.reduce")
    assert whole.results[0].type.shape is None and lanes.of(whole.results[0]) is ALL


# -- against NumPy

BLOCK = 8
LINE = np.arange(BLOCK)
LONG = np.arange(2 * BLOCK)
ROW, COLUMN = np.arange(16)[:, None], np.arange(16)[None, :]
FULL = np.ones(BLOCK, bool)


def below(index: Any, extent: int) -> Any:
    return np.less(index, extent)


def _product(n: int, m: int, k: int) -> Any:
    a, b = below(ROW, n) & below(COLUMN, k), below(ROW, k) & below(COLUMN, m)
    return a.any(1)[:, None] & b.any(0)[None, :]


# kernel, variable (or operation and which of its results) -> lanes as a function of n, m, k
EXPECTED: dict[tuple[str, str], Callable[[int, int, int], Any]] = {
    ("carried", "part"): lambda n, m, k: below(LINE, m),
    ("carried", "total"): lambda n, m, k: FULL,
    ("carried", "shown"): lambda n, m, k: below(LINE, m),  # not part of the sum
    ("carried", "started"): lambda n, m, k: below(LINE, n),
    ("carried", "same"): lambda n, m, k: below(LINE, m),
    ("carried", "fetched"): lambda n, m, k: below(LINE, n),
    ("waiting", "total"): lambda n, m, k: FULL,
    ("waiting", "kept"): lambda n, m, k: below(LINE, n),
    ("sides", "tt.load#0"): lambda n, m, k: below(LINE, n),
    ("tiles", "tt.split#0"): lambda n, m, k: below(LONG, n)[::2],
    ("tiles", "tt.split#1"): lambda n, m, k: below(LONG, n)[1::2],
    ("tiles", "joined"): lambda n, m, k: np.stack([below(LONG, n)[::2], below(LINE, m)], -1),
    ("tiles", "moved"): lambda n, m, k: ((LINE + k) % BLOCK) < m,
    ("tiles", "counts"): lambda n, m, k: np.full(BLOCK, m > 0),
    ("tiles", "running"): lambda n, m, k: below(LINE, m),
    ("product", "c"): _product,
}
NUMBERS = [(3, 5, 2), (5, 3, 4), (0, 1, 1), (9, 7, 5)]


@pytest.mark.parametrize("numbers", NUMBERS, ids=str)
@pytest.mark.parametrize(("kernel", "variable"), EXPECTED)
def test_lanes(kernel: str, variable: str, numbers: tuple[int, int, int]) -> None:
    fn = getattr(ir_kernels if kernel == "product" else lane_kernels, kernel)
    text = ttir(fn, TYPES, {"SIZE": 16} if kernel == "product" else {"BLOCK": BLOCK})
    module = Module(text)
    name, _, number = variable.partition("#")
    results = [v for op in ops(module, name) for v in op.results]
    value = results[int(number)] if number else named(module, variable)[-1]
    found = ValidLanes(module.entry).of(value)
    tensors = [torch.rand(1024) for name in fn.arg_names if name.endswith("_ptr")]
    lanes = described(text, found, value.op, value.type.dims, [*tensors, *numbers])
    expected = np.broadcast_to(EXPECTED[kernel, variable](*numbers), value.type.dims)
    assert np.array_equal(lanes, expected)


def test_what_loops_leave() -> None:
    module = Module(ttir(lane_kernels.carried, TYPES, {"BLOCK": BLOCK}))
    lanes = ValidLanes(module.entry)
    (loop,) = ops(module, "scf.for")
    found = {shown(lanes.of(value)) for value in loop.results}
    # replaced by what is valid in other lanes: nothing can be said of `fetched`; `grown` takes
    # from it, and a sum of unknown lanes is unknown
    assert found == {"all", "n", "m", "unknown"}
    kinds = sorted(shown(lanes.of(value)) for value in loop.results)
    assert kinds == ["all", "m", "n", "unknown", "unknown"]


@pytest.mark.parametrize(("n", "m", "k"), [(3, 5, 2), (3, 5, 7)])
def test_what_branches_leave(n: int, m: int, k: int) -> None:
    """The sides of a branch, by its condition; unknown where a side's mask is data loaded in it."""
    text = ttir(lane_kernels.sides, TYPES, {"BLOCK": BLOCK})
    module = Module(text)
    lanes = ValidLanes(module.entry)
    (branch,) = ops(module, "scf.if")
    arguments = [torch.rand(64), torch.rand(64), torch.zeros(64), n, m, k]
    expected = [below(LINE, n), below(LINE, m) if k > 3 else below(LINE, n), FULL]
    found = [lanes.of(value) for value in branch.results]
    assert found[3] is UNKNOWN
    for mask, lane in zip(found[:3], expected, strict=True):
        assert np.array_equal(described(text, mask, branch, (BLOCK,), arguments), lane)


def test_padding_that_is_data() -> None:
    """Columns 3 and 4 of every row are 1.5, as the model says, and valid; lanes behind the end are
    not. Without Inductor's `xnumel` nothing tells data from padding."""
    text = ttir(lane_kernels.padded, TYPES, {"XBLOCK": 16})
    whole = below(LONG, 11)
    parted = whole & (LONG % 5 < 3)
    for changed, expected in ((text, whole), (text.replace("xnumel", "other"), parted)):
        module = Module(changed)
        value = named(module, "tmp4")[-1]
        mask = ValidLanes(module.entry).of(value)
        lanes = described(changed, mask, value.op, (16,), [torch.rand(64), torch.zeros(64), 11])
        assert np.array_equal(lanes, expected)


def test_products_of_scaled_factors() -> None:
    """Rows by `a`, columns by `b` and by its scales."""
    pointers = {"a_ptr": "*fp8e4nv", "b_ptr": "*fp8e4nv", "s_ptr": "*u8", "t_ptr": "*u8"}
    text = ttir(lane_kernels.scaled, {**TYPES, **pointers}, {"SIZE": 64})
    module = Module(text)
    value = named(module, "c")[-1]
    assert value.op is not None and value.op.name == "tt.dot_scaled"
    mask = ValidLanes(module.entry).of(value)
    i = np.arange(64)
    lanes = described(text, mask, value.op, (64, 64), [5, 9, 7], only=True)
    assert np.array_equal(lanes, (i[:, None] < 5) & (i[None, :] < 7))


DESCRIPTOR = {"ROWS": 8, "COLUMNS": 16}
TILE_ROW, TILE_COLUMN = np.arange(8)[:, None], np.arange(16)[None, :]
PLACES = [(6, 12, 0, 0), (6, 12, 2, 5), (20, 30, -3, -2), (4, 4, 2**31 - 4, 0)]


def inside(row: Any, column: Any, n: int, m: int) -> Any:
    return (row >= 0) & (row < n) & (column >= 0) & (column < m)


@pytest.mark.parametrize(("n", "m", "i", "j"), PLACES)
def test_descriptors(n: int, m: int, i: int, j: int) -> None:
    """Lanes outside of the tensor are filled."""
    text = ttir(lane_kernels.described, TYPES, DESCRIPTOR)
    module = Module(text)
    (x,) = named(module, "x")
    mask = ValidLanes(module.entry).of(x)
    lanes = described(text, mask, x.op, (8, 16), [n, m, i, j], only=True)
    assert np.array_equal(lanes, inside(i + TILE_ROW, j + TILE_COLUMN, n, m))


@pytest.mark.parametrize(("n", "m", "i", "j"), [(9, 12, 3, 2), (16, 30, 0, 0), (9, 12, 1, 3)])
def test_descriptors_of_other_ranks(n: int, m: int, i: int, j: int) -> None:
    text = ttir(lane_kernels.listed, TYPES, DESCRIPTOR)
    module = Module(text)
    lanes = ValidLanes(module.entry)
    ((gather,), (load,)) = (ops(module, f"tt.descriptor_{k}") for k in ("gather", "load"))
    rows = np.arange(8)[:, None] * 2 - i
    deep = inside(i + TILE_ROW, j + TILE_COLUMN, n, m) & (0 <= j < i)
    for op, expected in ((gather, inside(rows, j + TILE_COLUMN, n, m)), (load, deep)):
        mask = lanes.of(op.results[0])
        found = described(text, mask, op, (8, 16), [n, m, i, j], only=True)
        assert np.array_equal(found, expected)


def test_descriptors_from_the_host() -> None:
    """Their shape is passed behind them."""
    types = {**TYPES, "desc": "tensordesc<fp32[8, 16]>"}
    text = ttir(lane_kernels.passed_in, types, DESCRIPTOR)
    module = Module(text)
    (x,) = named(module, "x")[-1:]
    mask = ValidLanes(module.entry).of(x)
    arguments = [6, 12, 0, 0, 1, 5]  # shape, strides, i, j
    found = described(text, mask, x.op, (8, 16), arguments, only=True)
    assert np.array_equal(found, inside(1 + TILE_ROW, 5 + TILE_COLUMN, 6, 12))
    hidden = re.sub(r"%desc(_1|\.shape\.1)\b", "%other", text)
    module = Module(hidden)
    assert ValidLanes(module.entry).of(named(module, "x")[-1]) is UNKNOWN
