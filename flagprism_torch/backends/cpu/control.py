"""Rules for control flow. Programs that take different ways run as separate batches."""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np

from ...ir.module import Block, Op, Value
from ...ir.text import symbol
from ...ir.types import Type
from .frame import Frame, LaunchAborted, full_rows, merge
from .lowering import Body, Lowering, Step, rule
from .types import Array, register_dtype, unsigned

_SPINS = 8  # iterations of a waiting loop before the thread lets others run


def graph(region: Sequence[Block], lowering: Lowering) -> Body:
    """A region of several blocks (early return, or a called function with one).

    A batch that splits at a branch does not join again: each part runs to the end by itself.
    """
    bodies = {block.label: lowering.block(block) for block in region}
    last = {block.label: block.ops[-1] for block in region}
    kinds: list[Type] = next(
        (op.operand_types for op in last.values() if not op.successors and op.operands), []
    )
    needed = frozenset().union(*(body.captured for body in bodies.values()))
    defined = {value for block in region for value in block.arguments}
    defined |= {value for block in region for op in block.ops for value in op.results}

    def follow(frame: Frame, label: str, values: Sequence[Array]) -> list[Array]:
        while True:
            out = bodies[label].run(frame, values)
            targets = last[label].successors
            if not targets:
                return out
            if len(targets) == 1:
                label, passed = targets[0]
            else:
                flag = frame[last[label].operands[0]]
                if flag.any() and not flag.all():
                    return split(frame, flag, targets)
                label, passed = targets[0 if flag.flat[0] else 1]
            values = [frame[value] for value in passed]

    def split(frame: Frame, flag: Array, targets: Sequence[tuple[str, list[Value]]]) -> list[Array]:
        parts = []
        for taken, (label, passed) in zip((flag, ~flag), targets, strict=True):
            chosen = np.flatnonzero(taken)
            part = frame.select(needed.union(passed), chosen)
            parts.append((chosen, follow(part, label, [part[value] for value in passed])))
        return merge(frame.programs, parts, kinds)

    def run(frame: Frame, values: Sequence[Array]) -> list[Array]:
        return follow(frame, region[0].label, values)

    return Body(run, frozenset(needed - defined), True)


@rule("scf.if")
def _if(op: Op, lowering: Lowering) -> Step:
    condition, outs, kinds = op.operands[0], op.results, op.result_types
    then = lowering.region(op.regions[0])
    other = lowering.region(op.regions[1]) if len(op.regions) > 1 else None

    def step(frame: Frame) -> None:
        flag = frame[condition]
        if flag.shape[0] == 1 or flag.all() or not flag.any():
            taken = then if flag.flat[0] else other
            results = taken.run(frame, ()) if taken is not None else []
        else:
            parts = []
            for way, body in ((flag, then), (~flag, other)):
                if body is not None:
                    chosen = np.flatnonzero(way)
                    parts.append((chosen, body.run(frame.select(body.captured, chosen), ())))
            results = merge(frame.programs, parts, kinds)
        for out, value in zip(outs, results, strict=True):
            frame[out] = value

    return step


@rule("scf.for")
def _for(op: Op, lowering: Lowering) -> Step:
    bounds, start, outs, kinds = op.operands[:3], op.operands[3:], op.results, op.result_types
    body, dtype = lowering.region(op.regions[0]), register_dtype(op.operand_types[0].element)
    read = unsigned if op.head.lstrip().startswith("unsigned ") else np.asarray

    def step(frame: Frame) -> None:
        low, high, by = (read(frame[bound]) for bound in bounds)
        values = [frame[value] for value in start]
        if all(bool((x == x[0]).all()) for x in (low, high, by)):
            for i in range(int(low[0]), int(high[0]), int(by[0])):
                values = body.run(frame, [np.full((1,), i).astype(dtype), *values])
        else:
            values = diverge(frame, low, high, by, values)
        for out, value in zip(outs, values, strict=True):
            frame[out] = value

    def diverge(
        frame: Frame, low: Array, high: Array, by: Array, values: list[Array]
    ) -> list[Array]:
        """Trip counts differ by program: the batch shrinks as programs finish."""
        rows = frame.programs
        counter = np.array(np.broadcast_to(low, (rows,)))
        high, by = np.broadcast_to(high, (rows,)), np.broadcast_to(by, (rows,))
        values = [
            np.array(np.broadcast_to(v, (rows, *t.dims)))
            for v, t in zip(values, kinds, strict=True)
        ]
        chosen, part = np.arange(rows), frame
        while True:
            active = np.flatnonzero(counter < high)
            if not len(active):
                return values
            if len(active) != len(chosen):
                chosen, part = active, frame.select(body.captured, active)
            results = body.run(part, [counter[chosen].astype(dtype), *(v[chosen] for v in values)])
            for value, result in zip(values, results, strict=True):
                value[chosen] = result
            counter[chosen] += by[chosen]

    return step


@rule("scf.while")
def _while(op: Op, lowering: Lowering) -> Step:
    start, outs, kinds = op.operands, op.results, op.result_types
    test, body = lowering.region(op.regions[0]), lowering.region(op.regions[1])
    captured = test.captured | body.captured

    def step(frame: Frame) -> None:
        rows = frame.programs
        values = [frame[value] for value in start]
        final = [np.zeros((rows, *t.dims), register_dtype(t.element)) for t in kinds]
        chosen, part, spins = np.arange(rows), frame, 0
        while True:
            spins += 1
            if spins > _SPINS:  # perhaps a wait for another program
                if frame.launch.aborted:
                    raise LaunchAborted
                time.sleep(0)
            flag, *passed = test.run(part, values)
            flag = np.broadcast_to(flag, (len(chosen),))
            if not flag.all():
                passed = full_rows(passed, kinds) if passed else []
                for rows_out, value in zip(final, passed, strict=True):
                    rows_of = np.broadcast_to(value, (len(chosen), *value.shape[1:]))
                    rows_out[chosen[~flag]] = rows_of[~flag]
                if not flag.any():
                    break
                passed = [v if v.shape[0] == 1 else v[flag] for v in passed]
                chosen = chosen[flag]
                part = frame.select(captured, chosen)
            values = body.run(part, passed)
        for out, value in zip(outs, final, strict=True):
            frame[out] = value

    return step


@rule("tt.call")
def _call(op: Op, lowering: Lowering) -> Step:
    args, outs = op.operands, op.results
    body = lowering.function(symbol(op.head))

    def step(frame: Frame) -> None:
        results = body.run(frame.empty(), [frame[arg] for arg in args])
        for out, value in zip(outs, results, strict=True):
            frame[out] = value

    return step
