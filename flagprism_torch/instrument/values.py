"""Value probes: plain Triton functions that turn a tile into one record.

They are generated into the kernel's module and inlined (`instrument.codegen`). Every probe works in
two steps, so that a loop pays no cross-lane reduction per iteration:

1. `*_partials`: elementwise work, then a reduction along the lanes one thread holds, [T] partials;
2. `*_total`: one reduction over the T threads, then `write`.

Inside an `scf.for` the [T] partials are loop-carried (`*_accumulate`) and step 2 runs once after the
outermost loop. T is a power of two (`backends.profile.Profile.threads`).

Note [Lane order]
`reshape` below is generated with `allow_reorder`, so that a thread keeps its own elements. All
quantities are computed before that reshape; nothing after it may depend on the lane order.
Triton gives the result a layout with one row per thread only if a `reduce` along axis 1 uses it
directly (OptimizeReshapeLayoutPattern in its OptimizeThreadLocality.cpp); otherwise rows may be
spread over lanes, and each iteration of a loop pays shuffles and shared memory.

Note [Sums]
Within a thread, finite float32 values are scaled by the power of two that brings the largest of them
near 1 before they are squared and added, then the partials go to float64. So neither sum overflows
or loses small values, whatever the magnitude.

A record is a vector of 12 int64 (records.layout): executions, live, nan, posinf, neginf, zero,
min_key, max_key, sum, sumsq, first, scale.
"""

from __future__ import annotations

import triton
import triton.language as tl

STORE, MERGE, ATOMIC = 0, 1, 2  # how `write` treats the record in memory

NO_PLACE = tl.constexpr(0x7FFFFFFFFFFFFFFF)
NO_LANE = tl.constexpr(0x7FFFFFFF)
INF = tl.constexpr(float("inf"))
SIGN = tl.constexpr(-0x8000000000000000)


@triton.jit
def slot(records, OPS: tl.constexpr, SLOTS: tl.constexpr):
    """(pointer to this program's slot, linear program id). SLOTS > 0: programs share that many."""
    program = tl.program_id(0).to(tl.int64) + tl.num_programs(0).to(tl.int64) * (
        tl.program_id(1).to(tl.int64)
        + tl.num_programs(1).to(tl.int64) * tl.program_id(2).to(tl.int64)
    )
    index = program
    if SLOTS > 0:
        index = program % SLOTS
    return records + index * (OPS * 24), program


@triton.jit
def clear(base, op):
    """Empty record, for a statement that may not run."""
    column = tl.arange(0, 16)
    record = (base + op * 24).to(tl.pointer_type(tl.int64))
    tl.store(record + column, tl.zeros([16], tl.int64), mask=column < 12)


@triton.jit
def write(base, op, MODE: tl.constexpr, executions, live, nan, posinf, neginf, zero,
          low_key, high_key, total, squares, first):  # fmt: skip
    """Put one record: all counters int64, keys and `first` int64 bit patterns, sums float64."""
    column = tl.arange(0, 16)
    value = tl.where(column == 0, executions, 0)
    value = tl.where(column == 1, live, value)
    value = tl.where(column == 2, nan, value)
    value = tl.where(column == 3, posinf, value)
    value = tl.where(column == 4, neginf, value)
    value = tl.where(column == 5, zero, value)
    value = tl.where(column == 6, low_key, value)
    value = tl.where(column == 7, high_key, value)
    value = tl.where(column == 8, total.to(tl.int64, bitcast=True), value)
    value = tl.where(column == 9, squares.to(tl.int64, bitcast=True), value)
    value = tl.where(column == 10, first, value)
    counter = column < 6
    real = (column == 8) | (column == 9)
    key = (column == 6) | (column == 7) | (column == 10)
    record = (base + op * 24).to(tl.pointer_type(tl.int64)) + column
    if MODE == 0:
        tl.store(record, value, mask=column < 12)
    elif MODE == 1:
        old = tl.load(record, mask=column < 12, other=0, volatile=True)
        added = old.to(tl.float64, bitcast=True) + value.to(tl.float64, bitcast=True)
        larger = tl.maximum(old.to(tl.uint64, bitcast=True), value.to(tl.uint64, bitcast=True))
        merged = tl.where(counter, old + value, larger.to(tl.int64, bitcast=True))
        merged = tl.where(real, added.to(tl.int64, bitcast=True), merged)
        tl.store(record, merged, mask=column < 12)
    else:
        tl.atomic_add(record, value, mask=counter, sem="relaxed")
        tl.atomic_max(record.to(tl.pointer_type(tl.uint64), bitcast=True),
                      value.to(tl.uint64, bitcast=True), mask=key, sem="relaxed")  # fmt: skip
        tl.atomic_add(record.to(tl.pointer_type(tl.float64), bitcast=True),
                      value.to(tl.float64, bitcast=True), mask=real, sem="relaxed")  # fmt: skip


