"""Valid lanes: the description of every value's mask, read off the TTIR of whole kernels.

A description is shown as text; a leaf as the integer arguments that its comparison depends on.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

import ir_kernels
import pytest
from ttir_text import named, ops, ttir

from flagprism_torch.ir.masks import ALL, UNKNOWN, Mask, ValidLanes
from flagprism_torch.ir.module import Module, Value

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
    **dict.fromkeys(("x_ptr", "y_ptr", "o_ptr", "a_ptr", "b_ptr"), "*fp32"),
    **dict.fromkeys("nmk", "i32"),
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
    if mask in (ALL, UNKNOWN):
        return mask.kind
    if mask.kind == "value":
        return "+".join(sorted(_arguments(mask.arguments[0])))
    if mask.kind == "and":
        return f"({shown(mask.arguments[0])} & {shown(mask.arguments[1])})"
    if mask.kind == "select":
        return f"select({', '.join(shown(m) for m in mask.arguments[1:])})"
    if mask.kind == "any":
        return f"any({shown(mask.arguments[0])}, {mask.arguments[1]})"
    assert mask.kind == "op"
    return f"{mask.arguments[1].removeprefix('tt.')}({shown(mask.arguments[0])})"


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
        ("two_masks", "both", "(n & m)"),
        ("two_masks", "chosen", "n"),  # a constant side takes no part
        ("two_masks", "other", "select(n, m)"),
        ("two_masks", "either", "select(n, m)"),
        ("two_masks", "kept", "select(n, (n & m))"),
        ("two_masks", "turned", "unknown"),  # lanes change places by exclusive or
        ("shapes", "row", "m"),
        ("shapes", "tile", "m+n"),
        ("shapes", "wide", "expand_dims(m)"),
        ("shapes", "summed", "(m+n & broadcast(expand_dims(m)))"),
        ("shapes", "total", "any((m+n & broadcast(expand_dims(m))), 1)"),
        ("shapes", "whole", "all"),
        ("shapes", "turned", "trans((m+n & broadcast(expand_dims(m))))"),
        ("shapes", "flat", "reshape((m+n & broadcast(expand_dims(m))))"),
        ("shapes", "running", "(m+n & broadcast(expand_dims(m)))"),
        ("product", "a", "k+n"),
        ("product", "b", "k+m"),
        (
            "product",
            "c",
            "(broadcast(expand_dims(any(k+n, 1))) & broadcast(expand_dims(any(k+m, 0))))",
        ),
        ("loops", "x", "n+start"),
        ("loops", "peak", "all"),
        ("branches", "x", "unknown"),  # in the while loop
        ("early_return", "x", "all"),
        ("early_return", "y", "all"),
        ("regions", "at", "all"),
        ("descriptors", "x", "unknown"),
        ("descriptors", "y", "unknown"),
        ("atomics", "old", "n"),
        ("atomics", "seen", "all"),  # what memory held
    ],
)
def test_masks(kernel: str, variable: str, expected: str) -> None:
    assert mask_of(kernel, variable)[0] == expected


def test_loop_carried_values() -> None:
    """A sum of masked loads holds padding (its neutral element) and is not derivable."""
    module, lanes = lanes_of("loops")
    first, outer, inner = ops(module, "scf.for")
    assert [shown(lanes.of(v)) for v in first.results] == ["unknown", "all"]
    assert shown(lanes.of(outer.results[0])) == "unknown"
    assert shown(lanes.of(inner.regions[0][0].arguments[1])) == "unknown"
    (total,) = (op.results[0] for op in first.regions[0][0].ops if op.name == "arith.addf")
    assert shown(lanes.of(total)) == "unknown"


def test_branches() -> None:
    module, lanes = lanes_of("branches")
    both = ops(module, "scf.if")[0]
    assert [shown(lanes.of(v)) for v in both.results] == ["all", "all"]
    assert shown(lanes.of(named(module, "y")[0])) == "all"


def test_scalars_are_valid() -> None:
    module, lanes = lanes_of("shapes")
    (_, whole) = ops(module, "tt.reduce")
    assert whole.results[0].type.shape is None and lanes.of(whole.results[0]) is ALL
