"""Clauses about births: for every rule, special values through NumPy, and each clause must be true
of the lane that it was made for."""

from __future__ import annotations

import itertools
import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest
import torch

from flagprism_torch.analysis.causes import INFINITE, ZERO, cause
from flagprism_torch.instrument.checks import _RULES, Check
from flagprism_torch.ir.masks import ALL
from flagprism_torch.records.model import CheckEntry

INF = math.inf
SPECIAL = [0.0, -0.0, 1.0, -1.0, 0.5, -2.5, 3.0, 90.0, 3e38, -3e38, 1e-40, -1e30, INF, -INF]
FEW = [0.0, 1.0, -2.0, 3e38, -3e38, INF, -INF]
F32 = np.float32
LARGEST = {"fp32": float(np.finfo(F32).max), "fp16": 65504.0, "fp8e4nv": 448.0, "fp8e5": 57344.0}


def check_of(rule: str, op: str, dtype: str = "fp32") -> CheckEntry:
    return CheckEntry("birth", rule, op, dtype, (8,), "all", "k.py", 1, None, "")


def zeros_of(rule: str) -> tuple[int, ...]:
    """Operands whose zeros the device tests."""
    return Check(rule, None, None, ALL, ALL, 0, "").zeros  # type: ignore[arg-type]


def births(
    result: float, values: Sequence[float], signs: Sequence[set[float]], zeros: Sequence[int]
) -> tuple[str, int] | None:
    """What is born (contract, Verdicts), as (kind, cause bits). All infinite values of one sign
    count as one operand where they stand for a slice; `signs`: of sentinels, per value."""
    if any(map(math.isnan, values)) or math.isfinite(result):
        return None
    infinite = [(v, s) for v, s in zip(values, signs, strict=True) if math.isinf(v)]
    bits = ZERO * any(values[i] == 0 for i in zeros) | INFINITE * bool(infinite)
    if math.isnan(result):
        return "nan", bits
    if infinite and (len(infinite) > 1 or infinite[0][0] not in infinite[0][1]
                     or infinite[0][0] == result):  # fmt: skip
        return None
    return "inf", bits


def fma(a: Any, b: Any, c: Any) -> Any:
    return F32(np.float64(a) * np.float64(b) + np.float64(c))  # the product is exact


ELEMENTWISE: dict[str, tuple[str, int, Callable[..., Any]]] = {
    "arith.addf": ("add", 2, np.add),
    "arith.subf": ("sub", 2, np.subtract),
    "arith.mulf": ("mul", 2, np.multiply),
    "arith.divf": ("div", 2, np.divide),
    "arith.remf": ("rem", 2, np.fmod),
    "math.fma": ("fma", 3, fma),
    "math.exp": ("exp", 1, np.exp),
    "math.exp2": ("exp", 1, np.exp2),
    "math.expm1": ("exp", 1, np.expm1),
    "math.log": ("log", 1, np.log),
    "math.log2": ("log", 1, np.log2),
    "math.log1p": ("log", 1, np.log1p),
    "math.sqrt": ("sqrt", 1, np.sqrt),
    "math.rsqrt": ("rsqrt", 1, lambda x: F32(1) / np.sqrt(x)),
    "math.powf": ("pow", 2, np.power),
    "math.sin": ("trig", 1, np.sin),
    "math.tan": ("trig", 1, np.tan),
    "math.acos": ("function", 1, np.arccos),
    "math.atanh": ("function", 1, np.arctanh),
}


def opposite(values: Sequence[float]) -> bool:
    return INF in values and -INF in values


def overflows(op: str, values: Sequence[float], dtype: str) -> bool:
    """The exact result, or that of float64, is beyond the type."""
    if not all(map(math.isfinite, values)):
        return False
    wide = [np.float64(v) for v in values]
    if op in ("sum", "prod", "dot"):
        exact = wide[-1] * wide[-2] if op == "dot" else 0.0
        parts = {"sum": np.cumsum(wide), "prod": np.cumprod(wide), "dot": dot_parts(wide)}[op]
        return bool((np.abs([*parts, exact]) > LARGEST[dtype]).any())
    if op == "cast":
        return abs(wide[0]) > LARGEST[dtype]
    if op == "math.fma":
        return abs(wide[0] * wide[1] + wide[2]) > LARGEST[dtype]
    return abs(float(ELEMENTWISE[op][2](*wide))) > LARGEST[dtype]


def dot_parts(wide: Sequence[Any]) -> Any:
    n = (len(wide) - 1) // 2
    products = np.array(wide[:n]) * np.array(wide[n : 2 * n])
    return np.concatenate([products, np.cumsum([wide[-1], *products])])