@triton.jit
def executed(base, op):
    """How often this program ran the statement so far, from the record in memory."""
    return tl.load((base + op * 24).to(tl.pointer_type(tl.int64)), volatile=True)


@triton.jit
def first_key(place, program, LANE_BITS: tl.constexpr):
    """`first` of records.layout from iteration << LANE_BITS | lane (NO_PLACE: none)."""
    packed = (tl.minimum(program, (1 << 28) - 1) << 35) | place
    return tl.where(place == NO_PLACE, 0, -1 - packed)


@triton.jit
def place_of(lane, iteration, LANE_BITS: tl.constexpr):
    """iteration << LANE_BITS | lane, saturating; NO_PLACE where lane is NO_LANE."""
    limit = (1 << (35 - LANE_BITS)) - 1
    packed = (tl.minimum(iteration.to(tl.int64), limit) << LANE_BITS) | lane.to(tl.int64)
    return tl.where(lane == NO_LANE, NO_PLACE, packed)


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
def _larger(a, b):
    return tl.maximum(tl.abs(a), tl.abs(b))


@triton.jit
def lane_index(x):
    """Row-major lane index, int32, shape of x."""
    if len(x.shape) == 1:
        return tl.arange(0, x.numel)
    elif len(x.shape) == 2:  # sums of ranges need no layout conversion, a reshape may
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
    return live + mask_partials(mask, T).to(tl.int64)


@triton.jit
def mask_total(live):
    """Live lanes, int64."""
    return tl.reduce(live.to(tl.int64), 0, _add)


@triton.jit
def mask_count(mask, T: tl.constexpr):
    """Live lanes of one execution, int64."""
    return tl.reduce(mask_partials(mask, T), 0, _add).to(tl.int64)


@triton.jit
def float_lanes(x, mask, MASKED: tl.constexpr):
    """Elementwise part: (packed counts int32, lowest, highest, finite value, bad lane)."""
    if x.dtype == tl.float64:
        v = x
    else:
        v = x.to(tl.float32)
    finite = tl.abs(v) < INF
    counts = tl.where(v != v, 1, tl.where(v == INF, 1 << 8, tl.where(v == -INF, 1 << 16, 0)))
    counts = tl.where(v == 0, 1 << 24, counts)
    bad = finite == 0
    if MASKED:
        counts = tl.where(mask, counts, 0)
        bad = bad & mask
        finite = finite & mask
    lane = tl.where(bad, lane_index(x), NO_LANE)
    return counts, tl.where(finite, v, INF), tl.where(finite, v, -INF), tl.where(finite, v, 0), lane


