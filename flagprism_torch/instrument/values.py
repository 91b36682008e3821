"""Value probes: plain Triton functions that turn a tile into one record.

They are generated into the kernel's module and inlined (`instrument.codegen`). Every probe works in
two steps, so that a loop pays no cross-lane reduction per iteration:

1. `*_partials`: elementwise work, then a reduction along the lanes one thread holds, [T] partials;
2. `*_total`: one reduction over the T threads, then `write`.

Inside an `scf.for` the [T] partials are loop-carried (`*_accumulate`), and step 2 runs once after
the outermost loop. T is a power of two (`backends.profile.Profile.threads`).

Note [Lane order]
`reshape` below is generated with `allow_reorder`, so that a thread keeps its own elements. All
quantities are computed before that reshape; nothing after it may depend on the lane order.
Triton gives the result a layout with one row per thread only if a `reduce` along axis 1 uses it
directly (OptimizeReshapeLayoutPattern in its OptimizeThreadLocality.cpp); otherwise rows may be
spread over lanes, and each iteration of a loop pays shuffles and shared memory.

Note [Sums]
Squares of float32 values overflow above 1.8e19 and vanish below 1e-19. So where the largest finite
magnitude of an execution leaves a middle range, a rare branch adds again, with the values scaled by
the power of two that brings the largest near 1. Sums within a program are float32 (a loop carries
them per thread, so registers count), across threads of a loop nest and across programs float64.

Note [Non-finite lanes]
They are rare, so their kinds, the first place and the births (instrument.births) are only computed
in a branch that a program takes if an execution has some among the lanes that are needed; in a loop
that branch merges into memory. Records are zero when a launch starts (the fold leaves them so),
which also makes a statement that never runs an empty record.

A record is a vector of 12 int64 (records.layout): executions, live, nan, posinf, neginf, zero,
min_key, max_key, sum, sumsq, first, scale.
"""

from __future__ import annotations

import triton
import triton.language as tl

STORE, MERGE, ATOMIC = 0, 1, 2  # how `write` treats the record in memory

NO_LANE = tl.constexpr(0x7FFFFFFF)
INF = tl.constexpr(float("inf"))
SIGN = tl.constexpr(-0x8000000000000000)


@triton.jit
def slot(records, OFFSET: tl.constexpr, OPS: tl.constexpr, SLOTS: tl.constexpr):
    """(pointer to this program's slot, linear program id). SLOTS > 0: programs share that many.
    OFFSET: words before the first slot (histograms)."""
    program = tl.program_id(0).to(tl.int64) + tl.num_programs(0).to(tl.int64) * (
        tl.program_id(1).to(tl.int64)
        + tl.num_programs(1).to(tl.int64) * tl.program_id(2).to(tl.int64)
    )
    index = program
    if SLOTS > 0:
        index = program % SLOTS
    return records + OFFSET + index * (OPS * 24), program


@triton.jit
def _count(record, word: tl.constexpr, value, MODE: tl.constexpr):
    """Add an int64 counter to a word (as int64) of a record."""
    if MODE == 0:
        tl.store(record + word, value)
    elif MODE == 1:
        tl.store(record + word, tl.load(record + word, volatile=True) + value)
    else:
        tl.atomic_add(record + word, value, sem="relaxed")


@triton.jit
def _raise(record, word: tl.constexpr, value, MODE: tl.constexpr):
    """Raise a word to an unsigned key."""
    at = record.to(tl.pointer_type(tl.uint64), bitcast=True) + word
    key = value.to(tl.uint64, bitcast=True)
    if MODE == 0:
        tl.store(at, key)
    elif MODE == 1:
        tl.store(at, tl.maximum(tl.load(at, volatile=True), key))
    else:
        tl.atomic_max(at, key, sem="relaxed")


@triton.jit
def _sum(record, word: tl.constexpr, value, MODE: tl.constexpr):
    """Add a float64 to a word."""
    _count(record.to(tl.pointer_type(tl.float64), bitcast=True), word, value, MODE)


