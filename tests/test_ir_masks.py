"""The algebra of masks against NumPy: the lanes agree, however a description was simplified."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.lib.stride_tricks import sliding_window_view

from flagprism_torch.ir import mask_shapes as shapes
from flagprism_torch.ir.masks import (
    ALL,
    NONE,
    UNKNOWN,
    Mask,
    both,
    chosen,
    conjuncts,
    either,
    implied_by,
    implies,
    is_constant,
    leaf,
    leaves,
    negated,
    size,
)
from flagprism_torch.ir.module import Module, Value

TEXT = """module {
tt.func public @k(ARGUMENTS) {
%true = arith.constant dense<true> : tensor<4x8xi1>
%false = arith.constant dense<false> : tensor<4x8xi1>
%some = arith.constant dense<[true, false]> : tensor<2xi1>
%one = arith.constant true
%wide = tt.splat %one : i1 -> tensor<4x8xi1>
%nota = arith.xori %a, %true : tensor<4x8xi1>
%ab = arith.andi %a, %b : tensor<4x8xi1>
%br = tt.broadcast %r : tensor<4x1xi1> -> tensor<4x8xi1>
%bc = tt.broadcast %c : tensor<1x8xi1> -> tensor<4x8xi1>
%rc = arith.andi %br, %bc : tensor<4x8xi1>
%arc = arith.andi %a, %rc : tensor<4x8xi1>
%ev = tt.expand_dims %v {axis = 0 : i32} : tensor<8xi1> -> tensor<1x8xi1>
%sv = tt.broadcast %ev : tensor<1x8xi1> -> tensor<4x8xi1>
tt.return
}
}"""
ARGUMENTS = (
    "%a: tensor<4x8xi1>, %b: tensor<4x8xi1>, %r: tensor<4x1xi1>, %c: tensor<1x8xi1>, "
    "%v: tensor<8xi1>, %f: i1"
)
ENTRY = Module(TEXT.replace("ARGUMENTS", ARGUMENTS)).entry
VALUES: dict[str, Value] = {value.name[1:]: value for value in ENTRY.arguments}
VALUES |= {v.name[1:]: v for op in ENTRY.walk() for v in op.results}
A, B, AB, RC = (leaf(VALUES[name]) for name in ("a", "b", "ab", "rc"))
Pair = tuple[Mask, np.ndarray[Any, Any]]
TILES = ("a", "b", "nota", "ab", "br", "bc", "rc", "arc", "sv", "true", "false")


def environment(bits: int) -> dict[str, Any]:
    """Arrays for all values, from the arguments that the bits give."""
    random = np.random.default_rng(bits)
    density = random.choice([0.1, 0.5, 0.9])
    env: dict[str, Any] = {
        name: random.random(shape) < density
        for name, shape in (("a", (4, 8)), ("b", (4, 8)), ("r", (4, 1)), ("c", (1, 8)), ("v", 8))
    }
    env["f"] = bool(bits & 1)
    tile = np.ones((4, 8), bool)
    env |= {
        "true": tile,
        "false": ~tile,
        "one": True,
        "wide": tile,
        "some": np.array([True, False]),
    }
    env |= {"nota": ~env["a"], "ab": env["a"] & env["b"]}
    env |= {"br": env["r"] & tile, "bc": env["c"] & tile}
    env["rc"] = env["br"] & env["bc"]
    env["arc"] = env["a"] & env["rc"]
    env["ev"] = env["v"][None]
    env["sv"] = env["ev"] & tile
    return env


def truth(mask: Mask, env: dict[str, Any], dims: tuple[int, ...]) -> Any:
    """The lanes of a description, as its page of kinds says."""
    if mask is ALL or mask is NONE:
        return np.full(dims, mask is ALL)
    arguments = mask.arguments
    if mask.kind == "value":
        return env[arguments[0].name[1:]]
    if mask.kind == "join":
        return np.stack([truth(part, env, dims[:-1]) for part in arguments], -1)
    parts = [truth(p, env, p.type.dims) for p in arguments if isinstance(p, Mask)]
    if mask.kind == "and":
        return np.logical_and.reduce(parts)
    if mask.kind == "or":
        return np.logical_or.reduce(parts)
    if mask.kind == "not":
        return np.logical_not(parts[0])
    if mask.kind == "any":
        return parts[0].any(arguments[1])
    if mask.kind == "half":
        return parts[0][..., arguments[1]]
    if mask.kind == "reverse_any":
        return reached(parts[0], *arguments[1:])
    assert mask.kind == "op"
    kind = mask.type.dims
    if arguments[1] == "tt.trans":
        return parts[0].transpose(shapes.order_of(arguments[2]))
    if arguments[1] in ("tt.broadcast", "tt.splat"):
        return np.broadcast_to(parts[0], kind)
    return np.reshape(parts[0], kind)


def reached(lanes: Any, axis: int, reverse: bool) -> Any:
    """Lanes before (reverse: behind) or at one that is in, by the window that begins at each."""
    moved = np.moveaxis(lanes, axis, -1)
    if reverse:
        moved = moved[..., ::-1]
    count = moved.shape[-1]
    padded = np.concatenate([moved, np.zeros_like(moved)], -1)
    found = sliding_window_view(padded, count, -1)[..., :count, :].any(-1)
    return np.moveaxis(found[..., ::-1] if reverse else found, -1, axis)


def _unary(pair: Pair, which: str) -> Pair:
    mask, lanes = pair
    if which == "not":
        return negated(mask), ~lanes
    if which == "rows":  # any in a row, for the whole row
        return shapes.along(mask, 1, (4, 8)), np.repeat(lanes.any(1, keepdims=True), 8, 1)
    if which == "columns":
        return shapes.along(mask, 0, (4, 8)), np.repeat(lanes.any(0, keepdims=True), 4, 0)
    if which == "later":
        return shapes.scanned(mask, 1, False), reached(lanes, 1, False)
    if which == "earlier":
        return shapes.scanned(mask, 0, True), reached(lanes, 0, True)
    if which == "halves":  # apart, changed places and together again
        split = shapes.reshaped(mask, (4, 4, 2))
        left, right = (shapes.halved(split, k) for k in (0, 1))
        turned = shapes.paired(right, left, (4, 4, 2))
        return shapes.reshaped(turned, (4, 8)), lanes.reshape(4, 4, 2)[..., ::-1].reshape(4, 8)
    if which == "split":
        split = shapes.reshaped(mask, (4, 4, 2))
        left, right = (shapes.halved(split, k) for k in (0, 1))
        return shapes.reshaped(shapes.paired(left, right, (4, 4, 2)), (4, 8)), lanes
    if which == "turned":
        turned = shapes.transposed(mask, (1, 0))
        back = shapes.reshaped(turned, (4, 8))
        return back, lanes.T.reshape(4, 8)
    if which == "back":
        return shapes.untransposed(shapes.transposed(mask, (1, 0)), (1, 0)), lanes
    row = shapes.unspread(mask, (1, 8))
    return shapes.spread(row, (4, 8)), np.repeat(lanes.any(0, keepdims=True), 4, 0)


UNARY = ("not", "rows", "columns", "later", "earlier", "halves", "split", "turned", "back", "line")
BINARY: dict[str, tuple[Callable[..., Mask], Callable[..., Any]]] = {
    "and": (both, np.logical_and),
    "or": (either, np.logical_or),
}
programs = st.recursive(
    st.sampled_from(TILES),
    lambda inner: st.one_of(
        st.tuples(st.sampled_from(UNARY), inner),
        st.tuples(st.sampled_from(tuple(BINARY)), inner, inner),
        st.tuples(st.just("choose"), inner, inner, inner),
    ),
    max_leaves=7,
)


def build(program: Any, env: dict[str, Any]) -> Pair:
    if isinstance(program, str):
        return leaf(VALUES[program]), env[program]
    parts = [build(part, env) for part in program[1:]]
    if program[0] == "choose":
        masks, lanes = zip(*parts, strict=True)
        return chosen(*masks), np.where(*lanes)
    if program[0] in BINARY:
        describe, compute = BINARY[program[0]]
        return describe(parts[0][0], parts[1][0]), compute(parts[0][1], parts[1][1])
    return _unary(parts[0], program[0])


@settings(max_examples=200, deadline=None)
@given(programs, programs, st.integers(0, 2**16))
def test_descriptions_are_what_they_were_built_from(first: Any, second: Any, bits: int) -> None:
    env = environment(bits)
    pairs = [build(program, env) for program in (first, second)]
    for mask, lanes in pairs:
        assert np.array_equal(truth(mask, env, (4, 8)), lanes)
        assert mask in (ALL, NONE) or mask.type.dims == (4, 8)
        assert negated(negated(mask)) == mask
        assert both(mask, mask) == either(mask, mask) == mask
        assert implies(mask, mask)
        wider = shapes.weakened(mask, lambda value: value.name != "%b")
        assert all(value.name != "%b" for value in leaves(wider))
        assert not (lanes & ~truth(wider, env, (4, 8))).any()
    (left, left_lanes), (right, right_lanes) = pairs
    assert both(left, right) == both(right, left)
    assert either(left, right) == either(right, left)
    if implies(left, right):
        assert not (left_lanes & ~right_lanes).any()


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        (both(A, ALL), A),
        (both(A, NONE), NONE),
        (either(A, ALL), ALL),
        (either(A, NONE), A),
        (both(A, AB), AB),  # ab is a and b
        (either(A, AB), A),
        (both(AB, negated(A)), NONE),
        (either(A, negated(A)), ALL),
        (leaf(VALUES["nota"]), negated(A)),
        (both(both(A, B), AB), AB),
        (either(A, both(negated(A), B)), either(A, B)),
        (both(A, either(negated(A), B)), both(A, B)),
        (either(both(A, B), both(negated(A), B)), B),
        (chosen(A, B, B), B),
        (chosen(A, ALL, B), either(A, B)),
        (chosen(A, A, both(A, B)), A),
        (both(both(A, B), either(A, RC)), both(A, B)),
        (leaf(VALUES["true"]), ALL),
        (leaf(VALUES["wide"]), ALL),
        (leaf(VALUES["false"]), NONE),
        (both(UNKNOWN, NONE), NONE),
        (both(UNKNOWN, A), UNKNOWN),
        (either(UNKNOWN, ALL), ALL),
        (either(UNKNOWN, A), UNKNOWN),
        (negated(UNKNOWN), UNKNOWN),
        (both(A, leaf(VALUES["v"])), UNKNOWN),  # of another shape
        (shapes.scanned(leaf(VALUES["br"]), 1, False), leaf(VALUES["br"])),
        # a row of rc is its r and any of c: the reduction itself is over one row
        (
            shapes.collapsed(RC, 1),
            both(
                shapes.reshaped(leaf(VALUES["r"]), (4,)),
                shapes.spread(shapes.collapsed(leaf(VALUES["c"]), 1), (4,)),
            ),
        ),
        (both(RC, shapes.along(RC, 1, (4, 8))), RC),
        (shapes.unspread(leaf(VALUES["bc"]), (1, 8)), leaf(VALUES["c"])),
        (shapes.reshaped(leaf(VALUES["ev"]), (8,)), leaf(VALUES["v"])),
        (shapes.spread(leaf(VALUES["f"]), (8,)).arguments[0], leaf(VALUES["f"])),
    ],
)
def test_equal_lanes_have_equal_descriptions(made: Mask, expected: Mask) -> None:
    assert made == expected
    if expected in (ALL, NONE, UNKNOWN):
        assert any(made is one for one in (ALL, NONE, UNKNOWN))


def test_order_does_not_matter() -> None:
    parts = [A, B, RC, negated(leaf(VALUES["sv"]))]
    made = set()
    for order in itertools.permutations(parts):
        mask = ALL
        for part in order:
            mask = both(mask, part)
        made.add(mask)
    assert len(made) == 1
    assert size(made.pop()) == 6  # and, four leaves, not


def test_implied_by() -> None:
    """Whether a mask lies within a condition."""
    assert implied_by(VALUES["a"], AB)
    assert implied_by(VALUES["ab"], both(A, B))
    assert implied_by(VALUES["br"], leaf(VALUES["arc"]))
    assert not implied_by(VALUES["ab"], A)
    assert not implied_by(VALUES["a"], either(A, B))
    assert not implied_by(VALUES["a"], UNKNOWN) and not implied_by(VALUES["a"], ALL)


def test_values() -> None:
    assert [v.name for v in conjuncts(VALUES["arc"])] == ["%arc", "%a", "%rc", "%br", "%bc"]
    assert is_constant(VALUES["wide"]) and not is_constant(VALUES["bc"])
    assert leaf(VALUES["some"]).kind == "value"  # neither all nor none
    assert [v.name for v in leaves(both(A, negated(B)))] == ["%a", "%b"]
