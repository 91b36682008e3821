"""The record: what one (slot, op) pair leaves on the device; csrc/record.h says the same in C++.

Note [Record layout]
A record is 24 little-endian 32-bit words (96 bytes); 64-bit quantities are two words, low word
first. An all-zero record is the empty record and the identity of merging, so zeroed memory needs
no further initialisation:

* counters add up;
* `min_key` and `max_key` merge by unsigned maximum. A key is the value's total order as an unsigned
  64-bit number, complemented for `min_key` (see `order_key`). Floats of every width are ordered as
  float64, integers as int64 (uint64 as itself). Keys only mean something if a finite live lane
  exists;
* `sum` and `sumsq` are float64 over finite live lanes; the true sum of squares is
  `sumsq * 2**(2 * scale)`. `scale` differs from 0 only for fp64 values;
* `first` merges by unsigned maximum: 0 means none, else the complement of the packed place, so
  that the smallest place (linear program id, iteration, lane) wins (see `pack_first`).

Note [Folded record]
A fold leaves one such record per (launch, op); the 64 binade counters of a histogram are a block
of 64 int64 of their own.

Note [Check record]
What a check finds (instrument.checks) is rare, so there is one record per (launch, check) that all
programs write with atomics: 6 int64, all zero if nothing was found. Three counters of lanes (births
of NaN, of +inf, of -inf), the lanes among them that are needed but not valid, and two places that
merge like `first`: of the earliest lane of the first counter, and of the earliest of the other two.
Such a place holds two more bits below the lane, the cause (`unpack_place`): 1, an operand that
matters is zero (the divisor, the argument of a logarithm, a factor); 2, an operand is infinite,
which for a born infinity means that a sentinel changed its sign.

Silent checks (instrument.silent) use the first place only, and these counters:

| kind | first | second | third |
|---|---|---|---|
| undefined | needed lanes that are undefined | | |
| wrap | lanes with a wrong result | lanes with a true result of 2**30 or more | |
| stagnation | additions that change nothing | all additions of something | |
| saturation | saturated lanes | | |
| tf32 | operand lanes that lose bits | of those, rounded towards zero | away from zero |

The fourth counter of a tf32 check is the number of finite operand lanes; other kinds leave it 0.
The last word of a wrap check is a number, the largest magnitude of a true result, from 2**30 on.

Note [Bounds]
Accesses have two check records more, if addresses are recorded. The first one is zero if all lanes
were inside of their tensor; else it holds lanes outside, executions with such lanes, the smallest
(complemented) and the largest offset among them as keys, the first place as above, and the offset
of the first lane there: 28 bits that order programs, then 36 bits of the offset in bytes plus
2**35, all zero or all one where it does not fit (`unpack_offset`).

Note [Sample]
The second one tells about the first and the last program: flags, the offset of the first active
lane of the first program's first execution, the offset of the last active lane of the last
program's last execution, and three strides in bytes, of the last axis, the one before, and the one
before that. Flags: 1, the first is known; 2, the last is known; 4, the lanes that strides were
measured at were active; 8, all active lanes of that execution lie where the strides say.

Note [Watch record]
At level 0 each watched value has one check record: programs that met a NaN there, programs that met
an infinity, and the first place of each, without a lane.
"""

from __future__ import annotations

import numpy as np

RECORD_WORDS = 24
RECORD_BYTES = RECORD_WORDS * 4

RECORD_DTYPE = np.dtype(
    [
        ("executions", "<i8"),  # how often the statement ran, over all programs
        ("live", "<i8"),  # live lanes
        ("nan", "<i8"),
        ("posinf", "<i8"),
        ("neginf", "<i8"),
        ("zero", "<i8"),  # +0 and -0
        ("min_key", "<u8"),
        ("max_key", "<u8"),
        ("sum", "<f8"),
        ("sumsq", "<f8"),
        ("first", "<u8"),  # place of the first non-finite live lane
        ("scale", "<i4"),
        ("flags", "<i4"),  # reserved, 0
    ]
)

# word offsets inside a record
EXECUTIONS, LIVE, NAN, POSINF, NEGINF, ZERO = 0, 2, 4, 6, 8, 10
MIN_KEY, MAX_KEY, SUM, SUMSQ, FIRST, SCALE, FLAGS = 12, 14, 16, 18, 20, 22, 23

