"""`tt.extern_elementwise`: CUDA's libdevice functions (`__nv_erff`, ...) by NumPy and torch.

Names: https://docs.nvidia.com/cuda/libdevice-users-guide/; a trailing f means float32.
"""

from __future__ import annotations

import numpy as np

from .scalars import (
    Function,
    by_torch,
    fma,
    mul_wide_signed,
    mul_wide_unsigned,
    round_half_away,
    rsqrt,
)
from .types import Array, unsigned


def _ilogb(x: Array) -> Array:
    exponent = np.frexp(x)[1].astype(np.int64) - 1
    special = np.where(np.isnan(x) | (x == 0), -(2**31), 2**31 - 1)
    return np.where(np.isfinite(x) & (x != 0), exponent, special).astype(np.int32)


def _logb(x: Array) -> Array:
    exponent = (np.frexp(x)[1] - 1).astype(x.dtype)
    return np.where(x == 0, -np.inf, np.where(np.isfinite(x), exponent, np.abs(x))).astype(x.dtype)


def _to_int(kind: type[np.signedinteger], rounding: Function = np.rint) -> Function:
    def call(x: Array) -> Array:
        info = np.iinfo(kind)
        wide = np.nan_to_num(rounding(x).astype(np.float64), nan=0.0)
        inside = np.clip(wide, float(info.min), np.nextafter(float(info.max) + 1.0, 0))
        return np.where(wide > info.max, info.max, inside.astype(kind)).astype(kind)

    return call


def _popc(x: Array) -> Array:
    return np.bitwise_count(unsigned(x)).astype(np.int32)


