"""Elementwise functions of the arith and math dialects, on NumPy arrays in register format.

Where C and NumPy leave a result undefined, it is what NVIDIA's instructions give, or at least never
an exception: a shift by the width or more gives 0 (or the sign), division by zero gives no trap.
Callers run inside `np.errstate(all="ignore")`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from .types import Array, torch_view, unsigned

Function = Callable[..., Any]


def by_torch(name: str) -> Function:
    """A torch function (dotted name) on float arrays."""

    def call(*xs: Array) -> Array:
        import torch

        function = functools.reduce(getattr, name.split("."), torch)
        dtype = xs[0].dtype
        wide = [x.astype(np.float32) if x.dtype == np.float16 else x for x in xs]
        if len(wide) > 1:
            wide = list(np.broadcast_arrays(*wide))
        result: Array = function(*[torch_view(x) for x in wide]).numpy()  # type: ignore[operator]
        return result.astype(dtype, copy=False)

    return call


# ------------------------------------------------------------------------------- integers
def _floor_div(a: Array, b: Array) -> tuple[Array, Array, Array]:
    safe = np.where(b == 0, 1, b).astype(b.dtype) if (b == 0).any() else b
    q = np.floor_divide(a, safe)
    return q, a - q * safe, safe


def div_signed(a: Array, b: Array) -> Array:
    """Truncating division; x / 0 is x."""
    q, rest, safe = _floor_div(a, b)
    return (
        (q + ((rest != 0) & ((rest ^ a) < 0))).astype(a.dtype, copy=False) if _signs(a, safe) else q
    )


def rem_signed(a: Array, b: Array) -> Array:
    """Remainder with the sign of the dividend; x % 0 is 0."""
    _, rest, safe = _floor_div(a, b)
    if not _signs(a, safe):
        return rest
    return np.where((rest != 0) & ((rest ^ a) < 0), rest - safe, rest)


def _signs(a: Array, b: Array) -> bool:
    """Whether truncation and flooring can differ."""
    return bool((a.min() < 0) or (b.min() < 0))


def floordiv_signed(a: Array, b: Array) -> Array:
    return _floor_div(a, b)[0]


def ceildiv_signed(a: Array, b: Array) -> Array:
    q, rest, _ = _floor_div(a, b)
    return (q + (rest != 0)).astype(a.dtype, copy=False)


def as_unsigned(function: Function) -> Function:
    """`function` on the unsigned readings, its result read as signed again."""

    def call(a: Array, b: Array) -> Array:
        result: Array = function(unsigned(a), unsigned(b))
        return result.astype(a.dtype)

    return call


def _div_unsigned(a: Array, b: Array) -> Array:
    return a // np.where(b == 0, 1, b).astype(b.dtype)


def _rem_unsigned(a: Array, b: Array) -> Array:
    return a % np.where(b == 0, 1, b).astype(b.dtype)


def _ceildiv_unsigned(a: Array, b: Array) -> Array:
    safe = np.where(b == 0, 1, b).astype(b.dtype)
    return a // safe + (a % safe != 0).astype(a.dtype)


def mul_wide_unsigned(a: Array, b: Array) -> tuple[Array, Array]:
    """(low, high) half of the unsigned product, in the dtype of `a`."""
    x, y = unsigned(a), unsigned(b)
    if a.dtype.itemsize < 8:
        width = np.uint64(8 * a.dtype.itemsize)
        product = x.astype(np.uint64) * y.astype(np.uint64)
        return product.astype(x.dtype).view(a.dtype), (product >> width).astype(x.dtype).view(
            a.dtype
        )
    mask, half = np.uint64(0xFFFFFFFF), np.uint64(32)
    x0, x1, y0, y1 = x & mask, x >> half, y & mask, y >> half
    middle = x1 * y0 + ((x0 * y0) >> half)
    cross = (middle & mask) + x0 * y1
    high = x1 * y1 + (middle >> half) + (cross >> half)
    return (x * y).view(a.dtype), high.view(a.dtype)


def mul_wide_signed(a: Array, b: Array) -> tuple[Array, Array]:
    """(low, high) half of the signed product."""
    low, high = mul_wide_unsigned(a, b)
    zero = a.dtype.type(0)
    return low, high - np.where(a < 0, b, zero) - np.where(b < 0, a, zero)


def add_carry(a: Array, b: Array) -> tuple[Array, Array]:
    """(sum, carry: bool) of an unsigned addition."""
    total = a + b
    return total, unsigned(total) < unsigned(a)


def subtract_borrow(a: Array, b: Array) -> tuple[Array, Array]:
    """(difference, borrow: bool) of an unsigned subtraction."""
    return a - b, unsigned(a) < unsigned(b)


def _ctlz(x: Array) -> Array:
    word, width = unsigned(x), 8 * x.dtype.itemsize
    shift = width // 2
    count = np.zeros(x.shape, np.int64)
    while shift:
        low = (word >> word.dtype.type(width - shift)) == 0
        count += np.where(low, shift, 0)
        word = np.where(low, word << word.dtype.type(shift), word)
        shift //= 2
    return np.where(x == 0, width, count).astype(x.dtype)


def _cttz(x: Array) -> Array:
    word = unsigned(x)
    lowest = word & (~word + word.dtype.type(1))
    return np.where(
        x == 0, 8 * x.dtype.itemsize, np.bitwise_count(lowest - word.dtype.type(1))
    ).astype(x.dtype)


# --------------------------------------------------------------------------------- floats
def rsqrt(x: Array) -> Array:
    result: Array = (x.dtype.type(1) / np.sqrt(x)).astype(x.dtype)
    return result


def round_half_away(x: Array) -> Array:
    whole = np.trunc(x)
    result: Array = (whole + np.copysign(np.abs(x - whole) >= 0.5, x)).astype(x.dtype)
    return result


def fma(a: Array, b: Array, c: Array) -> Array:
    """a * b + c; float32 with one rounding to float64 first, so nearly a fused result."""
    if a.dtype == np.float32:
        wide = a.astype(np.float64) * b.astype(np.float64) + c.astype(np.float64)
        return wide.astype(np.float32)
    result: Array = (a * b + c).astype(a.dtype)
    return result


def _power_int(a: Array, b: Array) -> Array:
    return np.power(a, np.maximum(b, 0)).astype(a.dtype)


BINARY: dict[str, Function] = {
    "arith.addi": np.add,
    "arith.subi": np.subtract,
    "arith.muli": np.multiply,
    "arith.divsi": div_signed,
    "arith.remsi": rem_signed,
    "arith.floordivsi": floordiv_signed,
    "arith.ceildivsi": ceildiv_signed,
    "arith.divui": as_unsigned(_div_unsigned),
    "arith.remui": as_unsigned(_rem_unsigned),
    "arith.ceildivui": as_unsigned(_ceildiv_unsigned),
    "arith.andi": np.bitwise_and,
    "arith.ori": np.bitwise_or,
    "arith.xori": np.bitwise_xor,
    "arith.shli": np.left_shift,
    "arith.shrsi": np.right_shift,
    "arith.shrui": as_unsigned(np.right_shift),
    "arith.maxsi": np.maximum,
    "arith.minsi": np.minimum,
    "arith.maxui": as_unsigned(np.maximum),
    "arith.minui": as_unsigned(np.minimum),
    "tt.mulhiui": lambda a, b: mul_wide_unsigned(a, b)[1],
    "arith.addf": np.add,
    "arith.subf": np.subtract,
    "arith.mulf": np.multiply,
    "arith.divf": np.divide,
    "arith.remf": np.fmod,
    "arith.maximumf": np.maximum,  # NaN wins
    "arith.minimumf": np.minimum,
    "arith.maxnumf": np.fmax,  # NaN loses
    "arith.minnumf": np.fmin,
    "tt.precise_divf": np.divide,
    "tt.approx_divf": np.divide,
    "math.atan2": np.arctan2,
    "math.copysign": np.copysign,
    "math.powf": np.power,
    "math.fpowi": lambda a, b: np.power(a, b.astype(a.dtype)),
    "math.ipowi": _power_int,
}

# on i1 (bool), where NumPy's + and - are not arithmetic modulo 2 and true reads as -1 when signed
BINARY_I1: dict[str, Function] = {
    "arith.addi": np.bitwise_xor,
    "arith.subi": np.bitwise_xor,
    "arith.muli": np.bitwise_and,
    "arith.andi": np.bitwise_and,
    "arith.ori": np.bitwise_or,
    "arith.xori": np.bitwise_xor,
    "arith.maxsi": np.bitwise_and,
    "arith.minsi": np.bitwise_or,
    "arith.maxui": np.bitwise_or,
    "arith.minui": np.bitwise_and,
}

UNARY: dict[str, Function] = {
    "arith.negf": np.negative,
    "tt.precise_sqrt": np.sqrt,
    "math.absf": np.abs,
    "math.absi": np.abs,
    "math.acos": np.arccos,
    "math.acosh": np.arccosh,
    "math.asin": np.arcsin,
    "math.asinh": np.arcsinh,
    "math.atan": np.arctan,
    "math.atanh": np.arctanh,
    "math.cbrt": np.cbrt,
    "math.ceil": np.ceil,
    "math.cos": np.cos,
    "math.cosh": np.cosh,
    "math.ctlz": _ctlz,
    "math.ctpop": lambda x: np.bitwise_count(unsigned(x)).astype(x.dtype),
    "math.cttz": _cttz,
    "math.erf": by_torch("erf"),
    "math.erfc": by_torch("erfc"),
    "math.exp": np.exp,
    "math.exp2": np.exp2,
    "math.expm1": np.expm1,
    "math.floor": np.floor,
    "math.isfinite": np.isfinite,
    "math.isinf": np.isinf,
    "math.isnan": np.isnan,
    "math.log": np.log,
    "math.log10": np.log10,
    "math.log1p": np.log1p,
    "math.log2": np.log2,
    "math.round": round_half_away,
    "math.roundeven": np.rint,
    "math.rsqrt": rsqrt,
    "math.sin": np.sin,
    "math.sinh": np.sinh,
    "math.sqrt": np.sqrt,
    "math.tan": np.tan,
    "math.tanh": np.tanh,
    "math.trunc": np.trunc,
}

_SIGNED = {
    "eq": np.equal,
    "ne": np.not_equal,
    "slt": np.less,
    "sle": np.less_equal,
    "sgt": np.greater,
    "sge": np.greater_equal,
}
_UNSIGNED = {
    "ult": np.less,
    "ule": np.less_equal,
    "ugt": np.greater,
    "uge": np.greater_equal,
}
_ORDERED = {
    "oeq": np.equal,
    "olt": np.less,
    "ole": np.less_equal,
    "ogt": np.greater,
    "oge": np.greater_equal,
    "une": np.not_equal,
}


def compare_int(predicate: str) -> Function:
    """arith.cmpi. i1 compares signed as 0 and -1, so true < false."""
    if predicate in _UNSIGNED:
        below = _UNSIGNED[predicate]
        return lambda a, b: below(unsigned(a), unsigned(b))
    same = _SIGNED[predicate]
    if predicate in ("eq", "ne"):
        return same
    return lambda a, b: same(b, a) if a.dtype == bool else same(a, b)


def _unordered(a: Array, b: Array) -> Array:
    either: Array = np.isnan(a) | np.isnan(b)
    return either


def compare_float(predicate: str) -> Function:
    """arith.cmpf: o.. is false, u.. is true where an operand is NaN."""
    if predicate in _ORDERED:
        return _ORDERED[predicate]
    table: dict[str, Function] = {
        "one": lambda a, b: (a != b) & ~_unordered(a, b),
        "ueq": lambda a, b: (a == b) | _unordered(a, b),
        "ult": lambda a, b: ~(a >= b),
        "ule": lambda a, b: ~(a > b),
        "ugt": lambda a, b: ~(a <= b),
        "uge": lambda a, b: ~(a < b),
        "uno": _unordered,
        "ord": lambda a, b: ~_unordered(a, b),
        "false": lambda a, b: (a < b) & (a > b),
        "true": lambda a, b: (a == b) | (a != b),
    }
    return table[predicate]