# Histogram: 64 signed binades. Bucket b in 0..31 holds negative values, 32..63 positive ones.
# Magnitude index m = clamp(floor(log2(|x|)), -24, 7) + 24; bucket = 31 - m (negative), 32 + m
# (positive). So buckets ascend with the value. Zeros are counted in `zero`, not in a bucket.
HIST_BUCKETS = 64
HIST_SHARDS = 32  # on the device, counters of one value are spread over this many copies
HIST_MIN_EXP = -24
HIST_MAX_EXP = 7

CHECK_WORDS = 12
CHECK_COUNTERS = 4  # nan, posinf, neginf, padding; then the places first_nan, first_inf
CAUSE_BITS = 2

PROGRAM_BITS = 28  # a packed place: program (28 bits) | iteration | lane (lane_bits)
PLACE_BITS = 63


def lane_bits(numel: int) -> int:
    """Bits that a row-major lane index of a tensor with `numel` lanes needs."""
    return max(numel - 1, 0).bit_length()


def iteration_bits(numel: int) -> int:
    """Bits left for the iteration; larger iterations saturate and mean unknown."""
    return PLACE_BITS - PROGRAM_BITS - lane_bits(numel)


def pack_first(program: int, iteration: int, lane: int, numel: int) -> int:
    """The `first` word pair of a place; larger means earlier, 0 is reserved for none."""
    bits, limit = lane_bits(numel), (1 << iteration_bits(numel)) - 1
    place = (program << (PLACE_BITS - PROGRAM_BITS)) | (min(iteration, limit) << bits) | lane
    return (1 << 64) - 1 - place


def unpack_first(first: int, numel: int) -> tuple[int, int | None, int] | None:
    """(linear program id, iteration or None if saturated, row-major lane); None for no place."""
    if first == 0:
        return None
    place = (1 << 64) - 1 - int(first)
    bits, limit = lane_bits(numel), (1 << iteration_bits(numel)) - 1
    iteration = (place >> bits) & limit
    return (
        place >> (PLACE_BITS - PROGRAM_BITS),
        None if iteration == limit else iteration,
        place & ((1 << bits) - 1),
    )


def unpack_place(place: int, numel: int) -> tuple[int, int | None, int, int] | None:
    """(linear program id, iteration or None if saturated, row-major lane, cause) of a place of a
    check; None for no place."""
    found = unpack_first(place, numel << CAUSE_BITS)
    if found is None:
        return None
    program, iteration, lane = found
    return program, iteration, lane >> CAUSE_BITS, lane & ((1 << CAUSE_BITS) - 1)


OFFSET_BITS = 36
SAMPLE_FIRST, SAMPLE_LAST, SAMPLE_STRIDES, SAMPLE_EVEN = 1, 2, 4, 8


def unpack_offset(word: int) -> int | None:
    """The offset in bytes of Note [Bounds]; None if it did not fit."""
    biased = int(word) & ((1 << OFFSET_BITS) - 1)
    if biased in (0, (1 << OFFSET_BITS) - 1):
        return None
    return biased - (1 << (OFFSET_BITS - 1))


def is_float(dtype: str) -> bool:
    """Whether a Triton dtype name ("fp32", "bf16", "fp8e4nv", "uint8", "int1") is a float."""
    return dtype.startswith(("fp", "bf"))


def order_key(value: float | int, dtype: str) -> int:
    """`value` as an unsigned 64-bit number in the order of its type (`max_key`)."""
    if is_float(dtype):
        bits = int(np.array(float(value), "<f8").view("<u8"))
        return bits ^ ((1 << 64) - 1) if bits >> 63 else bits | (1 << 63)
    value = int(value)
    return value if dtype == "uint64" else value + (1 << 63)


def value_of_key(key: int, dtype: str) -> float | int:
    """Inverse of `order_key`."""
    key = int(key)
    if is_float(dtype):
        bits = key & ((1 << 63) - 1) if key >> 63 else key ^ ((1 << 64) - 1)
        return float(np.array(bits, "<u8").view("<f8"))
    return key if dtype == "uint64" else key - (1 << 63)


def min_of_key(key: int, dtype: str) -> float | int:
    """The smallest value behind a `min_key` (which is complemented)."""
    return value_of_key((1 << 64) - 1 - int(key), dtype)