FUNCTIONS: dict[str, Function] = {
    "abs": np.abs,
    "acos": np.arccos,
    "acosh": np.arccosh,
    "asin": np.arcsin,
    "asinh": np.arcsinh,
    "atan": np.arctan,
    "atan2": np.arctan2,
    "atanh": np.arctanh,
    "cbrt": np.cbrt,
    "ceil": np.ceil,
    "copysign": np.copysign,
    "cos": np.cos,
    "cosh": np.cosh,
    "cospi": lambda x: np.cos(np.fmod(x, 2) * np.pi),
    "cyl_bessel_i0": by_torch("special.i0"),
    "cyl_bessel_i1": by_torch("special.i1"),
    "erf": by_torch("erf"),
    "erfc": by_torch("erfc"),
    "erfcinv": lambda x: by_torch("erfinv")(1 - x),
    "erfcx": by_torch("special.erfcx"),
    "erfinv": by_torch("erfinv"),
    "exp": np.exp,
    "exp10": lambda x: np.power(x.dtype.type(10), x),
    "exp2": np.exp2,
    "expm1": np.expm1,
    "fabs": np.abs,
    "fdim": lambda a, b: np.where(np.isnan(a) | np.isnan(b), a + b, np.maximum(a - b, 0)),
    "fdivide": np.divide,
    "finite": np.isfinite,
    "finited": np.isfinite,
    "floor": np.floor,
    "fma": fma,
    "fma_rn": fma,
    "fmax": np.fmax,
    "fmin": np.fmin,
    "fmod": np.fmod,
    "hypot": np.hypot,
    "ilogb": _ilogb,
    "isfinited": np.isfinite,
    "isinf": np.isinf,
    "isinfd": np.isinf,
    "isnan": np.isnan,
    "isnand": np.isnan,
    "j0": by_torch("special.bessel_j0"),
    "j1": by_torch("special.bessel_j1"),
    "ldexp": np.ldexp,
    "lgamma": by_torch("lgamma"),
    "llrint": _to_int(np.int64),
    "llround": _to_int(np.int64, round_half_away),
    "log": np.log,
    "log10": np.log10,
    "log1p": np.log1p,
    "log2": np.log2,
    "logb": _logb,
    "max": np.maximum,
    "min": np.minimum,
    "mulhi": lambda a, b: mul_wide_signed(a, b)[1],
    "nearbyint": np.rint,
    "nextafter": np.nextafter,
    "norm3d": lambda a, b, c: np.sqrt(a * a + b * b + c * c),
    "normcdf": by_torch("special.ndtr"),
    "normcdfinv": by_torch("special.ndtri"),
    "popc": _popc,
    "popcll": _popc,
    "pow": np.power,
    "powi": lambda x, n: np.power(x, n.astype(x.dtype)),
    "rcbrt": lambda x: 1 / np.cbrt(x),
    "remainder": lambda a, b: a - np.rint(a / b) * b,
    "rhypot": lambda a, b: 1 / np.hypot(a, b),
    "rint": np.rint,
    "round": round_half_away,
    "rsqrt": rsqrt,
    "rsqrt_rn": rsqrt,
    "saturate": lambda x: np.fmin(np.fmax(x, 0), 1),
    "scalbn": np.ldexp,
    "signbit": np.signbit,
    "signbitd": np.signbit,
    "sin": np.sin,
    "sinh": np.sinh,
    "sinpi": lambda x: np.sin(np.fmod(x, 2) * np.pi),
    "sqrt": np.sqrt,
    "sqrt_rn": np.sqrt,
    "tan": np.tan,
    "tanh": np.tanh,
    "tgamma": lambda x: _tgamma(x),
    "trunc": np.trunc,
    "umulhi": lambda a, b: mul_wide_unsigned(a, b)[1],
    "y0": by_torch("special.bessel_y0"),
    "y1": by_torch("special.bessel_y1"),
    # correctly rounded arithmetic
    "add_rn": np.add,
    "sub_rn": np.subtract,
    "mul_rn": np.multiply,
    "div_rn": np.divide,
    "fadd_rn": np.add,
    "fsub_rn": np.subtract,
    "fmul_rn": np.multiply,
    "fdiv_rn": np.divide,
    "dadd_rn": np.add,
    "dsub_rn": np.subtract,
    "dmul_rn": np.multiply,
    "ddiv_rn": np.divide,
    "fsqrt_rn": np.sqrt,
    "dsqrt_rn": np.sqrt,
    "frsqrt_rn": rsqrt,
    "frcp_rn": np.reciprocal,
    "drcp_rn": np.reciprocal,
    "fmaf_rn": fma,
    "float2int_rn": _to_int(np.int32),
    "float2int_rz": _to_int(np.int32, np.trunc),
    "float2ll_rn": _to_int(np.int64),
    "float2ll_rz": _to_int(np.int64, np.trunc),
    "double2int_rn": _to_int(np.int32),
    "double2int_rz": _to_int(np.int32, np.trunc),
    "double2ll_rn": _to_int(np.int64),
    "double2ll_rz": _to_int(np.int64, np.trunc),
    "int2float_rn": lambda x: x.astype(np.float32),
    "float_as_int": lambda x: np.ascontiguousarray(x).view(np.int32),
    "int_as_float": lambda x: np.ascontiguousarray(x).view(np.float32),
    "double_as_longlong": lambda x: np.ascontiguousarray(x).view(np.int64),
    "longlong_as_double": lambda x: np.ascontiguousarray(x).view(np.float64),
}


def _tgamma(x: Array) -> Array:
    import math

    def one(v: float) -> float:
        try:
            return math.gamma(v)
        except (ValueError, OverflowError):
            return math.inf if v >= 0 else math.nan

    return np.vectorize(one, otypes=[x.dtype])(x)


def function_of(symbol: str) -> Function | None:
    """The function behind a libdevice symbol, None if it is not known."""
    name = symbol.removeprefix("__nv_")
    short = name.removeprefix("fast_")
    for candidate in (name, name.removesuffix("f"), short, short.removesuffix("f")):
        if candidate in FUNCTIONS:
            return FUNCTIONS[candidate]
    return None
