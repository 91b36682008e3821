"""Rules for ops that combine lanes: reduce, scan, map_elementwise, dot."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ...ir.module import Op
from .frame import Frame, full, full_rows
from .lowering import Body, Lowering, Step, binary_function, integer, rule
from .types import ROUNDED, Array, register_dtype, round_to

_NO_ROUNDING = frozenset({"arith.maximumf", "arith.minimumf", "arith.maxnumf", "arith.minnumf"})


def _along(axis: int, part: Any) -> tuple[Any, ...]:
    return (slice(None),) * axis + (part,)


def apply(body: Body, frame: Frame, values: Sequence[Array]) -> list[Array]:
    """Run a scalar region on every element of equally shaped arrays [programs, ...]."""
    shape = values[0].shape
    if body.branches:  # every element becomes a program of its own
        lanes = int(np.prod(shape[1:], dtype=np.int64))
        wide = frame.spread(body.captured, lanes) if shape[0] > 1 else None
        if wide is None:
            wide = frame.select(body.captured, np.zeros(lanes, np.int64))
        flat = [np.ascontiguousarray(v).reshape(-1) for v in values]
        results = body.run(wide, flat)
        return [np.broadcast_to(r, (shape[0] * lanes,)).reshape(shape) for r in results]
    if body.captured:
        frame = frame.copy()
        for key in body.captured:
            held = frame[key]
            frame[key] = held.reshape(held.shape[0], *(1,) * (len(shape) - 1))
    return [np.broadcast_to(r, shape) for r in body.run(frame, values)]


def _ufuncs(op: Op) -> list[np.ufunc] | None:
    """One ufunc per operand if the region combines each operand by itself with one."""
    block, count = op.regions[0][0], len(op.operands)
    found = []
    for k, result in enumerate(block.ops[-1].operands):
        inner, pair = result.op, [block.arguments[k], block.arguments[count + k]]
        if inner is None or len(inner.results) != 1 or inner.operands not in (pair, pair[::-1]):
            return None
        function = binary_function(inner)
        rounds = op.operand_types[k].element in ROUNDED and inner.name not in _NO_ROUNDING
        if not isinstance(function, np.ufunc) or rounds or inner.name.startswith("arith.sub"):
            return None
        found.append(function)
    return found


@rule("tt.reduce")
def _reduce(op: Op, lowering: Lowering) -> Step:
    inputs, outs, kinds = op.operands, op.results, op.operand_types
    axis = 1 + integer(op, "axis")
    extent = kinds[0].dims[axis - 1]
    ufuncs = _ufuncs(op)
    if ufuncs is not None:
        plan = [
            (u, a, out, register_dtype(t.element))
            for u, a, out, t in zip(ufuncs, inputs, outs, kinds, strict=True)
        ]

        def by_ufunc(frame: Frame) -> None:
            for ufunc, a, out, dtype in plan:
                x = frame[a]
                if x.shape[axis] != extent:
                    x = np.broadcast_to(x, (*x.shape[:axis], extent, *x.shape[axis + 1 :]))
                frame[out] = ufunc.reduce(x, axis=axis, dtype=dtype)

        return by_ufunc
    body = lowering.region(op.regions[0])

    def by_halves(frame: Frame) -> None:
        values = full_rows([frame[a] for a in inputs], kinds)
        count = extent
        while count > 1:
            half = count // 2
            low = [x[_along(axis, slice(0, half))] for x in values]
            high = [x[_along(axis, slice(half, 2 * half))] for x in values]
            rest = [x[_along(axis, slice(2 * half, count))] for x in values]
            values = apply(body, frame, low + high)
            if count % 2:
                values = [np.concatenate(p, axis) for p in zip(values, rest, strict=True)]
            count = half + count % 2
        for out, value in zip(outs, values, strict=True):
            frame[out] = value[_along(axis, 0)]

    return by_halves


@rule("tt.scan")
def _scan(op: Op, lowering: Lowering) -> Step:
    inputs, outs, kinds = op.operands, op.results, op.operand_types
    axis, backward = 1 + integer(op, "axis"), "reverse = true" in op.head
    extent = kinds[0].dims[axis - 1]
    ufuncs = _ufuncs(op)
    body = lowering.region(op.regions[0])

    def inclusive(frame: Frame, values: list[Array]) -> list[Array]:
        if ufuncs is not None:
            return [
                u.accumulate(x, axis=axis, dtype=x.dtype)
                for u, x in zip(ufuncs, values, strict=True)
            ]
        distance = 1
        while distance < extent:
            early = [x[_along(axis, slice(0, extent - distance))] for x in values]
            late = [x[_along(axis, slice(distance, extent))] for x in values]
            heads = [x[_along(axis, slice(0, distance))] for x in values]
            tails = apply(body, frame, early + late)
            values = [np.concatenate(p, axis) for p in zip(heads, tails, strict=True)]
            distance *= 2
        return values

    def step(frame: Frame) -> None:
        values = full_rows([frame[a] for a in inputs], kinds)
        if backward:
            values = [np.flip(x, axis) for x in values]
        values = inclusive(frame, values)
        for out, value in zip(outs, values, strict=True):
            frame[out] = np.flip(value, axis) if backward else value

    return step


@rule("tt.map_elementwise")
def _map(op: Op, lowering: Lowering) -> Step:
    """`pack` neighbouring elements of each operand go to one call, operand by operand."""
    inputs, outs, kinds = op.operands, op.results, op.operand_types
    pack = op.int_attr("pack") or 1
    body = lowering.region(op.regions[0])
    shape = op.result_types[0].dims

    def step(frame: Frame) -> None:
        tiles = full_rows([frame[a] for a in inputs], kinds)
        rows = tiles[0].shape[0]
        groups = [t.reshape(rows, -1, pack)[..., k] for t in tiles for k in range(pack)]
        results = apply(body, frame, groups)
        for k, out in enumerate(outs):
            packed = np.stack(results[k * pack : (k + 1) * pack], -1)
            frame[out] = packed.reshape(rows, *shape)

    return step


@rule("tt.dot")
def _dot(op: Op, lowering: Lowering) -> Step:
    """Exact products of the operands, summed in the result's precision: tf32 is not imitated."""
    (a, b, c), out = op.operands[:3], op.results[0]
    left, right, result = op.operand_types[0], op.operand_types[1], op.result_types[0]
    dtype = register_dtype(result.element)
    wide = np.dtype(np.float32) if dtype == np.float16 else dtype

    def step(frame: Frame) -> None:
        x, y = full(frame[a], left), full(frame[b], right)
        total = np.matmul(x.astype(wide, copy=False), y.astype(wide, copy=False)) + frame[c]
        frame[out] = round_to(total.astype(dtype, copy=False), result.element)

    return step
