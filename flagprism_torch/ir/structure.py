"""How the lanes of an operation's results come from the lanes of its operands."""

from __future__ import annotations

import re

from flagprism_torch.ir.module import Op
from flagprism_torch.ir.text import split_top

_ELEMENTWISE = re.compile(
    r"(arith|math)\.(?!constant|select)|tt\.(fp_to_fp|extern_elementwise|bitcast|clampf|mulhiui|"
    r"precise_\w+|addptr|int_to_ptr|ptr_to_int|elementwise_inline_asm|map_elementwise)$"
)


def is_elementwise(op: Op) -> bool:
    """Whether a lane of the results comes from the same lane of the operands; selects are apart."""
    return _ELEMENTWISE.match(op.name) is not None


def roles(op: Op) -> list[str]:
    """The part of each operand of tt.dot and tt.dot_scaled, in order.

    left [..., M, K], right [..., K, N], addend [..., M, N], left_scale [..., M, groups],
    right_scale [..., N, groups]. Packed operands hold two values a lane (`is_packed_across`).
    """
    if op.name == "tt.dot":
        return ["left", "right", "addend"]
    # printed: a [scale s], b [scale t], c lhs = ... rhs = ... {...}
    parts = split_top(op.head, ", ")
    found = []
    for role, part in zip(("left", "right"), parts, strict=False):
        found += [role, f"{role}_scale"] if " scale " in part else [role]
    return [*found, "addend"]


def is_packed_across(op: Op) -> bool:
    """Whether a factor of tt.dot_scaled packs two rows or columns of the result in a lane."""
    return re.search(r"[lr]hs_k_pack = false", op.head) is not None