@triton.jit
def write(base, op, MODE: tl.constexpr, executions, live, zero, low_key, high_key, total, squares):
    """Put everything of a record but its non-finite part (`write_bad`): counters int64, keys int64
    bit patterns, sums float64. Scalar accesses: Triton's coalescing pass costs compile time in
    proportion to tensor accesses times operations."""
    record = (base + op * 24).to(tl.pointer_type(tl.int64))
    _count(record, 0, executions, MODE)
    _count(record, 1, live, MODE)
    _count(record, 5, zero, MODE)
    _raise(record, 6, low_key, MODE)
    _raise(record, 7, high_key, MODE)
    _sum(record, 8, total, MODE)
    _sum(record, 9, squares, MODE)


@triton.jit
def write_bad(base, op, MODE: tl.constexpr, nan, posinf, neginf, place, program):
    """Put the non-finite part: counters int64; place: iteration << LANE_BITS | lane of the first,
    int64 below 2**35."""
    record = (base + op * 24).to(tl.pointer_type(tl.int64))
    _count(record, 2, nan, MODE)
    _count(record, 3, posinf, MODE)
    _count(record, 4, neginf, MODE)
    _raise(record, 10, -1 - ((tl.minimum(program, (1 << 28) - 1) << 35) | place), MODE)


@triton.jit
def executed(base, op):
    """How often this program ran the statement so far, from the record in memory."""
    return tl.load((base + op * 24).to(tl.pointer_type(tl.int64)), volatile=True)


@triton.jit
def float_key(value):
    """Total order of a finite float as an int64 bit pattern (records.layout.order_key)."""
    bits = value.to(tl.float64).to(tl.int64, bitcast=True)
    return bits ^ ((bits >> 63) | SIGN)


@triton.jit
def _add(a, b):
    return a + b


@triton.jit
def _low(a, b):
    return tl.minimum(a, b)


@triton.jit
def _high(a, b):
    return tl.maximum(a, b)


@triton.jit
def _or(a, b):
    return a | b


@triton.jit
def lane_index(x):
    """Row-major lane index, int32, shape of x."""
    if len(x.shape) == 1:
        return tl.arange(0, x.numel)
    elif len(x.shape) == 2:  # noqa: RET505 (in Triton a branch not taken needs its else)
        # sums of ranges need no layout conversion, a reshape may
        rows = tl.expand_dims(tl.arange(0, x.shape[0]) * x.shape[1], 1)
        return tl.broadcast_to(rows + tl.expand_dims(tl.arange(0, x.shape[1]), 0), x.shape)
    else:
        return tl.reshape(tl.arange(0, x.numel), x.shape)


