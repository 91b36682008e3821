"""What is born in an execution of a random kernel, why, and where it can go.

Note [Sentinels]
`own` (kernel_oracle) marks lanes whose infinity the program wrote; at most every infinity of a
program that has such constants counts as one.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from kernel_oracle import Array, Event, data, lift
from kernel_tree import Branch, Loop, Program, Statement, Value, walk

BEARING = ("add", "sub", "mul", "div", "sqrt", "exp", "log", "rsqrt", "cast", "sum")


def births(program: Program, event: Event, *, sentinels: bool) -> Array:
    """What is born in each lane of a result: "nan", "+", "-" or "".

    Args:
        sentinels: take every infinite operand for one that the program wrote.
    """
    one, value = event.one, event.value
    assert one is not None
    code = np.full(value.shape, "", "<U3")
    if one.op not in BEARING or value.dtype.kind != "f":
        return code
    nan, infinite, explained = (np.zeros(value.shape, np.int64) for _ in range(3))
    for given, arg in zip(one.args, event.args, strict=True):
        if not isinstance(arg, Event) or arg.value.dtype.kind != "f":
            continue
        x, own = (lift(program, given, event_kind(one), part) for part in (arg.value, arg.own))
        inf = np.isinf(x)
        # a sentinel that the result does not hand on with its sign explains no infinity
        hidden = inf & (own | sentinels)
        if one.op == "sum":
            nan, infinite = nan + np.isnan(x).any(one.axis), infinite + inf.any(one.axis)
            explained = explained + inf.any(one.axis)
        else:
            nan, infinite = nan + np.isnan(x), infinite + inf
            explained = explained + (inf & ~(hidden & (x == -value)))
    bad = np.isinf(value) & (nan == 0) & (infinite <= 1) & (explained == 0)
    code[bad & (value > 0)] = "+"
    code[bad & (value < 0)] = "-"
    code[np.isnan(value) & (nan == 0)] = "nan"
    return code


def event_kind(one: Statement) -> str:
    """The kind of tile that a statement reads its operands as."""
    if one.op in ("sum", "top"):
        return "tile"
    return one.out.kind if one.out is not None else ""


def cause(program: Program, event: Event, lane: tuple[int, ...], kind: str, signs: set[str]) -> str:
    """Why NaN or an infinity ("nan", "inf") was born in a lane of an event; `signs`: of all
    infinities that the statement bore."""
    one = event.one
    assert one is not None
    assert one.out is not None
    dtype, op = one.out.dtype, one.op
    if op == "sum":
        return "inf - inf in a sum" if kind == "nan" else f"a sum overflows {dtype}"
    held = []
    for given, arg in zip(one.args, event.args, strict=True):
        x = arg.value if isinstance(arg, Event) else np.asarray(arg)
        x = np.broadcast_to(lift(program, given, one.out.kind, x), event.value.shape)
        held.append(float(x[lane]))
    if kind == "nan":
        if op == "div":
            return "0 / 0" if held[1] == 0 else "inf / inf"
        return {"add": "inf - inf", "sub": "inf - inf", "mul": "0 * inf"}.get(
            op, f"{op} of a negative value"
        )
    if any(math.isinf(x) for x in held):
        what = {"+": "-inf", "-": "inf"}[min(signs)] if len(signs) == 1 else "infinity"
        return f"a constant {what} changed sign"
    if held[-1] == 0 and op in ("div", "log", "rsqrt"):
        return "x / 0" if op == "div" else f"{op} of 0"
    if op == "cast":
        source = one.args[0].dtype
        return f"{'an integer' if source == 'int32' else 'cast'} overflows {dtype}"
    return f"exp overflows {dtype}" if op == "exp" else f"overflow in {dtype}"


# -- the way of values


def reached(program: Program) -> dict[Value, set[Statement]]:
    """Statements that each value can enter, as data."""
    users: dict[Value, set[Any]] = {}
    for node in walk(program.body):
        if isinstance(node, Statement):
            for value in data(node):
                users.setdefault(value, set()).add(node)
        elif isinstance(node, Branch) and node.joined is not None:
            for value in node.joined[1:]:
                users.setdefault(value, set()).add(node.joined[0])
        elif isinstance(node, Loop):
            for one in node.carried:
                users.setdefault(one.after, set()).update((one.before, one.result))
    found: dict[Value, set[Statement]] = {}
    for start in users:
        seen: set[Any] = set()
        todo: list[Any] = [start]
        while todo:
            node = todo.pop()
            value = node.out if isinstance(node, Statement) else node
            for user in users.get(value, ()) if value is not None else ():
                if user not in seen:
                    seen.add(user)
                    todo.append(user)
        found[start] = {node for node in seen if isinstance(node, Statement)}
    return found
