"""What would overflow: a row's values against the largest of narrower types."""

from __future__ import annotations

import math

from flagprism_torch.records.model import Row

# largest finite value, by Triton's name of the type
LARGEST = {
    "fp16": 65504.0,
    "bf16": float.fromhex("0x1.fep127"),
    "fp8e4nv": 448.0,
    "fp8e5": 57344.0,
}
OFFSET_LIMIT = 1 << 31  # an int32 offset wraps from here on


def headroom(row: Row) -> dict[str, float] | None:
    """Type -> its largest finite value divided by the largest magnitude of the row: below 1, values
    would overflow in that type. math.inf where all finite live lanes are 0; None without any."""
    if row.min is None or row.max is None:
        return None
    size = max(abs(row.min), abs(row.max))
    return {name: limit / size if size else math.inf for name, limit in LARGEST.items()}


def lanes_beyond(row: Row, dtype: str) -> int | None:
    """Finite live lanes whose magnitude is beyond the largest finite value of `dtype`; None where
    extremes and histogram do not tell.

    Raises:
        KeyError: for a type that is not in LARGEST.
    """
    limit = LARGEST[dtype]
    if row.min is None or row.max is None:
        return 0
    if min(abs(row.min), abs(row.max)) > limit and (row.min < 0) == (row.max < 0):
        return row.live - row.nonfinite
    total = 0
    for beyond, bucket in ((row.max > limit, -1), (row.min < -limit, 0)):
        if not beyond:
            continue
        # the outermost bucket starts at 2**7, so that it holds what is beyond, and more
        if row.histogram is None or row.histogram[bucket] != 1:
            return None
        total += 1
    return total


def wraps_at(largest: int) -> float:
    """How many times larger an int32 offset of this largest magnitude may become before it wraps;
    1 or less where it wraps."""
    return OFFSET_LIMIT / largest if largest else math.inf
