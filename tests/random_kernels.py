"""Random small kernels, as hypothesis draws them (kernel_tree says what they are).

What Triton would fold, merge or move out of a loop is not drawn, nor is a comparison of anything
that depends on the order of a sum or on the last bit of a function.
"""

from __future__ import annotations

from random import Random
from typing import Any

from hypothesis import strategies as st
from kernel_tree import (
    CASTS,
    FLOATS,
    INEXACT,
    INF,
    Branch,
    Carried,
    Loop,
    Mask,
    Program,
    Statement,
    Value,
    names,
    prune,
)


class _Draft:
    """A program in the making; `pools`: values in scope, innermost block last."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.program = Program(self.pick(1, 1, 2))
        self.pools: list[list[Value]] = [[]]
        self.number = 0
        self.wheres = 0
        self.known: set[Any] = set()
        self.cast: set[Value] = set()
        self.masks = [Mask("m0"), Mask("m1")]

    def pick(self, *choices: Any) -> Any:
        return self.random.choice(choices)

    def new(self, dtype: str, kind: str = "tile", **given: Any) -> Value:
        self.number += 1
        return Value(f"t{self.number}", dtype, kind, **given)

    def values(self, *, moves: bool, **wanted: Any) -> list[Value]:
        """Values in scope, the latest ones twice."""
        found = [
            v
            for pool in self.pools
            for v in pool
            if all(getattr(v, key) == value for key, value in wanted.items())
            and (v.moves or not moves)
        ]
        return [*found, *found[-2:]]

    def load(self, block: list[Any], dtype: str, moves: bool = False) -> None:
        masks = [*self.masks, *([Mask("mk", moves=True)] * 2 if moves else [])]
        mask = self.pick(None, *masks) if self.program.rank == 1 else self.pick(*masks)
        other = None
        if mask is not None:
            whole = (None, None, 0, 3)
            other = self.pick(*whole) if dtype == "int32" else self.pick(*whole, -INF, INF, -INF)
        self.program.inputs.append((dtype, "tile"))
        out = self.new(dtype, moves=moves)
        pointer = len(self.program.inputs) - 1
        self.put(block, Statement("load", (), out, mask, other, pointer=pointer))

    def put(self, block: list[Any], one: Statement) -> None:
        block.append(one)
        if one.out is not None:
            self.pools[-1].append(one.out)

    def constant(self, dtype: str, op: str = "add") -> float | int:
        if dtype == "int32":
            return self.pick(2, 3, -5, 1 << 20)
        return self.pick(0.5, -2.0, 1024.0, *((0.0,) if op in ("mul", "max", "min") else ()))

    def statement(self, block: list[Any], moves: bool = False) -> None:
        """One more operation on values in scope; `moves`: on what changes in the loop."""
        first = self.pick(*self.values(moves=moves))
        real = first.dtype != "int32"
        ops = ["add", "mul", "add", "mul", "cast", "where", "where", "where"]
        if first.dtype in ("fp32", "fp64"):
            ops += ["div", "div", "sqrt", "log", "exp", "rsqrt"]
        if first.dtype != "bf16":
            ops += ["max", "min"]
        if real:
            ops += ["abs", "sub", "sub"]
        if first.kind == "tile" and first.dtype in ("fp32", "fp64", "int32"):
            ops += ["sum", "top", "sum"]
        op = self.pick(*ops)
        one = getattr(self, f"_{op}", self._elementwise)(op, first, moves)
        if one is None:
            return
        if self._is_new(one):
            self.put(block, one)

    def _is_new(self, one: Statement) -> bool:
        """Whether no operation like this was drawn before: Triton merges equal ones."""
        commutes = one.op in ("add", "mul", "max", "min")
        arguments = frozenset(one.args) if commutes else one.args
        key = (one.op, arguments, one.symbol, one.axis, one.out.dtype if one.out else None)
        new = key not in self.known
        self.known.add(key)
        return new

    def _out(self, args: tuple[Any, ...], dtype: str, kind: str, op: str = "") -> Value:
        values = names(args)
        exact = all(v.exact for v in values) and not (op in INEXACT and dtype != "int32")
        return self.new(dtype, kind, exact=exact, moves=any(v.moves for v in values))

    def _elementwise(self, op: str, first: Value, moves: bool) -> Statement | None:
        args: tuple[Any, ...] = (first,)
        kind = first.kind
        if op in ("add", "sub", "mul", "div", "max", "min"):
            others = [v for v in self.values(moves=False, dtype=first.dtype) if self._fit(first, v)]
            if op in ("max", "min", "div") or first.dtype == "int32":  # folded otherwise
                others = [v for v in others if v is not first]
            constants = [self.constant(first.dtype, op)]
            if first.dtype == (
                "int32" if op in ("add", "mul") else "fp16" if op in ("max", "min") else ""
            ):
                constants = []  # folded, or computed in fp32
            if not others + constants:
                return None
            second = self.pick(*others, *constants)
            args = (first, second)
            if isinstance(second, Value) and first.kind == "one":
                kind = second.kind
            if isinstance(second, Value) and second.kind == "tile":
                kind = "tile"
        return Statement(op, args, self._out(args, first.dtype, kind, op))

    def _fit(self, one: Value, other: Value) -> bool:
        kinds = {one.kind, other.kind}
        return kinds != {"rows", "columns"}

    def _cast(self, op: str, first: Value, moves: bool) -> Statement | None:
        if first in self.cast:  # casts of casts are folded
            return None
        dtype = self.pick(*CASTS[first.dtype])
        out = self._out((first,), dtype, first.kind)
        self.cast.add(out)
        return Statement("cast", (first,), out)

    def _where(self, op: str, first: Value, moves: bool) -> Statement | None:
        compared = self.values(moves=moves, exact=True, kind="tile")
        if first.kind != "tile" or self.wheres >= 2 or not compared:
            return None
        left = self.pick(*compared)
        right = self.constant(left.dtype)
        others = [v for v in self.values(moves=False, dtype=first.dtype, kind="tile")
                  if v is not first]  # fmt: skip
        constants: Any = (7,) if first.dtype == "int32" else self.pick((-INF,), (INF,), (0.0,))
        if first.dtype in ("fp16", "bf16"):  # a constant would make it fp32
            constants = ()
        if not others and not constants:
            return None
        args = (left, right, first, self.pick(*others, *constants))
        self.wheres += 1
        if self.pick(True, False):
            args = (left, right, args[3], first)
        out = self._out(args, first.dtype, "tile")
        symbol = self.pick("<", ">")
        if (left, right, symbol) in self.known:
            return None
        self.known.add((left, right, symbol))
        return Statement("where", args, out, symbol=symbol)

    def _sum(self, op: str, first: Value, moves: bool) -> Statement:
        axis = self.pick(*range(self.program.rank))
        kind = "one" if self.program.rank == 1 else ("columns", "rows")[axis]
        return Statement(op, (first,), self._out((first,), first.dtype, kind, op), axis=axis)

    _top = _sum

    def store(self, block: list[Any], value: Value) -> None:
        mask = None
        if value.kind == "tile":
            mask = self.pick(None, *self.masks, *self.masks)
        elif value.kind != "one":
            mask = self.pick(None, Mask("mr" if value.kind == "rows" else "mc", value.kind))
        self.program.outputs.append((value.dtype, value.kind))
        pointer = len(self.program.outputs) - 1
        self.put(block, Statement("store", (value,), mask=mask, pointer=pointer))

    def branch(self, block: list[Any], moves: bool = False) -> None:
        """An `if` with a store, or one whose sides make the same variable."""
        scalars = self.values(moves=False, exact=True, kind="one")
        condition = self.pick(None, None, *scalars)
        if self.pick(True, False) and not moves:
            self.program.inputs.append(("int32", "one"))
            condition = self.new("int32", "one")
            pointer = len(self.program.inputs) - 1
            self.put(block, Statement("load", (), condition, pointer=pointer))
        node = Branch(condition, [], [])
        self.pools.append([])
        for _ in range(self.pick(1, 2)):
            self.statement(node.yes, moves)
        inside = self.pools.pop()
        self.store(node.yes, self.pick(*(inside or self.values(moves=moves))))
        if not moves and self.pick(True, False):
            self._join(node)
        block.append(node)

    def _join(self, node: Branch) -> None:
        first = self.pick(*self.values(moves=False, kind="tile"))
        others = self.values(moves=False, kind="tile", dtype=first.dtype)
        sides = [
            Statement(
                op, (one, self.constant(first.dtype)), Value("", first.dtype, exact=one.exact)
            )
            for op, one in (("add", first), ("mul", self.pick(*others)))
        ]
        if not all(map(self._is_new, sides)):
            return
        name = self.new(first.dtype, exact=all(s.out.exact for s in sides if s.out))
        for side, one in zip((node.yes, node.no), sides, strict=True):
            assert one.out is not None
            one.out.name = name.name
            side.append(one)
        node.joined = (name, *(one.out for one in sides))  # type: ignore[assignment]
        self.pools[-1].append(name)

    def loop(self, block: list[Any], branches: bool) -> None:
        node = Loop([], [])
        self.pools.append([])
        starts = [self.new(self.pick("fp32", "fp32", "fp64", "fp16", "int32"), moves=True)
                  for _ in range(self.pick(1, 1, 2))]  # fmt: skip
        self.pools[-1] += starts
        for before in starts:
            self.load(node.body, before.dtype, moves=True)
        for _ in range(self.pick(2, 3, 4)):
            self.statement(node.body, moves=True)
        if branches:
            self.branch(node.body, moves=True)
        results = []
        for before in starts:
            real = before.dtype != "int32"
            op = self.pick("add", "add", "max", "mul")
            others = [v for v in self.values(moves=True, dtype=before.dtype)
                      if v not in starts and v.kind in ("tile", "one")]  # fmt: skip
            if not real:  # what no load enters is index arithmetic, which has no rows
                others = [
                    s.out
                    for s in node.body
                    if isinstance(s, Statement) and s.out in others and s.op == "load"
                ]
            args = (before, self.pick(*others))
            exact = all(v.exact for v in args)
            after = Value(before.name, before.dtype, exact=exact, moves=True)
            last = Statement(op, args, after)
            while not self._is_new(last):
                last = Statement(
                    self.pick("add", "max", "mul", "min", "sub"),
                    (before, self.pick(*others)),
                    after,
                )
            node.body.append(last)
            start = self.pick(0, 1) if not real else self.pick(0.0, 1.0, -INF, 0.0)
            results.append(Value(before.name, before.dtype, exact=exact))
            node.carried.append(Carried(start, before, after, results[-1]))
            before.exact = exact
        self.pools.pop()
        block.append(node)
        self.pools[-1] += results


@st.composite
def programs(draw: Any) -> Program:
    """A pruned program with at least one store.

    Hypothesis draws the seed only: its own choices repeat themselves, and a kernel takes too long
    to shrink.
    """
    draft = _Draft(draw(st.randoms(use_true_random=True)))
    body = draft.program.body
    form = draft.pick("plain", "loop", "loop", "branch", "both", "inner")
    for _ in range(draft.pick(1, 2)):
        draft.load(body, draft.pick("fp32", "fp32", *FLOATS, "int32"))
    for _ in range(draft.pick(2, 3, 4)):
        draft.statement(body)
    if form in ("loop", "both", "inner"):
        draft.loop(body, form == "inner")
        draft.statement(body)
    if form in ("branch", "both"):
        draft.branch(body)
    for _ in range(draft.pick(3, 4, 5, 6)):
        draft.statement(body)
    for _ in range(draft.pick(1, 2, 2)):
        draft.store(body, draft.pick(*draft.pools[0][-3:]))
    prune(draft.program)
    return draft.program
