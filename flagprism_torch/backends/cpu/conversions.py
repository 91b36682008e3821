"""Rules for constants, casts, comparisons and other elementwise ops with a form of their own."""

from __future__ import annotations

import re
import time
from typing import Any

import numpy as np

from ...ir.module import Op
from ...ir.types import Type, parse_type
from .frame import Frame
from .libdevice import function_of
from .lowering import Lowering, Step, rule
from .scalars import (
    add_carry,
    compare_float,
    compare_int,
    fma,
    mul_wide_signed,
    mul_wide_unsigned,
    subtract_borrow,
)
from .types import (
    ROUNDED,
    Array,
    bits,
    from_memory,
    memory_dtype,
    register_dtype,
    round_to,
    to_memory,
    truncate_to,
    unsigned,
)


# ------------------------------------------------------------------------------ constants
@rule("arith.constant")
def _constant(op: Op, lowering: Lowering) -> Step:
    kind = op.result_types[0] if op.result_types else parse_type("i1")
    text = re.sub(r"^\s*\{.*?\}\s*", "", op.head).strip()
    value, out = constant(text, kind), op.results[0]
    value.flags.writeable = False

    def step(frame: Frame) -> None:
        frame[out] = value

    return step


def constant(text: str, kind: Type) -> Array:
    """A literal (`3`, `true`, `1.5e+00`, `0x7F800000`, `dense<...>`) with axis 0 of length 1;
    a splat keeps length 1 in every axis."""
    dense = re.match(r"dense<(.*)>$", text)
    if dense:
        text = dense.group(1)
    if text.startswith('"0x'):
        raw = bytes.fromhex(text.strip('"')[2:])
        cells = np.frombuffer(raw, memory_dtype(kind.element))
        shape = kind.dims if cells.size == kind.numel else (1,) * len(kind.dims)
        return from_memory(cells, kind.element).reshape(1, *shape).copy()
    dtype = register_dtype(kind.element)
    if text.startswith("["):
        items = [_literal(t, kind.element) for t in re.findall(r"[^\[\],\s]+", text)]
        return round_to(np.array(items).astype(dtype), kind.element).reshape(1, *kind.dims)
    shape = (1,) * (1 + len(kind.dims))
    return np.array(_literal(text, kind.element)).astype(dtype).reshape(shape)


def _literal(text: str, elem: str) -> Any:
    if text in ("true", "false"):
        return text == "true"
    if not text.lstrip("-").startswith("0x"):
        return float(text) if elem[0] in "fb" else int(text)
    value = int(text, 16)
    if elem[0] not in "fb":
        return value
    return from_memory(np.array([value]).astype(_WORDS[bits(elem)]).view(memory_dtype(elem)), elem)[
        0
    ]


_WORDS: dict[int, Any] = {8: np.uint8, 16: np.uint16, 32: np.uint32, 64: np.uint64}


@rule("ub.poison")
def _poison(op: Op, lowering: Lowering) -> Step:
    kind, out = op.result_types[0], op.results[0]
    value = np.zeros((1,) * (1 + len(kind.dims)), register_dtype(kind.element))

    def step(frame: Frame) -> None:
        frame[out] = value

    return step


# ---------------------------------------------------------------------------------- casts
@rule(
    "arith.extsi",
    "arith.trunci",
    "arith.sitofp",
    "arith.extf",
    "arith.truncf",
    "arith.convertf",
    "arith.index_cast",
    "tt.fp_to_fp",
)
def _cast(op: Op, lowering: Lowering) -> Step:
    a, out = op.operands[0], op.results[0]
    source, elem = op.operand_types[0].element, op.result_types[0].element
    dtype = register_dtype(elem)
    if source == "i1" and op.name in ("arith.extsi", "arith.sitofp"):

        def from_flag(frame: Frame) -> None:
            frame[out] = -frame[a].astype(np.int8).astype(dtype)

        return from_flag
    if elem == "i1":

        def to_flag(frame: Frame) -> None:
            frame[out] = (frame[a] & 1).astype(bool)

        return to_flag
    if "rtz" in op.head or "toward_zero" in op.head:

        def toward_zero(frame: Frame) -> None:
            frame[out] = truncate_to(frame[a], elem)

        return toward_zero
    if elem in ROUNDED:

        def rounded(frame: Frame) -> None:
            frame[out] = round_to(frame[a].astype(dtype), elem)

        return rounded

    def plain(frame: Frame) -> None:
        frame[out] = frame[a].astype(dtype)

    return plain


@rule("arith.extui", "arith.uitofp", "arith.index_castui")
def _cast_unsigned(op: Op, lowering: Lowering) -> Step:
    a, out, elem = op.operands[0], op.results[0], op.result_types[0].element
    dtype = register_dtype(elem)

    def step(frame: Frame) -> None:
        frame[out] = round_to(unsigned(frame[a]).astype(dtype), elem)

    return step


@rule("arith.fptosi", "arith.fptoui")
def _to_integer(op: Op, lowering: Lowering) -> Step:
    """Saturates like `cvt.rzi`, whose narrowest integer has 16 bits; NaN gives 0."""
    a, out, elem = op.operands[0], op.results[0], op.result_types[0].element
    dtype, width = register_dtype(elem), max(bits(elem), 16)
    signed = op.name == "arith.fptosi"
    low = -(1 << (width - 1)) if signed else 0
    high = (1 << (width - 1)) - 1 if signed else (1 << width) - 1
    wide = np.dtype(f"{'i' if signed else 'u'}{width // 8}")

    def step(frame: Frame) -> None:
        x = np.trunc(frame[a].astype(np.float64))
        inside = (x > low - 1) & (x < high + 1)  # false for NaN
        y = np.where(inside, x, 0).astype(wide)
        if not inside.all():
            y = np.where(x >= high + 1, wide.type(high), np.where(x <= low - 1, wide.type(low), y))
        frame[out] = (y & 1).astype(bool) if elem == "i1" else y.astype(dtype)

    return step


