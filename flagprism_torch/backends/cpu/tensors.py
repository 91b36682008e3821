"""Rules for program ids, shapes, rearrangements and messages."""

from __future__ import annotations

import re

import numpy as np

from ...ir.module import Op
from .frame import Frame, full, full_rows
from .lowering import Lowering, Step, integer, rule
from .types import Array, register_dtype

_AXES = {"x": 0, "y": 1, "z": 2}


# ------------------------------------------------------------------------------- programs
@rule("tt.get_program_id")
def _program_id(op: Op, lowering: Lowering) -> Step:
    axis, out = _AXES[op.head.strip()], op.results[0]

    def step(frame: Frame) -> None:
        frame[out] = frame.pids[axis]

    return step


@rule("tt.get_num_programs")
def _num_programs(op: Op, lowering: Lowering) -> Step:
    axis, out = _AXES[op.head.strip()], op.results[0]

    def step(frame: Frame) -> None:
        frame[out] = np.full((1,), frame.launch.grid[axis], np.int32)

    return step


@rule(
    "tt.debug_barrier",
    "ttg.barrier",
    "ttg.local_barrier",
    "gpu.barrier",
    "llvm.intr.assume",
    "tt.grid_dependency_wait",
    "tt.grid_dependency_launch_dependents",
    "tt.l2_prefetch",
    "arith.flush_denormals_scope",
)
def _nothing(op: Op, lowering: Lowering) -> Step:
    """A program is one thread here, so a barrier inside it has nothing to wait for."""
    return lambda frame: None


# --------------------------------------------------------------------------------- shapes
@rule("tt.make_range")
def _range(op: Op, lowering: Lowering) -> Step:
    value = np.arange(integer(op, "start"), integer(op, "end"), dtype=np.int32)[None]
    out = op.results[0]

    def step(frame: Frame) -> None:
        frame[out] = value

    return step


@rule("tt.splat")
def _splat(op: Op, lowering: Lowering) -> Step:
    a, out, ones = op.operands[0], op.results[0], (1,) * len(op.result_types[0].dims)

    def step(frame: Frame) -> None:
        x = frame[a]
        frame[out] = x.reshape(x.shape[0], *ones)

    return step


@rule("tt.unsplat")
def _unsplat(op: Op, lowering: Lowering) -> Step:
    a, out = op.operands[0], op.results[0]

    def step(frame: Frame) -> None:
        x = frame[a]
        frame[out] = x.reshape(x.shape[0], -1)[:, 0]

    return step


@rule("tt.broadcast", "ttg.convert_layout")
def _broadcast(op: Op, lowering: Lowering) -> Step:
    a, out = op.operands[0], op.results[0]

    def step(frame: Frame) -> None:
        frame[out] = frame[a]

    return step


@rule("tt.expand_dims")
def _expand_dims(op: Op, lowering: Lowering) -> Step:
    a, out, axis = op.operands[0], op.results[0], 1 + integer(op, "axis")

    def step(frame: Frame) -> None:
        frame[out] = np.expand_dims(frame[a], axis)

    return step


@rule("tt.reshape")
def _reshape(op: Op, lowering: Lowering) -> Step:
    a, out = op.operands[0], op.results[0]
    kind, target = op.operand_types[0], op.result_types[0].dims

    def step(frame: Frame) -> None:
        x = full(frame[a], kind)
        frame[out] = x.reshape(x.shape[0], *target)

    return step


@rule("tt.trans")
def _trans(op: Op, lowering: Lowering) -> Step:
    found = re.search(r"array<i32: ([\d, ]+)>", op.head)
    if found is None:
        raise lowering.unsupported(op, "no order")
    order = (0, *(1 + int(n) for n in found.group(1).split(",")))
    a, out = op.operands[0], op.results[0]

    def step(frame: Frame) -> None:
        frame[out] = frame[a].transpose(order)

    return step


@rule("tt.join")
def _join(op: Op, lowering: Lowering) -> Step:
    (a, b), out, kind = op.operands, op.results[0], op.operand_types[0]

    def step(frame: Frame) -> None:
        frame[out] = np.stack(full_rows([frame[a], frame[b]], [kind, kind]), -1)

    return step


@rule("tt.split")
def _split(op: Op, lowering: Lowering) -> Step:
    a, (first, second), kind = op.operands[0], op.results, op.operand_types[0]

    def step(frame: Frame) -> None:
        x = full(frame[a], kind)
        frame[first], frame[second] = x[..., 0], x[..., 1]

    return step


@rule("tt.cat")
def _cat(op: Op, lowering: Lowering) -> Step:
    (a, b), out, kind = op.operands, op.results[0], op.operand_types[0]

    def step(frame: Frame) -> None:
        frame[out] = np.concatenate(full_rows([frame[a], frame[b]], [kind, kind]), 1)

    return step


@rule("tt.gather")
def _gather(op: Op, lowering: Lowering) -> Step:
    a, index = op.operands[:2]
    out, axis, kinds = op.results[0], 1 + integer(op, "axis"), op.operand_types[:2]
    extent = kinds[0].dims[axis - 1]

    def step(frame: Frame) -> None:
        x, i = full_rows([frame[a], frame[index]], kinds)
        # an index out of range is undefined on a GPU; here it is the nearest element
        inside = np.clip(i.astype(np.int64), 0, extent - 1)
        frame[out] = np.take_along_axis(x, inside, axis)

    return step


@rule("tt.histogram")
def _histogram(op: Op, lowering: Lowering) -> Step:
    a, out, kind = op.operands[0], op.results[0], op.operand_types[0]
    mask = op.operands[1] if len(op.operands) > 1 else None
    bins, dtype = op.result_types[0].dims[0], register_dtype(op.result_types[0].element)

    def step(frame: Frame) -> None:
        flag = np.ones((1,) * (1 + len(kind.dims)), bool) if mask is None else frame[mask]
        x, keep = full_rows([frame[a], flag], [kind, kind.like("i1")])
        rows = x.shape[0]
        keep = keep & (x >= 0) & (x < bins)
        flat = x.astype(np.int64) + bins * np.arange(rows)[:, None]
        counts = np.bincount(flat[keep], minlength=rows * bins)
        frame[out] = counts.reshape(rows, bins).astype(dtype)

    return step


# ------------------------------------------------------------------------------- messages
@rule("tt.assert", "cf.assert")
def _assert(op: Op, lowering: Lowering) -> Step:
    condition, message = op.operands[0], op.string()
    mask = op.operands[1] if len(op.operands) > 1 else None

    def step(frame: Frame) -> None:
        failed = ~frame[condition]
        if mask is not None:
            failed = failed & frame[mask]
        if failed.any():
            failed = np.atleast_1d(failed)
            row = int(np.argwhere(failed)[0][0])
            raise RuntimeError(
                f"device assertion failed in kernel {frame.launch.kernel}: {message}; "
                f"program {frame.program(row)}; statement {lowering.statement(op)}"
            )

    return step


@rule("tt.print")
def _print(op: Op, lowering: Lowering) -> Step:
    shown, prefix = op.operands, op.string().strip()
    as_hex = "hex = true" in op.head

    def show(x: Array) -> str:
        return np.array2string(x, formatter={"int": hex} if as_hex else None)

    def step(frame: Frame) -> None:
        for row in range(frame.programs):
            values = [show(v[row if v.shape[0] > 1 else 0]) for v in (frame[n] for n in shown)]
            print(f"pid {frame.program(row)}", prefix, *values)

    return step
