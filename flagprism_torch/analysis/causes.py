"""One clause that says why a value was born, from what a check knows of its earliest lane.

Note [What is certain]
A birth has no NaN operand, and an infinity is born of finite operands or of one sentinel that
changed its sign (docs/contract.md, Verdicts). Two bits say more (records.layout, Note [Check
record]): whether a tested operand is zero (the divisor, the argument of a logarithm, a factor of
`fma`), and whether any operand is infinite. Together with the rule of the operation this often
leaves one possibility; where it leaves two the clause names both, and where it leaves more it says
no more than what the bits do.
"""

from __future__ import annotations

from ..records.model import CheckEntry

ZERO, INFINITE = 1, 2

_NAN = {
    "add": "inf - inf",
    "sub": "inf - inf",
    "mul": "0 * inf",
    "sum": "inf - inf in a sum",
    "prod": "0 * inf in a product",
    "sqrt": "sqrt of a negative value",
    "rsqrt": "rsqrt of a negative value",
    "pow": "pow of a negative value with a fractional exponent",
}
_OVERFLOWS = {
    "exp": "exp overflows {}",
    "cast": "cast overflows {}",
    "tofloat": "an integer overflows {}",
    "sum": "a sum overflows {}",
    "prod": "a product overflows {}",
    "dot": "a dot product overflows {}",
    **dict.fromkeys(("add", "sub", "mul", "div", "fma", "pow"), "overflow in {}"),
}
_OF_ZERO = {
    "div": "x / 0",
    "log": "log of 0",
    "rsqrt": "rsqrt of 0",
    "pow": "0 to a negative power",
}
_EXTERN = ("tt.extern_elementwise", "tt.elementwise_inline_asm", "tt.map_elementwise")


def cause(check: CheckEntry, kind: str, bits: int, sign: str = "") -> str:
    """Why NaN (`kind` "nan") or an infinity ("inf") was born in a lane.

    Args:
        bits: ZERO and INFINITE, as the check found them in that lane.
        sign: of the infinities that the check counted, "+" or "-"; "" if there are both.
    """
    if kind == "nan":
        return _of_nan(check, bits)
    if bits & INFINITE:
        before = {"+": "a constant -inf", "-": "a constant inf"}.get(sign, "a constant infinity")
        return f"{before} changed sign"
    if bits & ZERO and check.rule in _OF_ZERO:
        return _OF_ZERO[check.rule]
    if check.rule in _OVERFLOWS and not (bits & ZERO and check.rule == "div"):
        return _OVERFLOWS[check.rule].format(check.dtype)
    if check.op == "math.log1p":
        return "log1p of -1"
    return f"{_name(check)} of {_operands(bits)} gives inf"


def _of_nan(check: CheckEntry, bits: int) -> str:
    rule = check.rule
    if rule == "div" and bits:
        return "0 / 0" if bits & ZERO else "inf / inf"
    if rule == "rem" and bits:
        return "remainder of a division by 0" if bits & ZERO else "remainder of inf"
    if rule == "fma":
        return "0 * inf" if bits & ZERO else "inf - inf"
    if rule == "log":
        if check.op in _EXTERN:  # log or log1p
            return "log outside its domain"
        below = "a value below -1" if check.op == "math.log1p" else "a negative value"
        return f"{_name(check)} of {below}"
    if rule == "dot":
        return ("0 * inf or inf - inf" if bits & INFINITE else "inf - inf") + " in a dot product"
    if rule == "cast" and not bits & INFINITE:
        return f"cast overflows {check.dtype}"
    if rule == "pow" and bits & ZERO:
        return "pow of 0 gives NaN"
    return _NAN.get(rule) or f"{_name(check)} of {_operands(bits)} gives NaN"


def _operands(bits: int) -> str:
    return "inf" if bits & INFINITE else "0" if bits & ZERO else "finite values"


def _name(check: CheckEntry) -> str:
    """What an operation is called in a clause."""
    if check.rule == "function":
        return {
            "tt.extern_elementwise": "a library function",
            "tt.elementwise_inline_asm": "inline assembly",
            "tt.map_elementwise": "a mapped function",
        }.get(check.op, check.op.removeprefix("math."))
    if check.rule == "trig" and check.op in _EXTERN:
        return "a trigonometric function"
    if check.rule in ("exp", "log", "trig"):
        return check.rule if check.op in _EXTERN else check.op.removeprefix("math.")
    return {
        "reduce": "a reduction",
        "scan": "a scan",
        "cast": f"a cast to {check.dtype}",
        "div": "division",
        "rem": "remainder",
    }.get(check.rule, check.rule)
