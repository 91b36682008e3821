"""Silent checks: which operations may do harm that no NaN shows.

| kind | looks at | no check where |
|---|---|---|
| undefined | a masked load without `other` | all needed lanes are inside of the mask |
| wrap | int32 offset arithmetic (instrument.offsets) | the bounds of the operands fit |
| stagnation | a sum that a loop carries in 16 bits or less | it is carried in fp32 or fp64 |
| saturation | a cast to fp8 | |
| tf32 | fp32 operands of a dot in tf32 | they were widened from 16 bits or less |

None where the needed lanes are not known: what no one needs may hold anything. fp32 sums are left
out, because adding what is tiny, such as an epsilon, is at home there.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from flagprism_torch.instrument.checks import Check
from flagprism_torch.instrument.codegen import triton_dtype
from flagprism_torch.instrument.facts import Facts
from flagprism_torch.instrument.lanes import Lanes
from flagprism_torch.instrument.offsets import RULES, constant_of, offset_arithmetic
from flagprism_torch.ir.masks import NONE, implied_by, is_constant
from flagprism_torch.ir.module import Op, Value

# the largest finite value and half a unit in its last place: what is below is rounded to it
SATURATES = {
    "f8E4M3FN": 464.0,
    "f8E4M3FNUZ": 248.0,
    "f8E5M2": 61440.0,
    "f8E5M2FNUZ": 61440.0,
}
_NARROW = re.compile(r"f16|bf16|f8")
_CASTS = ("arith.extf", "arith.truncf", "tt.fp_to_fp")
_HAND_ON = ("tt.splat", "tt.broadcast", "tt.expand_dims", "tt.reshape", "tt.trans", "tt.join",
            "tt.split", "tt.cat", "ttg.convert_layout", "arith.negf", "math.absf",
            "arith.maximumf", "arith.minimumf", "arith.maxnumf", "arith.minnumf")  # fmt: skip
Candidate = tuple[str, str, Op, Value, tuple[Value, ...]]  # kind, rule, op, value, parts


def silent_checks(ops: list[Op], facts: Facts, lanes: Lanes) -> tuple[list[Check], int]:
    """(the checks of a kernel, number of operations whose needed lanes are not known)."""
    found: list[Check] = []
    left_out = 0
    for kind, rule, op, value, parts in _candidates(ops, facts):
        if not op.frames or triton_dtype(value.type.element) is None:
            continue
        examined = parts[0] if kind == "tf32" else value
        needed, valid, line, label = lanes.examined(op, examined)
        if needed is NONE or (kind == "undefined" and implied_by(parts[0], needed)):
            continue
        if label == "unknown" or lanes.is_wider(examined):
            left_out += 1
            continue
        found.append(Check(rule, op, value, needed, valid, line, label, kind, parts))
    return found, left_out


def _candidates(ops: list[Op], facts: Facts) -> Iterator[Candidate]:
    for op in offset_arithmetic(ops):
        (value,) = op.results
        constant_shift = op.name != "arith.shli" or constant_of(op.operands[1]) is not None
        if constant_shift and not any(facts.is_unsigned(v) for v in (value, *op.operands)):
            yield "wrap", RULES[op.name], op, value, (*op.operands, value)
    for op in ops:
        if op.name == "tt.load" and len(op.operands) == 2 and not is_constant(op.operands[1]):
            yield "undefined", "load", op, op.results[0], (op.operands[1],)
        elif op.name == "scf.for":
            yield from _sums(op)
        elif op.name in ("tt.fp_to_fp", "arith.truncf"):
            (source,), (value,) = op.operands[:1], op.results
            if value.type.element in SATURATES:
                yield "saturation", "cast", op, value, (source, value)
        elif op.name == "tt.dot" and re.search(r"inputPrecision = tf32(?!x)", op.head):
            for rule, operand in zip(("left", "right"), op.operands, strict=False):
                if operand.type.element == "f32" and not _fits_tf32(operand):
                    yield "tf32", rule, op, op.results[0], (operand,)


# -- sums that a loop carries


def _sums(loop: Op) -> Iterator[Candidate]:
    """next = (a rounding of) carried + x, or a select between that and the carried value."""
    body = loop.regions[0][0]
    last = body.ops[-1] if body.ops else None
    if last is None or last.name != "scf.yield":
        return
    for carried, following in zip(body.arguments[1:], last.operands, strict=True):
        if not _NARROW.match(carried.type.element):
            continue
        value, op = following, following.op
        if op is not None and op.name == "arith.select" and carried in op.operands:
            value = next((v for v in op.operands[1:] if v is not carried), value)
        addend = _addend(value, carried)
        if addend is not None and value.op is not None and value.op.block is body:
            yield "stagnation", "add", value.op, value, (value, carried, addend)


def _addend(value: Value, carried: Value) -> Value | None:
    op = _uncast(value).op
    if op is None or op.name not in ("arith.addf", "arith.subf"):
        return None
    left, right = op.operands
    if _uncast(left) is carried:
        return right
    return left if op.name == "arith.addf" and _uncast(right) is carried else None


def _uncast(value: Value) -> Value:
    while value.op is not None and value.op.name in _CASTS:
        value = value.op.operands[0]
    return value


# -- operands of tf32 products


def _fits_tf32(value: Value) -> bool:
    """Whether a float32 value has no more bits than tf32, by the way it is made."""
    op = value.op
    if op is None:
        return False
    if op.name in ("arith.extf", "tt.fp_to_fp"):
        return bool(_NARROW.match(op.operands[0].type.element))
    if op.name in ("arith.sitofp", "arith.uitofp"):
        return op.operands[0].type.element in ("i1", "i8")
    if op.name == "arith.constant":
        return _is_short(op)
    if op.name == "arith.select":
        return all(_fits_tf32(v) for v in op.operands[1:])
    return op.name in _HAND_ON and all(_fits_tf32(v) for v in op.operands)


def _is_short(op: Op) -> bool:
    """Whether a constant is a number that takes two digits at most, or an infinity."""
    return re.match(r"(dense<)?-?(\d\.\d?0*e[+]00|0x[F7]F800000)>?$", op.head.strip()) is not None