@triton.jit
def float_partials(x, mask, MASKED: tl.constexpr, T: tl.constexpr):
    """Per-thread partials of one execution, each [T]:
    nan, posinf, neginf, zero (int32), low, high (fp32 or fp64), total, squares (fp64), lane (int32)."""
    counts, low, high, value, lane = float_lanes(x, mask, MASKED)
    K: tl.constexpr = x.numel // T
    if K > 128:  # 8-bit counters would overflow: count each kind on its own
        nan = tl.reduce(per_thread(counts & 1, T), 1, _add)
        posinf = tl.reduce(per_thread((counts >> 8) & 1, T), 1, _add)
        neginf = tl.reduce(per_thread((counts >> 16) & 1, T), 1, _add)
        zero = tl.reduce(per_thread((counts >> 24) & 1, T), 1, _add)
    else:
        packed = tl.reduce(per_thread(counts, T), 1, _add)
        nan = packed & 255
        posinf = (packed >> 8) & 255
        neginf = (packed >> 16) & 255
        zero = (packed >> 24) & 255
    low = tl.reduce(per_thread(low, T), 1, _low)
    high = tl.reduce(per_thread(high, T), 1, _high)
    lane = tl.reduce(per_thread(lane, T), 1, _low)
    value = per_thread(value, T)
    if value.dtype == tl.float64 or K == 1:
        wide = value.to(tl.float64)
        total = tl.reduce(wide, 1, _add)
        squares = tl.reduce(wide * wide, 1, _add)
    else:  # Note [Sums]
        largest = tl.reduce(value, 1, _larger)
        exponent = tl.minimum(largest.to(tl.int32, bitcast=True) >> 23, 253)
        scale = ((254 - exponent) << 23).to(tl.float32, bitcast=True)
        back = ((exponent.to(tl.int64) + 896) << 52).to(tl.float64, bitcast=True)
        scaled = value * tl.expand_dims(scale, 1)
        total = tl.reduce(scaled, 1, _add).to(tl.float64) * back
        squares = tl.reduce(scaled * scaled, 1, _add).to(tl.float64) * back * back
    return nan, posinf, neginf, zero, low, high, total, squares, lane


@triton.jit
def _merge_floats(n0, p0, m0, z0, l0, h0, t0, s0, f0, n1, p1, m1, z1, l1, h1, t1, s1, f1):
    return (n0 + n1, p0 + p1, m0 + m1, z0 + z1, tl.minimum(l0, l1), tl.maximum(h0, h1),
            t0 + t1, s0 + s1, tl.minimum(f0, f1))  # fmt: skip


@triton.jit
def _merge_packed(c0, l0, h0, t0, s0, f0, c1, l1, h1, t1, s1, f1):
    return (c0 + c1, tl.minimum(l0, l1), tl.maximum(h0, h1), t0 + t1, s0 + s1, tl.minimum(f0, f1))


@triton.jit
def _put_float(base, op, MODE: tl.constexpr, executions, live, nan, posinf, neginf,
               zero, low, high, total, squares, place, program, LANE_BITS: tl.constexpr):  # fmt: skip
    some = live - nan - posinf - neginf > 0
    low_key = tl.where(some, ~float_key(low), 0)
    high_key = tl.where(some, float_key(high), 0)
    write(base, op, MODE, executions, live, nan, posinf, neginf, zero, low_key, high_key,
          total, squares, first_key(place, program, LANE_BITS))  # fmt: skip


@triton.jit
def float_record(x, mask, live, iteration, base, program, op, MODE: tl.constexpr,
                 MASKED: tl.constexpr, T: tl.constexpr, LANE_BITS: tl.constexpr):  # fmt: skip
    """Record of one execution. live: int64 live lanes; iteration: how often it ran before."""
    nan, posinf, neginf, zero, low, high, total, squares, lane = float_partials(x, mask, MASKED, T)
    if x.numel <= 32768:
        counts = nan.to(tl.int64) | (posinf.to(tl.int64) << 16)
        counts |= (neginf.to(tl.int64) << 32) | (zero.to(tl.int64) << 48)
        counts, low, high, total, squares, lane = tl.reduce(
            (counts, low, high, total, squares, lane), 0, _merge_packed
        )
        nan64 = counts & 65535
        posinf64 = (counts >> 16) & 65535
        neginf64 = (counts >> 32) & 65535
        zero64 = (counts >> 48) & 65535
    else:
        nan, posinf, neginf, zero, low, high, total, squares, lane = tl.reduce(
            (nan, posinf, neginf, zero, low, high, total, squares, lane), 0, _merge_floats
        )
        nan64 = nan.to(tl.int64)
        posinf64 = posinf.to(tl.int64)
        neginf64 = neginf.to(tl.int64)
        zero64 = zero.to(tl.int64)
    _put_float(base, op, MODE, tl.full([], 1, tl.int64), live, nan64, posinf64, neginf64, zero64,
               low, high, total, squares, place_of(lane, iteration, LANE_BITS), program, LANE_BITS)  # fmt: skip


