"""Which operations are checked for births, and what is looked at there.

Note [Bearing operations]
An operation bears if it can make NaN or an infinity out of finite operands: arithmetic, functions,
narrowing casts, sums, dot products. Loads, selects, extrema, sign changes, widening and shape
operations hand on what they get and are not checked.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from flagprism_torch.instrument.codegen import triton_dtype
from flagprism_torch.ir.masks import Mask
from flagprism_torch.ir.module import Op, Value, walk
from flagprism_torch.ir.sentinels import is_extremum, is_negation

REAL = re.compile(r"f\d|bf16")

_RULES = {
    "arith.addf": "add",
    "arith.subf": "sub",
    "arith.mulf": "mul",
    "arith.divf": "div",
    "tt.precise_divf": "div",
    "arith.remf": "rem",
    "math.fma": "fma",
    "math.exp": "exp",
    "math.exp2": "exp",
    "math.expm1": "exp",
    "math.log": "log",
    "math.log2": "log",
    "math.log10": "log",
    "math.log1p": "log",
    "math.sqrt": "sqrt",
    "tt.precise_sqrt": "sqrt",
    "math.rsqrt": "rsqrt",
    "math.powf": "pow",
    "math.sin": "trig",
    "math.cos": "trig",
    "math.tan": "trig",
    "arith.truncf": "cast",
    "tt.fp_to_fp": "cast",
    "tt.dot": "dot",
}
_EXTERN = {"exp": "exp", "log": "log", "sqrt": "sqrt", "rsqrt": "rsqrt", "pow": "pow", "fma": "fma",
           "div": "div", "sin": "trig", "cos": "trig", "tan": "trig", "fmod": "rem",
           "remainder": "rem"}  # fmt: skip
_FUNCTIONS = re.compile(r"math\.|tt\.(extern_elementwise|elementwise_inline_asm|map_elementwise)$")
_HANDS_ON = {"math.absf", "math.copysign", "math.floor", "math.ceil", "math.trunc", "math.round",
             "math.roundeven"}  # fmt: skip
# operands of which a zero tells the cause: the divisor, the argument, the factors
_ZEROS = {"div": (1,), "rem": (1,), "log": (0,), "rsqrt": (0,), "pow": (0,), "function": (0,),
          "fma": (0, 1)}  # fmt: skip


@dataclass(frozen=True)
class Check:
    """One result to be examined in the lanes `needed`, after text line `line`. `label`: what the
    table says about `needed`. `kind`: as in records.model.CheckEntry; `parts`: the values that a
    silent check (instrument.silent) compares."""

    rule: str
    op: Op
    value: Value
    needed: Mask
    valid: Mask
    line: int
    label: str
    kind: str = "birth"
    parts: tuple[Value, ...] = ()

    @property
    def examined(self) -> Value:
        """The value whose lanes are counted."""
        return self.parts[0] if self.kind == "tf32" else self.value

    @property
    def operands(self) -> tuple[Value, ...]:
        """The operands that can explain a non-finite result."""
        if self.kind != "birth":
            return ()
        return tuple(v for v in self.op.operands if REAL.match(v.type.element))

    @property
    def zeros(self) -> tuple[int, ...]:
        """Positions among `operands` where a zero tells the cause."""
        return _ZEROS.get(self.rule, ())


def rule_of(op: Op) -> str | None:
    """What an operation computes, None if it does not bear."""
    if is_negation(op) or op.name in _HANDS_ON:
        return None
    if op.name in ("arith.sitofp", "arith.uitofp"):  # only fp16 is too small for an integer
        return "tofloat" if op.results[0].type.element == "f16" else None
    if op.name == "tt.fp_to_fp" and not _narrows(op):
        return None
    if op.name in ("tt.reduce", "tt.scan"):
        return _combination(op)
    if op.name == "tt.extern_elementwise":
        called = re.sub(r"^__\w+?_|f$", "", op.str_attr("symbol") or "")
        stem = re.sub(r"(2|10|1p|m1)$", "", called)
        return _EXTERN.get(stem, "function")
    return _RULES.get(op.name) or ("function" if _FUNCTIONS.match(op.name) else None)


def bearing(ops: Iterable[Op]) -> list[tuple[str, Op, Value]]:
    """(rule, operation, float result) of every bearing operation, in program order."""
    found = []
    for op in ops:
        rule = rule_of(op) if any(REAL.match(v.type.element) for v in op.results) else None
        if rule is None:
            continue
        found += [
            (rule, op, value)
            for value in op.results
            if REAL.match(value.type.element) and value.uses and triton_dtype(value.type.element)
        ]
    return found


def _combination(op: Op) -> str | None:
    if is_extremum(op):
        return None
    inner = [o.name for region in op.regions for o in walk(region) if not o.name.endswith("return")]
    if inner == ["arith.addf"]:
        return "sum" if op.name == "tt.reduce" else "scan"
    if inner == ["arith.mulf"] and op.name == "tt.reduce":
        return "prod"
    return "reduce" if op.name == "tt.reduce" else "scan"


def _narrows(op: Op) -> bool:
    def bits(element: str) -> int:
        digits = re.match(r"(?:b?f)(\d+)", element)
        return int(digits.group(1)) if digits else 32

    return bits(op.results[0].type.element) <= bits(op.operands[0].type.element)