@rule("arith.bitcast", "tt.bitcast")
def _bitcast(op: Op, lowering: Lowering) -> Step:
    a, out = op.operands[0], op.results[0]
    source, target = op.operand_types[0], op.result_types[0]
    if source.is_pointer and target.is_pointer:

        def same(frame: Frame) -> None:
            frame[out] = frame[a]

        return same

    def step(frame: Frame) -> None:
        cells = to_memory(frame[a], source.element)
        frame[out] = from_memory(cells.view(memory_dtype(target.element)), target.element)

    return step


@rule("tt.int_to_ptr", "tt.ptr_to_int")
def _pointer_cast(op: Op, lowering: Lowering) -> Step:
    a, out, dtype = op.operands[0], op.results[0], register_dtype(op.result_types[0].element)

    def step(frame: Frame) -> None:
        frame[out] = frame[a].astype(dtype, copy=False)

    return step


# ------------------------------------------------------------------ comparisons, selection
@rule("arith.cmpi", "arith.cmpf")
def _compare(op: Op, lowering: Lowering) -> Step:
    # scalar fastmath flags may stand between predicate and operands
    predicate = op.head.split()[0].rstrip(",")
    maker = compare_int if op.name == "arith.cmpi" else compare_float
    f, (a, b), out = maker(predicate), op.operands, op.results[0]

    def step(frame: Frame) -> None:
        frame[out] = f(frame[a], frame[b])

    return step


@rule("arith.select")
def _select(op: Op, lowering: Lowering) -> Step:
    (c, a, b), out = op.operands, op.results[0]
    rank = 1 + len(op.result_types[0].dims)

    def step(frame: Frame) -> None:
        flag = frame[c]
        if flag.ndim < rank:  # a scalar condition chooses between tensors
            flag = flag.reshape(flag.shape[0], *(1,) * (rank - 1))
        frame[out] = np.where(flag, frame[a], frame[b])

    return step


@rule("math.fma")
def _fma(op: Op, lowering: Lowering) -> Step:
    (a, b, c), out, elem = op.operands, op.results[0], op.result_types[0].element

    def step(frame: Frame) -> None:
        frame[out] = round_to(fma(frame[a], frame[b], frame[c]), elem)

    return step


@rule("tt.clampf", "math.clampf")
def _clamp(op: Op, lowering: Lowering) -> Step:
    (x, low, high), out = op.operands, op.results[0]
    keeps_nan = "propagateNan = all" in op.head

    def step(frame: Frame) -> None:
        if keeps_nan:
            frame[out] = np.minimum(np.maximum(frame[x], frame[low]), frame[high])
        else:
            frame[out] = np.fmin(np.fmax(frame[x], frame[low]), frame[high])

    return step


_EXTENDED = {
    "arith.addui_extended": add_carry,
    "arith.subui_extended": subtract_borrow,
    "arith.mulsi_extended": mul_wide_signed,
    "arith.mului_extended": mul_wide_unsigned,
}


@rule(*_EXTENDED)
def _extended(op: Op, lowering: Lowering) -> Step:
    f, (a, b), (low, high) = _EXTENDED[op.name], op.operands, op.results

    def step(frame: Frame) -> None:
        frame[low], frame[high] = f(frame[a], frame[b])

    return step


@rule("math.sincos")
def _sincos(op: Op, lowering: Lowering) -> Step:
    a, (sine, cosine) = op.operands[0], op.results

    def step(frame: Frame) -> None:
        frame[sine], frame[cosine] = np.sin(frame[a]), np.cos(frame[a])

    return step


# --------------------------------------------------------------------- foreign functions
@rule("tt.extern_elementwise")
def _extern(op: Op, lowering: Lowering) -> Step:
    found = re.search(r'symbol = "([^"]+)"', op.head)
    symbol = found.group(1) if found else "?"
    f = function_of(symbol)
    if f is None:
        raise lowering.unsupported(op, symbol)
    call, inputs, out = f, op.operands, op.results[0]
    dtype = register_dtype(op.result_types[0].element)

    def step(frame: Frame) -> None:
        frame[out] = np.asarray(call(*[frame[a] for a in inputs])).astype(dtype, copy=False)

    return step


@rule("tt.elementwise_inline_asm")
def _inline_asm(op: Op, lowering: Lowering) -> Step:
    """Only the clock and the processor number of `triton.language.extra` can be imitated."""
    asm = op.string()
    if "%globaltimer" in asm or "s_memrealtime" in asm or "%clock64" in asm:
        out = op.results[0]

        def clock(frame: Frame) -> None:
            frame[out] = np.full((1,), time.perf_counter_ns(), np.int64)

        return clock
    if "%smid" in asm:
        out = op.results[0]

        def processor(frame: Frame) -> None:
            frame[out] = np.zeros((1,), np.int32)

        return processor
    if asm.startswith("griddepcontrol."):
        outs = op.results

        def dependency(frame: Frame) -> None:
            for out in outs:
                frame[out] = np.zeros((1,), np.int32)

        return dependency
    raise lowering.unsupported(op, f"inline assembly {asm!r}")