@triton.jit
def per_thread(x, T: tl.constexpr):
    """x as [T, K] in any order (Note [Lane order])."""
    return tl.reshape(x, [T, x.numel // T])


@triton.jit
def mask_partials(mask, T: tl.constexpr):
    """Live lanes per thread, int32 [T]."""
    return tl.reduce(per_thread(mask.to(tl.int32), T), 1, _add)


@triton.jit
def mask_accumulate(mask, live, T: tl.constexpr):
    return live + mask_partials(mask, T)


@triton.jit
def mask_total(live):
    """Live lanes, int64."""
    return tl.reduce(live.to(tl.int64), 0, _add)


@triton.jit
def mask_count(mask, T: tl.constexpr):
    """Live lanes of one execution, int64."""
    return tl.reduce(mask_partials(mask, T), 0, _add).to(tl.int64)


@triton.jit
def as_float(x):
    """x as float32, or as it is if it is float64."""
    if x.dtype == tl.float64:
        return x
    else:  # noqa: RET505 (in Triton a branch not taken needs its else)
        return x.to(tl.float32)


@triton.jit
def float_partials(x, mask, watched, others, MASKED: tl.constexpr, WATCHED: tl.constexpr,
                   OTHERS: tl.constexpr, T: tl.constexpr, HALF: tl.constexpr):  # fmt: skip
    """Per-thread partials of one execution, each [T]: counts (int: suspicious lanes in the low HALF
    bits, zeros above), and over finite live lanes low, high (NaN for none), total, squares (fp32,
    or fp64 for fp64 values).

    Suspicious (Note [Non-finite lanes]) are non-finite lanes among the live ones, or among
    `watched` if WATCHED is 1, or all if it is 2; and those where `others` (`suspects`) says so.
    """
    v = as_float(x)
    finite = tl.abs(v) < INF
    one = tl.full([], 1, tl.int32 if HALF == 16 else tl.int64)
    bad = finite == 0
    if OTHERS:
        bad = bad | (others != 0)
    if WATCHED == 1:
        bad = bad & watched
    if MASKED:
        if WATCHED == 0:
            bad = bad & mask
        finite = finite & mask
    counts = tl.where(bad, one, one - 1) | tl.where(finite & (v == 0), one << HALF, one - 1)
    known = per_thread(tl.where(finite, v, float("nan")), T)
    counts, low, high = tl.reduce((per_thread(counts, T), known, known), 1, _merge_lanes)
    value = tl.where(known == known, known, 0)
    total, squares = tl.reduce((value, value * value), 1, _merge_sums)
    return counts, low, high, total, squares


@triton.jit
def suspects(others, x):
    """`others` (float32, shape of x, 0 where nothing is suspicious), not 0 also where x is NaN or
    infinite."""
    v = x.to(tl.float32)
    return others + (v - v)


@triton.jit
def is_suspicious(x, others, watched, WATCHED: tl.constexpr, OTHERS: tl.constexpr, T: tl.constexpr):
    """Whether a watched lane of x is non-finite or suspicious in `others`, i1."""
    bad = (tl.abs(as_float(x)) < INF) == 0
    if OTHERS:
        bad = bad | (others != 0)
    if WATCHED == 1:
        bad = bad & watched
    return tl.reduce(tl.reduce(per_thread(bad.to(tl.int32), T), 1, _or), 0, _or) != 0


@triton.jit
def is_odd(x, low, high):
    """Whether sums of squares of values between low and high need Note [Sums]."""
    largest = tl.maximum(tl.maximum(-low, high), 0.0)
    odd = (largest > 8.0e12) | ((largest < 9.0e-13) & (largest > 0))
    if x.dtype == tl.float64 or (x.dtype != tl.float32 and x.dtype != tl.bfloat16):
        odd = odd & False  # fp64 sums in fp64; fp16 and fp8 never leave the range
    return odd


@triton.jit
def scaled_sums(x, mask, MASKED: tl.constexpr, T: tl.constexpr):
    """(total, squares) of one execution as fp64 scalars (Note [Sums])."""
    v = as_float(x)
    finite = tl.abs(v) < INF
    if MASKED:
        finite = finite & mask
    value = tl.where(finite, v, 0)
    largest = tl.reduce(tl.reduce(per_thread(tl.abs(value), T), 1, _high), 0, _high)
    exponent = tl.minimum(largest.to(tl.float32).to(tl.int32, bitcast=True) >> 23, 253)
    scale = ((254 - exponent) << 23).to(tl.float32, bitcast=True)
    back = ((exponent.to(tl.int64) + 896) << 52).to(tl.float64, bitcast=True)
    scaled = per_thread(value * scale, T)
    total = tl.reduce(tl.reduce(scaled, 1, _add), 0, _add).to(tl.float64) * back
    squares = tl.reduce(tl.reduce(scaled * scaled, 1, _add), 0, _add).to(tl.float64) * back * back
    return total, squares


@triton.jit
def bad_partials(x, mask, MASKED: tl.constexpr, T: tl.constexpr):
    """Per-thread (nan, posinf, neginf, first lane or NO_LANE) of one execution, each int32 [T]."""
    v = as_float(x)
    K: tl.constexpr = x.numel // T
    kind = tl.where(v == INF, 1 << 10, tl.where(v == -INF, 1 << 20, 0))
    kind = tl.where(v != v, 1, kind)
    if MASKED:
        kind = tl.where(mask, kind, 0)
    lane = per_thread(tl.where(kind > 0, lane_index(x), NO_LANE), T)
    if K < 1024:
        kinds, lane = tl.reduce((per_thread(kind, T), lane), 1, _merge_kinds)
        nan = kinds & 1023
        posinf = (kinds >> 10) & 1023
        neginf = kinds >> 20
    else:
        nan = tl.reduce(per_thread(kind & 1, T), 1, _add)
        posinf = tl.reduce(per_thread((kind >> 10) & 1, T), 1, _add)
        neginf = tl.reduce(per_thread(kind >> 20, T), 1, _add)
        lane = tl.reduce(lane, 1, _low)
    return nan, posinf, neginf, lane


@triton.jit
def _merge_lanes(c0, l0, h0, c1, l1, h1):
    return c0 + c1, tl.minimum(l0, l1), tl.maximum(h0, h1)


@triton.jit
def _merge_sums(t0, s0, t1, s1):
    return t0 + t1, s0 + s1


@triton.jit
def _merge_kinds(k0, f0, k1, f1):
    return k0 + k1, tl.minimum(f0, f1)


@triton.jit
def _merge_bad(n0, p0, m0, f0, n1, p1, m1, f1):
    return n0 + n1, p0 + p1, m0 + m1, tl.minimum(f0, f1)


@triton.jit
def _merge_partials(z0, l0, h0, t0, s0, z1, l1, h1, t1, s1):
    return z0 + z1, tl.minimum(l0, l1), tl.maximum(h0, h1), t0 + t1, s0 + s1


@triton.jit
def _put_float(base, op, MODE: tl.constexpr, executions, live, zero, low, high, total, squares):
    low_key = tl.where(low == low, ~float_key(low), 0)
    high_key = tl.where(low == low, float_key(high), 0)
    write(base, op, MODE, executions, live, zero, low_key, high_key, total, squares)


@triton.jit
def record_bad(x, mask, iteration, base, program, op, MODE: tl.constexpr, MASKED: tl.constexpr,
               T: tl.constexpr, LANE_BITS: tl.constexpr):  # fmt: skip
    """The non-finite part of one execution's record; nothing if it has no such live lane."""
    bad = bad_partials(x, mask, MASKED, T)
    nan, posinf, neginf, lane = tl.reduce(bad, 0, _merge_bad)
    if lane != NO_LANE:
        limit = (1 << (35 - LANE_BITS)) - 1
        place = (tl.minimum(iteration, limit) << LANE_BITS) | lane.to(tl.int64)
        write_bad(base, op, MODE, nan.to(tl.int64), posinf.to(tl.int64), neginf.to(tl.int64), place,
                  program)  # fmt: skip


@triton.jit
def float_record(x, mask, watched, others, live, iteration, base, program, op, MODE: tl.constexpr,
                 MASKED: tl.constexpr, WATCHED: tl.constexpr, OTHERS: tl.constexpr,
                 T: tl.constexpr, LANE_BITS: tl.constexpr):  # fmt: skip
    """Record of one execution; returns whether a lane was suspicious (`float_partials`), i1.
    live: int64 live lanes; iteration: how often it ran before."""
    HALF: tl.constexpr = 16 if x.numel < 32768 else 32
    partials = float_partials(x, mask, watched, others, MASKED, WATCHED, OTHERS, T, HALF)
    counts, low, high, total32, squares32 = tl.reduce(partials, 0, _merge_partials)
    total = total32.to(tl.float64)
    squares = squares32.to(tl.float64)
    if is_odd(x, low, high):
        total, squares = scaled_sums(x, mask, MASKED, T)
    _put_float(base, op, MODE, tl.full([], 1, tl.int64), live, (counts >> HALF).to(tl.int64), low,
               high, total, squares)  # fmt: skip
    suspicious = (counts & ((1 << HALF) - 1)) != 0
    if suspicious:  # Note [Non-finite lanes]
        record_bad(x, mask, iteration, base, program, op, MODE, MASKED, T, LANE_BITS)
    return suspicious


@triton.jit
def float_accumulate(x, mask, watched, others, iteration, base, program, op, zero, low, high, total,
                     squares, MODE: tl.constexpr, MASKED: tl.constexpr, WATCHED: tl.constexpr,
                     OTHERS: tl.constexpr, T: tl.constexpr, LANE_BITS: tl.constexpr):  # fmt: skip
    """Loop-carried partials after one more execution, all [T], and whether a lane was suspicious,
    i1. What is rare goes to memory."""
    HALF: tl.constexpr = 16 if x.numel < 32768 else 32
    counts, lo, hi, t, s = float_partials(x, mask, watched, others, MASKED, WATCHED, OTHERS, T,
                                          HALF)  # fmt: skip
    bad = (counts & ((1 << HALF) - 1)) != 0
    odd = is_odd(x, lo, hi)
    flags = tl.reduce(bad.to(tl.int32) | (odd.to(tl.int32) << 1), 0, _or)
    if (flags & 1) != 0:
        record_bad(x, mask, iteration, base, program, op, MODE, MASKED, T, LANE_BITS)
    if (flags & 2) != 0:
        t64, s64 = scaled_sums(x, mask, MASKED, T)
        record = (base + op * 24).to(tl.pointer_type(tl.int64))
        _sum(record, 8, t64, MODE)
        _sum(record, 9, s64, MODE)
    keep = (flags & 2) == 0
    return (zero + (counts >> HALF).to(tl.int32), tl.minimum(low, lo), tl.maximum(high, hi),
            total + tl.where(keep, t, 0), squares + tl.where(keep, s, 0),
            (flags & 1) != 0)  # fmt: skip


@triton.jit
def float_total(zero, low, high, total, squares, live, executions, base, op, MODE: tl.constexpr):
    """Record of loop-carried partials."""
    zero, low, high, total, squares = tl.reduce(
        (zero.to(tl.int64), low, high, total.to(tl.float64), squares.to(tl.float64)),
        0,
        _merge_partials,
    )
    if MODE == 0:  # rare sums may be in memory already
        record = (base + op * 24).to(tl.pointer_type(tl.float64))
        total += tl.load(record + 8, volatile=True)
        squares += tl.load(record + 9, volatile=True)
    _put_float(base, op, MODE, executions, live, zero, low, high, total, squares)


@triton.jit
def int_lanes(x, mask, MASKED: tl.constexpr):
    """(zero int32, ordered value with neutral elements for low and for high, float64 value)."""
    if x.dtype == tl.uint64:  # order of uint64 as int64
        ordered = x.to(tl.int64, bitcast=True) ^ SIGN
    elif x.dtype == tl.int64:
        ordered = x
    elif x.dtype == tl.uint32:
        ordered = x.to(tl.int64)
    else:
        ordered = x.to(tl.int32)
    zero = (x == 0).to(tl.int32)
    if ordered.dtype == tl.int64:
        top = tl.full(ordered.shape, 0x7FFFFFFFFFFFFFFF, tl.int64)
    else:
        top = tl.full(ordered.shape, 0x7FFFFFFF, tl.int32)
    wide = x.to(tl.float64)
    low = ordered
    high = ordered
    if MASKED:
        zero = tl.where(mask, zero, 0)
        low = tl.where(mask, ordered, top)
        high = tl.where(mask, ordered, -1 - top)
        wide = tl.where(mask, wide, 0.0)
    return zero, low, high, wide


@triton.jit
def int_partials(x, mask, MASKED: tl.constexpr, T: tl.constexpr):
    """Per-thread partials, each [T]: zero int32, low, high int32 or int64, total, squares fp64."""
    zero, low, high, wide = int_lanes(x, mask, MASKED)
    wide = per_thread(wide, T)
    return tl.reduce(
        (per_thread(zero, T), per_thread(low, T), per_thread(high, T), wide, wide * wide),
        1,
        _merge_partials,
    )


@triton.jit
def _put_int(base, op, MODE: tl.constexpr, executions, live, zero, low, high, total, squares):
    low_key = tl.where(live > 0, ~(low.to(tl.int64) ^ SIGN), 0)
    high_key = tl.where(live > 0, high.to(tl.int64) ^ SIGN, 0)
    write(base, op, MODE, executions, live, zero.to(tl.int64), low_key, high_key, total, squares)


@triton.jit
def int_record(x, mask, live, base, op, MODE: tl.constexpr, MASKED: tl.constexpr, T: tl.constexpr):
    """Record of one execution of an integer statement."""
    partials = int_partials(x, mask, MASKED, T)
    zero, low, high, total, squares = tl.reduce(partials, 0, _merge_partials)
    _put_int(base, op, MODE, tl.full([], 1, tl.int64), live, zero, low, high, total, squares)


@triton.jit
def int_accumulate(x, mask, zero, low, high, total, squares, MASKED: tl.constexpr, T: tl.constexpr):
    z, lo, hi, t, s = int_partials(x, mask, MASKED, T)
    return zero + z, tl.minimum(low, lo), tl.maximum(high, hi), total + t, squares + s


@triton.jit
def int_total(zero, low, high, total, squares, live, executions, base, op, MODE: tl.constexpr):
    zero, low, high, total, squares = tl.reduce(
        (zero.to(tl.int64), low, high, total, squares), 0, _merge_partials
    )
    _put_int(base, op, MODE, executions, live, zero, low, high, total, squares)


@triton.jit
def mask_any(mask, AXIS: tl.constexpr):
    """Where any lane along AXIS is valid, i1."""
    return tl.reduce(mask.to(tl.int32), AXIS, _high) != 0
