"""Birth probes: which lanes of a result are non-finite although their operands do not explain it.

They run in a branch that a program takes only if it saw a non-finite lane, so they may cost.

Note [Birth rules]
`operand_flags` sums up, lane by lane, what the operands hold; `slice_flags` and `dot_flags` do so
for the lanes that a reduction, a scan or a dot product combines. `births` then decides:

* NaN is born where no operand is NaN;
* +-inf is born where no operand is NaN or infinite, or where the only infinite operand is a
  sentinel (an infinity written in the program, ir.sentinels) and the result has the other sign.
"""

from __future__ import annotations

import triton
import triton.language as tl

from flagprism_torch.instrument.tiles import INF, NO_LANE, as_float, either, lane_index

# operand flags
_NAN = tl.constexpr(1)
_INFINITE = tl.constexpr(2)  # an infinity that is no sentinel
_PLUS = tl.constexpr(4)  # a sentinel +inf
_MINUS = tl.constexpr(8)
_SECOND = tl.constexpr(16)  # more than one infinite operand
_ZERO = tl.constexpr(32)
_ANY_INFINITE = tl.constexpr(14)


@triton.jit
def operand_flags(flags, x, SIGNS: tl.constexpr, ZERO: tl.constexpr):
    """Flags with those of one more operand, int32, shape of x. SIGNS: infinities of x that are
    sentinels (1: +inf, 2: -inf); ZERO: whether a zero of x matters for the cause."""
    v = as_float(x)
    bits = tl.where(v != v, _NAN, 0)
    infinite = tl.where(tl.abs(v) == INF, _INFINITE, 0)
    if SIGNS & 1:
        infinite = tl.where(v == INF, _PLUS, infinite)
    if SIGNS & 2:
        infinite = tl.where(v == -INF, _MINUS, infinite)
    second = tl.where((flags & _ANY_INFINITE) != 0, _SECOND, 0)
    bits = bits | infinite | tl.where(infinite != 0, second, 0)
    if ZERO:
        bits = bits | tl.where(v == 0, _ZERO, 0)
    return flags | bits


@triton.jit
def slice_flags(flags, AXIS: tl.constexpr):
    """What any lane along AXIS has."""
    return tl.reduce(flags, AXIS, either)


@triton.jit
def scan_flags(flags, AXIS: tl.constexpr, REVERSE: tl.constexpr):
    """What any lane up to (REVERSE: from) each lane along AXIS has."""
    return tl.associative_scan(flags, AXIS, either, REVERSE)


@triton.jit
def dot_flags(flags, a, b):
    """Flags with those of the row of a and the column of b that each lane combines."""
    RANK: tl.constexpr = len(a.shape)
    left = operand_flags(tl.zeros(a.shape, tl.int32), a, 0, False)
    right = operand_flags(tl.zeros(b.shape, tl.int32), b, 0, False)
    rows = tl.expand_dims(tl.reduce(left, RANK - 1, either), RANK - 1)
    columns = tl.expand_dims(tl.reduce(right, RANK - 2, either), RANK - 2)
    return flags | rows | columns


@triton.jit
def births(x, flags):
    """Code of each lane of a result, int32: 1 NaN, 2 +inf, 4 -inf is born; cause bits above: 8 a
    zero operand, 16 a sentinel changed its sign."""
    v = as_float(x)
    infinite = flags & (_ANY_INFINITE | _SECOND)
    plus = (infinite == 0) | (infinite == _MINUS)
    minus = (infinite == 0) | (infinite == _PLUS)
    code = tl.where((v == INF) & plus, 2, 0) | tl.where((v == -INF) & minus, 4, 0)
    code = tl.where(v != v, 1, code)
    code = tl.where((flags & _NAN) != 0, 0, code)
    cause = tl.where((flags & _ZERO) != 0, 8, 0) | tl.where(infinite != 0, 16, 0)
    return code | cause


@triton.jit
def flat(x):
    """x as one row, in any order."""
    return tl.reshape(x, [x.numel])


@triton.jit
def _merge(c0, p0, n0, i0, c1, p1, n1, i1):
    return c0 + c1, p0 + p1, tl.minimum(n0, n1), tl.minimum(i0, i1)


@triton.jit
def place_of(lane, iteration, LANE_BITS: tl.constexpr):
    """A place within a program (records.layout, Note [Check record]), int64. lane: with the cause
    bits below."""
    limit = (1 << (33 - LANE_BITS)) - 1
    return (tl.minimum(iteration, limit) << (LANE_BITS + 2)) | lane.to(tl.int64)


@triton.jit
def lower(at, word: tl.constexpr, place, program):
    """Merge a place into a word of a check record."""
    key = -1 - ((tl.minimum(program, (1 << 28) - 1) << 35) | place)
    tl.atomic_max(
        at.to(tl.pointer_type(tl.uint64), bitcast=True) + word,
        key.to(tl.uint64, bitcast=True),
        sem="relaxed",
    )


@triton.jit
def put_births(code, needed, valid, iteration, checks, program, index, NEEDED: tl.constexpr,
               VALID: tl.constexpr, LANE_BITS: tl.constexpr):  # fmt: skip
    """Count births into check `index`. NEEDED, VALID: whether these masks are given; else every
    lane is. iteration, program: int64."""
    kind = code & 7
    if NEEDED:
        kind = tl.where(needed, kind, 0)
    padding = tl.zeros(kind.shape, tl.int32)
    if VALID:
        padding = ((kind != 0) & (valid == 0)).to(tl.int32)
    wide = kind.to(tl.int64)
    counts = (wide & 1) | ((wide & 2) << 20) | ((wide & 4) << 40)  # fields of 21 bits
    place = (lane_index(kind) << 2) | (code >> 3)
    first_nan = tl.where((kind & 1) != 0, place, NO_LANE)
    first_inf = tl.where((kind & 6) != 0, place, NO_LANE)
    counts, padding, first_nan, first_inf = tl.reduce(
        (flat(counts), flat(padding), flat(first_nan), flat(first_inf)), 0, _merge
    )
    if counts != 0:
        at = (checks + index * 12).to(tl.pointer_type(tl.int64))
        nan = counts & 0x1FFFFF
        posinf = (counts >> 21) & 0x1FFFFF
        neginf = counts >> 42
        if nan != 0:
            tl.atomic_add(at, nan, sem="relaxed")
            lower(at, 4, place_of(first_nan, iteration, LANE_BITS), program)
        if (posinf | neginf) != 0:
            tl.atomic_add(at + 1, posinf, sem="relaxed")
            tl.atomic_add(at + 2, neginf, sem="relaxed")
            lower(at, 5, place_of(first_inf, iteration, LANE_BITS), program)
        if padding != 0:
            tl.atomic_add(at + 3, padding.to(tl.int64), sem="relaxed")
