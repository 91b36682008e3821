"""Plain data about full values: what a twin writes down lane by lane, and where.

Note [Channels]
A twin writes the tiles of one value into a *channel*: row (program), execution, lane, without gaps.
Masks and offsets have channels of their own. All channels of a *block*, operations that run
together, have room for the same number of executions.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class FullBlock:
    """`executions`: how often a program runs it at most (ir.trips, Note [Postfix terms]), None if
    only the device can tell. `once`: every program runs it exactly once."""

    executions: tuple[str, ...] | None
    once: bool


@dataclass(frozen=True)
class FullChannel:
    """Tiles of `numel` lanes of `itemsize` bytes."""

    block: int
    itemsize: int
    numel: int


@dataclass(frozen=True)
class FullEntry:
    """A value whose lanes are written down. The first fields are those of its row (`OpEntry`).

    `mask` says which lanes `lanes` marks: "live", "valid", "all" (no channel is needed) or
    "unknown" (there is none). `values`, `lanes`, `active`, `offsets`: channels, -1 for none;
    `active`: lanes that the access touches, no channel if all do. `arguments`: the kernel arguments
    that the access may go through; offsets are bytes from the first of them, addresses without one.
    """

    op_id: int
    op: str
    role: str
    dtype: str
    shape: tuple[int, ...]
    mask: str
    file: str
    line: int
    variable: str | None
    statement: str
    pointer: str | None
    block: int
    values: int
    lanes: int = -1
    active: int = -1
    offsets: int = -1
    arguments: tuple[str, ...] = ()

    @property
    def channels(self) -> tuple[int, ...]:
        return tuple(c for c in (self.values, self.lanes, self.active, self.offsets) if c >= 0)


@dataclass(frozen=True)
class FullPlan:
    """What a twin writes down."""

    entries: tuple[FullEntry, ...] = ()
    blocks: tuple[FullBlock, ...] = ()
    channels: tuple[FullChannel, ...] = ()

    @property
    def header(self) -> int:
        """Words of the header (records.dumps, Note [Dump buffer])."""
        return 2 + len(self.blocks) + len(self.channels)

    @property
    def header_bytes(self) -> int:
        """Bytes of the header: what stands behind it begins at a multiple of 16."""
        return -(-8 * self.header // 16) * 16

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> FullPlan:
        return cls(
            tuple(FullEntry(**_tuples(entry)) for entry in data["entries"]),
            tuple(FullBlock(**_tuples(block)) for block in data["blocks"]),
            tuple(FullChannel(**channel) for channel in data["channels"]),
        )


NO_PLAN = FullPlan()


def _tuples(data: Mapping[str, Any]) -> dict[str, Any]:
    return {name: tuple(v) if isinstance(v, list) else v for name, v in data.items()}


def matching(patterns: Iterable[str], *names: str | None) -> list[str]:
    """The patterns that one of the names fits: equal to it, or as a file name fits a pattern of the
    shell (`*`, `?`, `[...]`), in the same case."""
    return [
        pattern
        for pattern in patterns
        if any(n is not None and (n == pattern or fnmatch.fnmatchcase(n, pattern)) for n in names)
    ]