@triton.jit
def float_accumulate(x, mask, iteration, nan, posinf, neginf, zero, low, high, total, squares, place,
                     MASKED: tl.constexpr, T: tl.constexpr, LANE_BITS: tl.constexpr):  # fmt: skip
    """Loop-carried partials after one more execution; counters int32, place int64, all [T]."""
    n, p, m, z, lo, hi, t, s, lane = float_partials(x, mask, MASKED, T)
    here = place_of(lane, iteration, LANE_BITS)
    return (nan + n, posinf + p, neginf + m, zero + z, tl.minimum(low, lo), tl.maximum(high, hi),
            total + t, squares + s, tl.minimum(place, here))  # fmt: skip


@triton.jit
def float_total(nan, posinf, neginf, zero, low, high, total, squares, place, live, executions, base,
                program, op, MODE: tl.constexpr, LANE_BITS: tl.constexpr):  # fmt: skip
    """Record of loop-carried partials."""
    nan, posinf, neginf, zero, low, high, total, squares, place = tl.reduce(
        (nan.to(tl.int64), posinf.to(tl.int64), neginf.to(tl.int64), zero.to(tl.int64), low, high,
         total, squares, place), 0, _merge_floats)  # fmt: skip
    _put_float(base, op, MODE, executions, live, nan, posinf, neginf, zero, low, high, total,
               squares, place, program, LANE_BITS)  # fmt: skip


@triton.jit
def int_lanes(x, mask, MASKED: tl.constexpr):
    """(is zero int32, ordered signed value with neutral elements for low and high, float64 value)."""
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
    return (
        tl.reduce(per_thread(zero, T), 1, _add),
        tl.reduce(per_thread(low, T), 1, _low),
        tl.reduce(per_thread(high, T), 1, _high),
        tl.reduce(wide, 1, _add),
        tl.reduce(wide * wide, 1, _add),
    )


@triton.jit
def _merge_ints(z0, l0, h0, t0, s0, z1, l1, h1, t1, s1):
    return z0 + z1, tl.minimum(l0, l1), tl.maximum(h0, h1), t0 + t1, s0 + s1


@triton.jit
def _put_int(base, op, MODE: tl.constexpr, executions, live, zero, low, high, total,
             squares):  # fmt: skip
    none = tl.full([], 0, tl.int64)
    low_key = tl.where(live > 0, ~(low.to(tl.int64) ^ SIGN), 0)
    high_key = tl.where(live > 0, high.to(tl.int64) ^ SIGN, 0)
    write(base, op, MODE, executions, live, none, none, none, zero.to(tl.int64), low_key, high_key,
          total, squares, none)  # fmt: skip


@triton.jit
def int_record(x, mask, live, base, op, MODE: tl.constexpr, MASKED: tl.constexpr,
               T: tl.constexpr):  # fmt: skip
    zero, low, high, total, squares = int_partials(x, mask, MASKED, T)
    zero, low, high, total, squares = tl.reduce((zero, low, high, total, squares), 0, _merge_ints)
    _put_int(base, op, MODE, tl.full([], 1, tl.int64), live, zero, low, high, total, squares)


@triton.jit
def int_accumulate(x, mask, zero, low, high, total, squares, MASKED: tl.constexpr, T: tl.constexpr):
    z, lo, hi, t, s = int_partials(x, mask, MASKED, T)
    return zero + z, tl.minimum(low, lo), tl.maximum(high, hi), total + t, squares + s


@triton.jit
def int_total(zero, low, high, total, squares, live, executions, base, op,
              MODE: tl.constexpr):  # fmt: skip
    zero, low, high, total, squares = tl.reduce(
        (zero.to(tl.int64), low, high, total, squares), 0, _merge_ints
    )
    _put_int(base, op, MODE, executions, live, zero, low, high, total, squares)


@triton.jit
def mask_any(mask, AXIS: tl.constexpr):
    """Where any lane along AXIS is valid, i1."""
    return tl.reduce(mask.to(tl.int32), AXIS, _high) != 0