Truth = Callable[[str, Sequence[float], float, str], bool]
CLAUSES: dict[str, Truth] = {
    r"inf - inf": lambda op, v, r, d: (
        opposite([v[0] * v[1], v[2]]) if op == "math.fma"
        else opposite([v[0], -v[1] if op == "arith.subf" else v[1]])),
    r"0 \* inf": lambda op, v, r, d: any(
        v[i] == 0 and math.isinf(v[1 - i]) for i in (0, 1)),
    r"inf / inf": lambda op, v, r, d: all(map(math.isinf, v)),
    r"0 / 0": lambda op, v, r, d: v[0] == 0 == v[1],
    r"x / 0": lambda op, v, r, d: v[1] == 0 != v[0],
    r"remainder of a division by 0": lambda op, v, r, d: v[1] == 0,
    r"remainder of inf": lambda op, v, r, d: math.isinf(v[0]),
    r"overflow in fp32|exp2? overflows fp32|a (sum|product|dot product) overflows fp32|"
    r"cast overflows fp\w+": lambda op, v, r, d: overflows(op, v, d),
    r"(log|log2|sqrt|rsqrt) of a negative value": lambda op, v, r, d: v[0] < 0,
    r"log1p of a value below -1": lambda op, v, r, d: v[0] < -1,
    r"log outside its domain": lambda op, v, r, d: v[0] < 0,
    r"log of 0|rsqrt of 0": lambda op, v, r, d: v[0] == 0,
    r"log1p of -1": lambda op, v, r, d: v[0] == -1,
    r"0 to a negative power": lambda op, v, r, d: v[0] == 0 and v[1] < 0,
    r"pow of a negative value with a fractional exponent": lambda op, v, r, d: (
        v[0] < 0 and v[1] != round(v[1])),
    r"(sin|tan|acos|atanh|a trigonometric function) of inf gives NaN": lambda op, v, r, d: (
        math.isinf(v[0])),
    r"(acos|atanh) of finite values gives (NaN|inf)": lambda op, v, r, d: math.isfinite(v[0]),
    r"a constant -inf changed sign": lambda op, v, r, d: -INF in v and INF not in v and r == INF,
    r"a constant inf changed sign": lambda op, v, r, d: INF in v and -INF not in v and r == -INF,
    r"a constant infinity changed sign": lambda op, v, r, d: any(map(math.isinf, v)),
    r"inf - inf in a sum": lambda op, v, r, d: (
        opposite(v) or float(np.abs(np.cumsum(np.float64(v))).max()) > LARGEST[d]),
    r"0 \* inf in a product": lambda op, v, r, d: 0.0 in v,
    r"a (scan|reduction) of inf gives NaN": lambda op, v, r, d: any(map(math.isinf, v)),
    r"a (scan|reduction) of finite values gives (inf|NaN)": lambda op, v, r, d: (
        all(map(math.isfinite, v))),
    r"0 \* inf or inf - inf in a dot product": lambda op, v, r, d: any(map(math.isinf, v)),
    r"inf - inf in a dot product": lambda op, v, r, d: overflows("dot", v, d),
    r"a cast to fp8e4nv of inf gives NaN": lambda op, v, r, d: math.isinf(v[0]),
}  # fmt: skip


def prove(
    check: CheckEntry, op: str, values: Sequence[float], result: float, kind: str, bits: int
) -> Iterator[str]:
    """The clauses of a birth, each with the sign told and not; all must be true."""
    sign = "" if kind == "nan" else "+" if result > 0 else "-"
    for told in {sign, ""}:
        clause = cause(check, kind, bits, told)
        truths = [truth for text, truth in CLAUSES.items() if re.fullmatch(text, clause)]
        assert len(truths) == 1, clause
        assert truths[0](op, values, result, check.dtype), (clause, values, result)
        yield clause


SIGNS: list[set[float]] = [set(), {-INF}, {INF}, {INF, -INF}]


@pytest.mark.parametrize("op", ELEMENTWISE)
def test_elementwise(op: str) -> None:
    rule, arity, function = ELEMENTWISE[op]
    assert _RULES.get(op, "function") == rule
    check, zeros, seen = check_of(rule, op), zeros_of(rule), Counter[str]()
    values = SPECIAL if arity < 3 else FEW
    with np.errstate(all="ignore"):
        for lane in itertools.product(values, repeat=arity):
            exact = [float(F32(v)) for v in lane]
            result = float(function(*(F32(v) for v in lane)))
            for signs in itertools.product(SIGNS, repeat=arity):
                born = births(result, exact, signs, zeros)
                if born is not None:
                    seen.update(prove(check, op, exact, result, *born))
    expected = {
        "arith.addf": {"inf - inf", "overflow in fp32"},
        "arith.subf": {"inf - inf", "overflow in fp32", "a constant -inf changed sign",
                       "a constant inf changed sign", "a constant infinity changed sign"},
        "arith.divf": {"0 / 0", "x / 0", "inf / inf", "overflow in fp32",
                       "a constant -inf changed sign", "a constant inf changed sign",
                       "a constant infinity changed sign"},
        "math.log": {"log of 0", "log of a negative value"},
        "math.sqrt": {"sqrt of a negative value"},
        "math.exp": {"exp overflows fp32"},
    }  # fmt: skip
    assert seen
    if op in expected:
        assert set(seen) == expected[op]


