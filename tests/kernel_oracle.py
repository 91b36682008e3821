"""What a random kernel computes and what is to be said of it, in NumPy, program by program.

Note [Bounds]
Of every executed statement the oracle knows the lanes that really matter in this run (`needed`) and
the lanes that may count as needed by the documented supersets (`wide`, flagprism_torch.ir.needed):
conditions of a `where` are dropped where they are not known outside of their loop or branch, a
branch counts as taken, a value that a loop carries is needed as in any iteration, of a scalar all
lanes are. What is reported must lie between the two; mostly they are equal, and it is exact.

Likewise births of an infinity from a sentinel: `own` marks lanes whose infinity the program wrote;
at most every infinity of a program that has such constants counts as one.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from kernel_tree import Branch, Loop, Program, Statement, Value, names, walk

Array = np.ndarray[Any, Any]
NUMPY = {"fp16": np.float16, "fp32": np.float32, "fp64": np.float64, "bf16": np.float32,
         "int32": np.int32}  # fmt: skip
_BINARY: dict[str, Any] = {"add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide,
                           "max": np.maximum, "min": np.minimum}  # fmt: skip
_UNARY: dict[str, Any] = {"abs": np.abs, "sqrt": np.sqrt, "exp": np.exp, "log": np.log,
                          "rsqrt": lambda x: 1 / np.sqrt(x)}  # fmt: skip


@dataclass(eq=False)
class Event:
    """One execution of a statement. `value`, `valid`, `own`, `needed`, `wide`: its lanes (of a
    store: those of what it stores); `args`: what it read, as events or constants; `mask`: lanes
    that a load or store touches; `taken`: of a `where`."""

    one: Statement | None
    program: int
    iteration: int
    value: Array
    valid: Array
    own: Array
    args: tuple[Any, ...] = ()
    mask: Array | None = None
    taken: Array | None = None
    needed: Array = field(init=False)
    wide: Array = field(init=False)

    def __post_init__(self) -> None:
        self.needed, self.wide = (np.zeros(self.value.shape, bool) for _ in range(2))


@dataclass(eq=False)
class Scope:
    """One run of a block: its own events, masks that only hold here, and the runs inside."""

    block: list[Any]
    masks: dict[str, Array] = field(default_factory=dict)
    events: dict[Statement, Event] = field(default_factory=dict)
    inner: list[tuple[Any, Scope]] = field(default_factory=list)

    def conditions(self) -> dict[Any, Array]:
        return {
            **self.masks,
            **{one: e.taken for one, e in self.events.items() if e.taken is not None},
        }


def lift(program: Program, value: Any, kind: str, array: Any) -> Any:
    """Lanes of an operand where a statement with a result of `kind` uses them."""
    if kind == "tile" and isinstance(value, Value):
        if value.kind == "rows" and program.rank == 2:
            return array[:, None]
        if value.kind == "columns":
            return array[None, :]
    return array


def lower(program: Program, value: Value, kind: str, lanes: Array) -> Array:
    """Lanes of an operand of which any use is among `lanes` of a result of `kind`."""
    if value.kind == kind:
        return lanes
    if value.kind == "one":
        return np.asarray(lanes.any())
    return np.asarray(lanes.any(1 if value.kind == "rows" else 0))


class Run:
    """All executions of a program.

    Args:
        inputs: one array per input pointer, bf16 as float32.
        sizes: n, w, h, total, trips.
    """

    def __init__(
        self, program: Program, inputs: list[Array], sizes: dict[str, int], grid: int
    ) -> None:
        self.program, self.inputs, self.sizes = program, inputs, sizes
        loops = max(sizes["trips"], 1)
        self.outputs = [
            np.zeros(grid * loops * math.prod(program.shape(kind)), NUMPY[dtype])
            for dtype, kind in program.outputs
        ]
        self.events: list[Event] = []
        self._on_the_way = _on_the_way(program)
        self._counts: dict[Any, int] = {}
        with np.errstate(all="ignore"):
            for number in range(grid):
                self._run(number)

    def of(self, one: Statement) -> list[Event]:
        return [event for event in self.events if event.one is one]

    # -- forward

    def _run(self, number: int) -> None:
        self._counts.clear()
        self._program, self._k = number, 0
        first = len(self.events)
        self._branched: list[Event] = []
        masks = self._masks(0)
        scope = Scope(self.program.body, {name: m for name, m in masks.items() if name != "mk"})
        self._block(scope, {}, looped=False, masks=masks)
        needed_lanes(self.program, self.events[first:], self._branched)
        Need(self.program, scope)

    def _masks(self, k: int) -> dict[str, Any]:
        s = self.sizes
        rows, columns = np.arange(4), np.arange(8)
        if self.program.rank == 1:
            return {"m0": columns < s["n"], "m1": columns < s["w"],
                    "mk": k * 8 + columns < s["total"]}  # fmt: skip
        at = rows[:, None] * 8 + columns
        mr, mc = rows < s["h"], columns < s["n"]
        return {"mr": mr, "mc": mc, "m0": mr[:, None] & mc, "m1": at < s["w"],
                "mk": k * 32 + at < s["total"]}  # fmt: skip

    def _block(
        self, scope: Scope, env: dict[Value, Event], looped: bool, masks: dict[str, Array]
    ) -> None:
        for node in scope.block:
            if isinstance(node, Statement):
                event = self._statement(node, env, looped, masks)
                self.events.append(event)
                scope.events[node] = event
                if node.out is not None:
                    env[node.out] = event
            elif isinstance(node, Branch):
                if node.condition is not None:
                    event = env[node.condition]
                    taken = bool(event.value > 0)
                    self._branched.append(event)
                else:
                    taken = (self._program + (self._k if looped else 0)) % 2 == 0
                inner = Scope(node.yes if taken else node.no)
                scope.inner.append((node, inner))
                self._block(inner, env, looped, masks)
                if node.joined is not None:
                    env[node.joined[0]] = env[node.joined[1 if taken else 2]]
            else:
                self._loop(node, scope, env)

    def _loop(self, node: Loop, scope: Scope, env: dict[Value, Event]) -> None:
        for one in node.carried:
            shape, dtype = self.program.shape("tile"), NUMPY[one.before.dtype]
            start = np.full(shape, one.start, dtype)
            infinite = np.isinf(start) if start.dtype.kind == "f" else np.zeros(shape, bool)
            env[one.before] = Event(None, self._program, 0, start, np.ones(shape, bool), infinite)
            env[one.result] = env[one.before]
        for k in range(self.sizes["trips"]):
            self._k = k
            masks = self._masks(k)
            inner = Scope(node.body, {"mk": masks["mk"]})
            scope.inner.append((node, inner))
            self._block(inner, env, True, masks)
            for one in node.carried:
                env[one.before] = env[one.result] = env[one.after]

    def _statement(
        self, one: Statement, env: dict[Value, Event], looped: bool, masks: dict[str, Array]
    ) -> Event:
        iteration = self._counts.get(one, 0)
        self._counts[one] = iteration + 1
        args = tuple(env[a] if isinstance(a, Value) else a for a in one.args)
        target = one.out if one.out is not None else one.args[0]
        shape = self.program.shape(target.kind)
        mask = None if one.mask is None else masks[one.mask.name]
        if one.op in ("load", "store"):
            place = self._program * self.sizes["trips"] + self._k if looped else self._program
            at = place * math.prod(shape) + np.arange(math.prod(shape)).reshape(shape)
            touched = np.ones(shape, bool) if mask is None else mask
            if one.op == "store":
                event = args[0]
                self.outputs[one.pointer][at[touched]] = event.value[touched]
                return Event(one, self._program, iteration, event.value, touched, event.own, args,
                             touched)  # fmt: skip
            other = 0 if one.other is None else one.other
            value = np.full(shape, other, NUMPY[target.dtype])
            value[touched] = self.inputs[one.pointer][at[touched]]
            own = ~touched & (abs(other) == np.inf)
            return Event(one, self._program, iteration, value, touched, own, args, touched)
        values, valids, owns = [], [], []
        for given, a in zip(one.args, args, strict=True):
            if isinstance(a, Event):
                parts = (
                    lift(self.program, given, target.kind, x) for x in (a.value, a.valid, a.own)
                )
                for column, part in zip((values, valids, owns), parts, strict=True):
                    column.append(part)
            else:
                dtype = one.args[0].dtype if one.op != "where" or len(values) < 2 else target.dtype
                values.append(np.asarray(a, NUMPY[dtype]))
                valids.append(np.asarray(True))
                owns.append(np.asarray(np.isinf(a)))
        taken = None
        if one.op == "where":
            taken = values[0] < values[1] if one.symbol == "<" else values[0] > values[1]
            value, own = (np.where(taken, x[2], x[3]) for x in (values, owns))
            valid = np.where(taken, valids[2], valids[3])
            # a constant replaces lanes, it does not make them valid
            for side, rest in ((2, 3), (3, 2)):
                if not isinstance(args[side], Event):
                    valid = valids[rest]
        elif one.op in ("sum", "top"):
            source, axis = values[0], one.axis
            real = source.dtype.kind == "f"
            if one.op == "sum":
                value = np.add.reduce(source, axis=axis, dtype=source.dtype)
            else:
                value = (np.fmax if real else np.maximum).reduce(source, axis=axis)
            valid = valids[0].any(axis) if target.kind != "one" else np.asarray(True)
            infinite = np.isinf(source) if real else np.zeros(source.shape, bool)
            own = ((infinite & owns[0]) | ~infinite).all(axis) & infinite.any(axis)
        else:
            value = self._compute(one, target, values)
            valid = np.broadcast_to(np.logical_and.reduce(np.broadcast_arrays(*valids)), shape)
            own = self._handed_on(one, values, owns, value)
        if one in self._on_the_way or target.kind == "one":
            valid = np.ones(shape, bool)
        value = np.asarray(value)
        if value.dtype.kind == "f":
            own = own & np.isinf(value)
        return Event(one, self._program, iteration, value, np.broadcast_to(valid, shape),
                     np.broadcast_to(own, shape), args, None, taken)  # fmt: skip

    @staticmethod
    def _compute(one: Statement, target: Value, values: list[Array]) -> Array:
        if one.op == "cast":
            result = values[0].astype(NUMPY[target.dtype])
        elif one.op in _UNARY:
            result = np.asarray(_UNARY[one.op](values[0])).astype(values[0].dtype)
        else:
            function = _BINARY[one.op]
            if one.op in ("max", "min") and values[0].dtype.kind == "f":  # NaN loses
                function = np.fmax if one.op == "max" else np.fmin
            result = np.asarray(function(*values))
        if target.dtype == "bf16":
            result = torch.tensor(result).to(torch.bfloat16).float().numpy()
        return result

    @staticmethod
    def _handed_on(one: Statement, values: list[Array], owns: list[Array], value: Any) -> Array:
        """Lanes whose infinity is an operand's, which the program wrote: all infinite operands are
        such, and one has the sign of the result."""
        if np.asarray(value).dtype.kind != "f" or values[0].dtype.kind != "f":
            return np.zeros(np.shape(value), bool)
        result = np.zeros(np.shape(value), bool)
        foreign = np.zeros(np.shape(value), bool)
        for x, own in zip(values, owns, strict=True):
            result = result | (own & (x == value))
            foreign = foreign | (np.isinf(x) & ~own)
        return result & ~foreign & np.isinf(value)


def _on_the_way(program: Program) -> set[Statement]:
    """Statements between what a loop carries and what replaces it: they are valid everywhere,
    because a loop is a reduction that starts with a constant."""
    found: set[Statement] = set()
    for loop in (node for node in walk(program.body) if isinstance(node, Loop)):
        flat = [node for node in walk(loop.body) if isinstance(node, Statement)]
        for one in loop.carried:
            forward, backward = {one.before}, {one.after}
            for node in flat:
                if set(data(node)) & forward and node.out is not None:
                    forward.add(node.out)
            for node in reversed(flat):
                if node.out in backward:
                    backward |= set(data(node))
            found |= {node for node in flat if node.out in forward & backward}
    return found


def data(one: Statement) -> list[Value]:
    """Values that a result is made of, without conditions."""
    return names(one.args[2:] if one.op == "where" else one.args)


# -- backward


def needed_lanes(program: Program, events: list[Event], branched: list[Event]) -> None:
    """Marks `needed` in the events of one program: what this run stored or branched on."""
    for event in branched:
        event.needed |= True
    for event in reversed(events):
        one = event.one
        assert one is not None
        if one.op == "store":
            event.needed |= event.valid
        for position, _, lanes in uses(program, one, event.needed, event.taken):
            event.args[position].needed |= lower_for(program, one, position, lanes)


def uses(
    program: Program, one: Statement, need: Array, taken: Array | None
) -> Iterator[tuple[int, Value, Array]]:
    """(position, value, lanes of the result that need it) of the operands of a statement."""
    for position, value in enumerate(one.args):
        if isinstance(value, Value):
            lanes = need
            if one.op == "where" and position >= 2 and taken is not None:
                lanes = need & (taken if position == 2 else ~taken)
            yield position, value, lanes


def lower_for(program: Program, one: Statement, position: int, lanes: Array) -> Array:
    value = one.args[position]
    if one.op in ("sum", "top"):
        wide = lanes if lanes.ndim == 0 else np.expand_dims(lanes, one.axis)
        return np.broadcast_to(wide, program.shape(value.kind))
    kind = one.out.kind if one.out is not None else value.kind
    return lower(program, value, kind, lanes)


class Need:
    """Marks `wide` in the events of one program (Note [Bounds])."""

    def __init__(self, program: Program, scope: Scope) -> None:
        self.program = program
        self.carried: dict[Value, Array] = {}
        self._scope(scope, {}, {})

    def _scope(self, scope: Scope, needs: dict[Value, Array], known: dict[Any, Array]) -> None:
        known = {**known, **scope.conditions()}
        self._back(scope.block, needs, known)
        for one, event in scope.events.items():
            event.wide = event.valid if one.op == "store" else needs[one.out]
        for node, inner in scope.inner:
            given: dict[Value, Array] = {}
            if isinstance(node, Branch) and node.joined is not None:
                need = self._of(node.joined[0], needs)
                given = {side: need.copy() for side in node.joined[1:]}
            elif isinstance(node, Loop):
                given = {one.after: self.carried[one.after].copy() for one in node.carried}
            self._scope(inner, given, known)

    def _of(self, value: Value, needs: dict[Value, Array]) -> Array:
        if value not in needs:
            needs[value] = np.zeros(self.program.shape(value.kind), bool)
        return needs[value]

    def _back(self, block: list[Any], needs: dict[Value, Array], known: dict[Any, Array]) -> None:
        for node in reversed(block):
            if isinstance(node, Statement):
                self._flow(node, needs, known)
            elif isinstance(node, Branch):
                if node.joined is not None:
                    for side in node.joined[1:]:
                        needs[side] = self._of(side, needs) | self._of(node.joined[0], needs)
                for part in (node.yes, node.no):
                    self._back(part, needs, known)
                if node.condition is not None:
                    needs[node.condition] = self._of(node.condition, needs) | True
            else:
                self._around(node, needs, known)

    def _around(self, node: Loop, needs: dict[Value, Array], known: dict[Any, Array]) -> None:
        while True:
            before = [self._of(one.before, needs).sum() for one in node.carried]
            for one in node.carried:
                both = self._of(one.result, needs) | self._of(one.before, needs)
                needs[one.after] = both
                self.carried[one.after] = both
            self._back(node.body, needs, known)
            if before == [self._of(one.before, needs).sum() for one in node.carried]:
                return

    def _flow(self, one: Statement, needs: dict[Value, Array], known: dict[Any, Array]) -> None:
        if one.op == "store":
            value = one.args[0]
            need = np.ones(self.program.shape(value.kind), bool)
            mask = one.mask
            if mask is not None and mask.name in known:
                need = known[mask.name].copy()
        else:
            assert one.out is not None
            need = self._of(one.out, needs)
        for position, value, lanes in uses(self.program, one, need, known.get(one)):
            found = lower_for(self.program, one, position, lanes)
            if value.kind == "one":
                found = np.asarray(True)
            needs[value] = self._of(value, needs) | found
