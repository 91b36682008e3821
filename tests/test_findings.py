"""Merging of what checks found."""

from __future__ import annotations

import itertools

import numpy as np

from flagprism_torch.records.findings import Findings
from flagprism_torch.records.layout import (
    CAUSE_BITS,
    CHECK_COUNTERS,
    PLACE_BITS,
    PROGRAM_BITS,
    lane_bits,
    unpack_place,
)
from flagprism_torch.records.model import CallSite, CheckEntry, Found, Launch, OpTable, Origin

SHAPE = (4, 8)
CHECKS = tuple(
    CheckEntry("birth", "add", "arith.addf", "fp32", shape, "all", "k.py", 1, None, "")
    for shape in (SHAPE, (16,), ())
)
TABLE = OpTable("kernel", "k.py", 1, (), {}, CHECKS)


def packed(program: int, iteration: int, lane: int, cause: int, numel: int) -> int:
    """By the layout's words: the complement of (program | iteration | lane) << 2 | cause."""
    low = PLACE_BITS - PROGRAM_BITS
    place = program << low | iteration << (lane_bits(numel) + CAUSE_BITS)
    return -1 - (place | lane << CAUSE_BITS | cause)


def launch(number: int) -> Launch:
    return Launch(number, 0, CallSite("site", "kernel", 0, Origin()), TABLE, (3, 2, 5))


def test_places_come_back() -> None:
    for program, iteration, lane, cause in itertools.product((0, 7), (0, 9), (0, 31), range(4)):
        word = packed(program, iteration, lane, cause, 32) % 2**64
        assert unpack_place(word, 32) == (program, iteration, lane, cause)
    assert unpack_place(0, 32) is None


def test_launches_add_up_and_the_earliest_place_stays() -> None:
    words = np.zeros((len(CHECKS), CHECK_COUNTERS + 2), np.int64)
    words[0] = [3, 2, 1, 4, packed(7, 2, 9, 1, 32), packed(0, 0, 31, 2, 32)]
    words[2] = [0, 0, 5, 0, 0, packed(29, 0, 0, 3, 1)]
    findings = Findings()
    findings.add(launch(5), words)
    assert findings.all() == {
        0: Found(3, 2, 1, 4, (5, (1, 0, 1), 2, (1, 1), 1), (5, (0, 0, 0), 0, (3, 7), 2)),
        2: Found(0, 0, 5, 0, None, (5, (2, 1, 4), 0, 0, 3)),
    }
    words[0, 4] = packed(1, 0, 0, 0, 32)
    findings.add(launch(6), words)  # later: counts only
    findings.add(launch(6), np.zeros_like(words))
    assert findings.all()[0] == Found(6, 4, 2, 8, (5, (1, 0, 1), 2, (1, 1), 1),
                                      (5, (0, 0, 0), 0, (3, 7), 2))  # fmt: skip
    words[0, 5] = 0
    findings.add(launch(2), words)  # earlier: its place
    assert findings.all()[0].first_nan == (2, (1, 0, 0), 0, (0, 0), 0)
    assert findings.all()[0].first_inf == (5, (0, 0, 0), 0, (3, 7), 2)


def test_program_beyond_the_field_has_no_place() -> None:
    words = np.zeros((3, 6), np.int64)
    words[1] = [1, 0, 0, 0, packed((1 << PROGRAM_BITS) - 1, 0, 3, 1, 16), 0]
    findings = Findings()
    findings.add(launch(0), words)
    assert findings.all()[1].first_nan == (0, None, None, None, 1)
