"""Descriptions of lanes: an algebra of masks, simplified as it is built.

A description is `ALL`, `NONE`, `UNKNOWN` or a `Mask`, an expression over values of the module. It
only describes; `instrument.mask_text` turns it into operations. Equal sets of lanes should have
equal descriptions, so that probes can share them. Therefore:

* `not` stands at leaves only, and shape operations inside of `and`, `or` and `not`;
* the parts of `and` and `or` are ordered by their place in the text, none implies another, and
  what is decided by another part is left out (`x or (not x and y)` is `x or y`).

`ALL`, `NONE` and `UNKNOWN` fit values of every shape; other descriptions have the shape of their
type, where () stands for scalars.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from flagprism_torch.ir.module import Value
from flagprism_torch.ir.types import Type, parse_type, tensor_type


@dataclass(frozen=True)
class Mask:
    """`kind` and arguments:

    all | none | unknown
    value (Value): an i1 value
    within (index Value, extent Value): where 0 <= index < extent; a scalar index counts up by lane
    and (Mask, ...) | or (Mask, ...) | not (Mask)
    any (Mask, axis): whether any lane along the axis is in; the axis is gone
    reverse_any (Mask, axis, reverse): whether the lane or a later one along the axis is in, with
        `reverse` an earlier one: what a scan, or a reversed scan, takes from each lane
    op (Mask, name, attributes): a shape operation applied to the mask
    join (Mask, Mask) | half (Mask, 0 or 1): two tiles as one, and back, as tt.join and tt.split do
    gather (Mask, index Value, axis): as tt.gather does
    """

    kind: str
    type: Type
    arguments: tuple[Any, ...] = ()


ALL = Mask("all", parse_type("i1"))
NONE = Mask("none", parse_type("i1"))
UNKNOWN = Mask("unknown", parse_type("i1"))
CONSTANTS = (ALL, NONE, UNKNOWN)

_CONSTANT_SHAPES = ("tt.splat", "tt.broadcast", "tt.expand_dims", "tt.reshape", "tt.trans")


def i1(dims: tuple[int, ...]) -> Type:
    """The type of a mask; () for a scalar."""
    return tensor_type(dims, "i1") if dims else parse_type("i1")


# -- leaves


def leaf(value: Value) -> Mask:
    """The lanes where an i1 value is true."""
    truth = _constant_truth(value)
    if truth is not None:
        return ALL if truth else NONE
    op = value.op
    if op is not None and op.name == "arith.xori":
        for this, other in (op.operands, op.operands[::-1]):
            if _constant_truth(this):
                return negated(leaf(other))
    return Mask("value", value.type, (value,))


def within(index: Value, extent: Value, lanes: int) -> Mask:
    """The lanes [lanes] where 0 <= index < extent; a scalar index counts up by lane."""
    return Mask("within", i1((lanes,)), (index, extent))


def is_constant(value: Value) -> bool:
    """Whether a value is a constant, possibly splat or broadcast."""
    return _constant_head(value) is not None


def _constant_head(value: Value) -> str | None:
    op = value.op
    while op is not None and op.name in _CONSTANT_SHAPES:
        op = op.operands[0].op
    return op.head if op is not None and op.name == "arith.constant" else None


def _constant_truth(value: Value) -> bool | None:
    """What an i1 constant is in all lanes; None for mixed constants and other values."""
    found = re.search(r"^(?:dense<)?(true|false)>?$", (_constant_head(value) or "").strip())
    return found.group(1) == "true" if found else None


def leaves(mask: Mask) -> Iterator[Value]:
    """The values that a description is made of, scalars of `within` and indices included."""
    for argument in mask.arguments:
        if isinstance(argument, Value):
            yield argument
        elif isinstance(argument, Mask):
            yield from leaves(argument)


def size(mask: Mask) -> int:
    """Number of nodes."""
    return 1 + sum(size(part) for part in mask.arguments if isinstance(part, Mask))


# -- and, or, not


def both(left: Mask, right: Mask) -> Mask:
    """Lanes in both descriptions; UNKNOWN if one is and the other does not decide."""
    return merged("and", left, right)


def either(left: Mask, right: Mask) -> Mask:
    """Lanes in at least one description; UNKNOWN if one is and the other does not decide."""
    return merged("or", left, right)


def negated(mask: Mask) -> Mask:
    """Lanes not in the description."""
    if mask in CONSTANTS:
        return {ALL: NONE, NONE: ALL, UNKNOWN: UNKNOWN}[mask]
    if mask.kind == "not":
        inner: Mask = mask.arguments[0]
        return inner
    if mask.kind in ("and", "or"):
        result = negated(mask.arguments[0])
        for part in mask.arguments[1:]:
            result = merged("or" if mask.kind == "and" else "and", result, negated(part))
        return result
    if mask.kind == "op":
        inner, name, attributes = mask.arguments
        return Mask("op", mask.type, (negated(inner), name, attributes))
    if mask.kind == "half":
        return Mask("half", mask.type, (negated(mask.arguments[0]), mask.arguments[1]))
    return Mask("not", mask.type, (mask,))


def chosen(condition: Mask, yes: Mask, no: Mask) -> Mask:
    """`yes` in the lanes of the condition, `no` elsewhere."""
    if yes == no:
        return yes
    return either(both(condition, yes), both(negated(condition), no))


def merged(kind: str, left: Mask, right: Mask) -> Mask:
    """The conjunction (`kind` "and") or disjunction ("or") of two descriptions."""
    neutral, absorbing = (ALL, NONE) if kind == "and" else (NONE, ALL)
    if absorbing in (left, right):
        return absorbing
    if UNKNOWN in (left, right):
        return UNKNOWN
    if neutral in (left, right):
        return right if left is neutral else left
    if left.type.dims != right.type.dims:
        return UNKNOWN
    parts = list(dict.fromkeys((*_parts(kind, left), *_parts(kind, right))))
    while True:
        reduced = _reduced(kind, parts)
        if absorbing in reduced:
            return absorbing
        if set(reduced) == set(parts):
            break
        parts = reduced
    return _joined(kind, parts)


def _parts(kind: str, mask: Mask) -> tuple[Mask, ...]:
    return mask.arguments if mask.kind == kind else (mask,)


def _joined(kind: str, parts: list[Mask]) -> Mask:
    if not parts:
        return ALL if kind == "and" else NONE
    if len(parts) == 1:
        return parts[0]
    return Mask(kind, parts[0].type, tuple(sorted(parts, key=_order)))


def _rank(mask: Mask) -> tuple[int, str]:
    return size(mask), _order(mask)


def _order(mask: Mask) -> str:
    """Place in the text, simple parts first."""
    shown = []
    for argument in mask.arguments:
        if isinstance(argument, Value):
            line = argument.op.line if argument.op else argument.block.line if argument.block else 0
            shown.append(f"{line:07}{argument.name}")
        else:
            shown.append(_order(argument) if isinstance(argument, Mask) else str(argument))
    text = ",".join(shown)
    return text if mask.kind == "value" else f"{mask.kind}({text})"


def _reduced(kind: str, parts: list[Mask]) -> list[Mask]:
    """One round of simplification; [absorbing] where the parts exclude each other."""
    absorbing = NONE if kind == "and" else ALL
    dual = "or" if kind == "and" else "and"
    kept: list[Mask] = []
    for part in sorted(parts, key=_rank):  # of two that say the same, the shorter one stays
        if any(_absorbs(kind, other, part) for other in kept):
            continue
        kept = [other for other in kept if not _absorbs(kind, part, other)]
        kept.append(part)
    opposites = [negated(part) for part in kept]
    for at, part in enumerate(kept):
        if any(_absorbs(kind, part, other) for other in opposites):
            return [absorbing]
        if part.kind == dual:
            # x or (not x and y) is x or y; a member that another part implies likewise
            left = [
                member
                for member in part.arguments
                if not any(
                    other is not part and _absorbs(dual, opposite, member)
                    for other, opposite in zip(kept, opposites, strict=True)
                )
            ]
            if len(left) < len(part.arguments):
                kept[at] = _joined(dual, left)
                return _flat(kind, kept)
    for at, part in enumerate(kept):
        for later in range(at + 1, len(kept)):
            common = _complements(dual, part, kept[later])
            if common is not None:
                return _flat(kind, [*kept[:at], common, *kept[at + 1 : later], *kept[later + 1 :]])
    return kept


def _flat(kind: str, parts: list[Mask]) -> list[Mask]:
    return list(dict.fromkeys(piece for part in parts for piece in _parts(kind, part)))


def _absorbs(kind: str, strong: Mask, weak: Mask) -> bool:
    """Whether `weak` adds nothing to `strong` in a conjunction, or in a disjunction."""
    return implies(strong, weak) if kind == "and" else implies(weak, strong)


def _complements(dual: str, left: Mask, right: Mask) -> Mask | None:
    """z of (x and z) or (not x and z), and its dual."""
    if left.kind != dual or right.kind != dual:
        return None
    common = [part for part in left.arguments if part in right.arguments]
    rest = [
        _joined(dual, [part for part in mask.arguments if part not in common])
        for mask in (left, right)
    ]
    if common and rest[0] == negated(rest[1]):
        return _joined(dual, common)
    return None


# -- implication


def implies(strong: Mask, weak: Mask) -> bool:
    """Whether every lane of `strong` is surely one of `weak`. False means: not seen to."""
    if strong == weak or strong is NONE or weak is ALL:
        return True
    if UNKNOWN in (strong, weak) or ALL is strong or NONE is weak:
        return False
    if strong.kind == "or":
        return all(implies(part, weak) for part in strong.arguments)
    if weak.kind == "and":
        return all(implies(strong, part) for part in weak.arguments)
    if strong.kind == "and" and any(implies(part, weak) for part in strong.arguments):
        return True
    if weak.kind == "or":
        return any(implies(strong, part) for part in weak.arguments)
    if weak.kind == "value" and _made_of(strong, weak.arguments[0]):
        return True
    if strong.kind == "value":
        if _holds(strong.arguments[0], weak):
            return True
    elif weak.kind == "not" and strong.kind in ("not", "op", "half"):
        return implies(weak.arguments[0], negated(strong))
    elif (
        strong.kind == weak.kind
        and strong.kind in ("op", "any", "reverse_any", "half", "gather")
        and strong.arguments[1:] == weak.arguments[1:]
        and strong.type == weak.type
    ):
        return implies(strong.arguments[0], weak.arguments[0])
    if weak.kind == "reverse_any":
        return implies(strong, weak.arguments[0])
    source = _spread_any(weak)
    return source is not None and implies(strong, source)


def implied_by(condition: Value, mask: Mask) -> bool:
    """Whether the condition is surely true wherever the mask is."""
    return implies(mask, leaf(condition))


def conjuncts(value: Value) -> list[Value]:
    """The i1 values whose conjunction `value` is, itself included."""
    if value.op is not None and value.op.name == "arith.andi":
        return [value, *(part for v in value.op.operands for part in conjuncts(v))]
    return [value]


def _made_of(strong: Mask, value: Value) -> bool:
    """Whether all conjuncts of a value follow from the description."""
    if value.op is None or value.op.name != "arith.andi":
        return False
    return all(implies(strong, leaf(part)) for part in value.op.operands)


def _holds(value: Value, weak: Mask) -> bool:
    """Whether a conjunct of the i1 value is, or repeats, the description."""
    for part in conjuncts(value):
        if part is not value and leaf(part) == weak:
            return True
        op = part.op
        if op is None or weak.kind != "op" or weak.type != part.type:
            continue
        source, name, attributes = weak.arguments
        own = attributes_of(op.head) if name in ("tt.expand_dims", "tt.trans") else ""
        if (op.name, own) == (name, attributes) and leaf(op.operands[0]) == source:
            return True
    return False


def _spread_any(mask: Mask) -> Mask | None:
    """m, if the description is `any` of m along an axis, spread along that axis again."""
    if mask.kind != "op" or mask.arguments[1] != "tt.broadcast":
        return None
    inner = mask.arguments[0]
    if inner.kind != "op" or inner.arguments[1] != "tt.expand_dims":
        return None
    line = inner.arguments[0]
    if line.kind != "any" or inner.arguments[2] != axis_attribute(line.arguments[1]):
        return None
    source: Mask = line.arguments[0]
    if source.type.dims == mask.type.dims:
        return source
    return Mask("op", mask.type, (source, "tt.broadcast", ""))


# -- attributes


def attributes_of(head: str) -> str:
    """The `{...}` part of an operation's head."""
    match = re.search(r"\{.*\}", head)
    return match.group(0) if match else ""


def axis_attribute(axis: int) -> str:
    return f"{{axis = {axis} : i32}}"