def test_a_logarithm_of_a_library_may_be_log1p() -> None:
    check = check_of("log", "tt.extern_elementwise")
    assert cause(check, "nan", 0) == "log outside its domain"
    assert cause(check, "inf", ZERO) == "log of 0"
    assert cause(check, "inf", 0, "-") == "log of finite values gives inf"


def e4m3(value: float) -> float:
    """A cast without saturation to fp8e4nv, which has no infinity (OCP 8-bit floats)."""
    return math.nan if not abs(value) < 464 else value


@pytest.mark.parametrize(
    ("dtype", "kind"), [("fp16", torch.float16), ("fp8e5", torch.float8_e5m2), ("fp8e4nv", None)]
)
def test_casts(dtype: str, kind: torch.dtype | None) -> None:
    check = check_of("cast", "tt.fp_to_fp", dtype)
    found = Counter[str]()
    for value in (0.0, 1.0, 1e4, 65504.0, 7e4, -1e30, INF, -INF):
        result = e4m3(value) if kind is None else float(torch.tensor(value).to(kind))
        for sentinel in SIGNS:
            born = births(result, [value], [sentinel], ())
            if born is not None:
                found.update(prove(check, "cast", [value], result, *born))
    of_inf = {"a cast to fp8e4nv of inf gives NaN"} if dtype == "fp8e4nv" else set()
    assert set(found) <= {f"cast overflows {dtype}"} | of_inf
    assert found[f"cast overflows {dtype}"]
    assert cause(check_of("tofloat", "arith.sitofp", "fp16"), "inf", 0) == (
        "an integer overflows fp16"
    )


@pytest.mark.parametrize(
    ("rule", "op", "function"),
    [
        ("sum", "tt.reduce", np.add.reduce),
        ("prod", "tt.reduce", np.multiply.reduce),
        ("scan", "tt.scan", np.add.reduce),
        ("reduce", "tt.reduce", lambda v: v[0] * v[1] + v[2]),
    ],
)
def test_reductions_and_scans(rule: str, op: str, function: Callable[[Any], Any]) -> None:
    """A lane of a scan combines a slice, as a reduction does."""
    check, found = check_of(rule, op), Counter[str]()
    with np.errstate(all="ignore"):
        for lane in itertools.product(FEW, repeat=3):
            values = [float(F32(v)) for v in lane]
            result = float(function(np.array(lane, F32)))
            infinite = {v for v in values if math.isinf(v)}
            for signs in SIGNS:
                born = births(result, [*infinite, 1.0], [signs] * (len(infinite) + 1), ())
                if born is not None:
                    found.update(prove(check, rule, values, result, *born))
    assert len(found) >= 2


def test_dot_products() -> None:
    check, found = check_of("dot", "tt.dot"), Counter[str]()
    values = [0.0, 1.0, -2.0, 3e38, INF, -INF]
    with np.errstate(all="ignore"):
        for lane in itertools.product(values, repeat=5):
            a, b, c = np.array(lane[:2], F32), np.array(lane[2:4], F32), F32(lane[4])
            result = float(c + a[0] * b[0] + a[1] * b[1])
            exact = [float(F32(v)) for v in lane]
            infinite = [v for v in exact if math.isinf(v)]
            signs: list[set[float]] = [set()] * (len(infinite) + 1)
            born = births(result, [*infinite, 1.0], signs, ())
            if born is not None:
                found.update(prove(check, "dot", exact, result, *born))
    assert set(found) == {
        "0 * inf or inf - inf in a dot product",
        "inf - inf in a dot product",
        "a dot product overflows fp32",
    }


def test_functions_without_a_rule() -> None:
    for op, name in (
        ("math.tanh", "tanh"),
        ("tt.extern_elementwise", "a library function"),
        ("tt.elementwise_inline_asm", "inline assembly"),
    ):
        check = check_of("function", op)
        assert cause(check, "nan", 0) == f"{name} of finite values gives NaN"
        assert cause(check, "nan", INFINITE) == f"{name} of inf gives NaN"
        assert cause(check, "inf", ZERO) == f"{name} of 0 gives inf"
