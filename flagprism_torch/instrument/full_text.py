"""Full values of a kernel: which are chosen, and the text that writes them down.

Note [Chosen for full]
The rows of the op table that the statement filter fits, whole tiles, each with its mask. Stores
come with the offsets of their lanes, so that the tensor can be put together; with all addresses
asked for, loads and atomics too. Rows with the same value or mask in the same block share it.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from flagprism_torch.instrument import full
from flagprism_torch.instrument.accesses import Access, accesses_of
from flagprism_torch.instrument.address_text import AddressText
from flagprism_torch.instrument.codegen import RECORDS
from flagprism_torch.instrument.insertions import Insertions
from flagprism_torch.instrument.mask_operand import MaskOperands
from flagprism_torch.instrument.optable import Chosen
from flagprism_torch.instrument.record import Record
from flagprism_torch.ir import trips
from flagprism_torch.ir.masks import ALL, UNKNOWN, Mask
from flagprism_torch.ir.module import Block, Module, Op, Value
from flagprism_torch.ir.types import Type, parse_type
from flagprism_torch.records.full_model import (
    FullBlock,
    FullChannel,
    FullEntry,
    FullPlan,
    matching,
)
from flagprism_torch.records.model import OpEntry

_I64 = parse_type("i64")


@dataclass(frozen=True)
class FullRequest:
    """What a twin is asked to write down. `statements`: patterns (records.full_model.matching),
    None for all; `offsets`: whether loads and atomics have offsets too; `mapped`: whether the
    launch says which programs have a row."""

    statements: tuple[str, ...] | None = None
    offsets: bool = False
    mapped: bool = False


@dataclass(frozen=True)
class Tile:
    """What goes into a channel, behind line `line` of its block: a value, or a mask of a value of
    type `kind`, or the offsets of an access."""

    record: Record
    kind: Type
    value: Value | None = None
    mask: Mask | None = None
    access: Access | None = None


@dataclass(frozen=True)
class Full:
    """`tiles`: what goes into each channel of `plan`; `blocks`: the blocks of the plan;
    `accesses`: those whose offsets have to be defined for it."""

    plan: FullPlan
    tiles: tuple[Tile, ...]
    blocks: tuple[Block, ...]
    accesses: tuple[Access, ...]
    mapped: bool


def choose(
    module: Module,
    ops: Sequence[Op],
    rows: Sequence[tuple[int, Chosen]],
    entries: Sequence[OpEntry],
    accesses: Sequence[Access],
    request: FullRequest,
    offsets: bool,
) -> Full:
    """What to write down of a kernel.

    Args:
        rows, entries: the op table, in the same order.
        accesses: those whose offsets are defined already.
        offsets: whether the backend can tell where lanes go.
    """
    known = {access.op: access for access in accesses}
    if offsets and not accesses:
        known = {access.op: access for access in accesses_of(module, ops, Counter())}
    return _Chooser(module, known, request).choose(rows, entries, set(accesses))


class _Chooser:
    def __init__(self, module: Module, known: dict[Op, Access], request: FullRequest) -> None:
        self._entry, self._known, self._request = module.entry, known, request
        self._blocks: dict[Block, int] = {}
        self._channels: dict[object, int] = {}
        self._tiles: list[Tile] = []
        self._described: list[FullChannel] = []

    def choose(
        self,
        rows: Sequence[tuple[int, Chosen]],
        entries: Sequence[OpEntry],
        defined: set[Access],
    ) -> Full:
        found = []
        used: dict[Access, None] = {}
        for (_, one), entry in zip(rows, entries, strict=True):
            wanted = self._request.statements
            if wanted is not None and not matching(wanted, entry.statement, entry.variable):
                continue
            access = self._access(one.record.op, entry)
            if access is not None and access not in defined:
                used[access] = None
            found.append(self._entry_of(one.record, entry, access))
        blocks = tuple(self._block(block) for block in self._blocks)
        plan = FullPlan(tuple(found), blocks, tuple(self._described))
        return Full(
            plan, tuple(self._tiles), tuple(self._blocks), tuple(used), self._request.mapped
        )

    def _access(self, op: Op, entry: OpEntry) -> Access | None:
        if entry.role == "store" or (self._request.offsets and entry.role != "value"):
            return self._known.get(op)
        return None

    def _entry_of(self, record: Record, entry: OpEntry, access: Access | None) -> FullEntry:
        kind, block = record.value.type, record.op.block
        number = self._blocks.setdefault(block, len(self._blocks))
        values = self._channel(
            (record.value, block), Tile(record, kind, value=record.value), number, _size(kind)
        )
        lanes = self._mask(record, record.mask, kind, number)
        active = offsets = -1
        arguments: tuple[str, ...] = ()
        if access is not None:
            active = self._mask(record, access.mask, access.offsets.type, number)
            tile = Tile(record, access.offsets.type, access=access)
            offsets = self._channel((access, block), tile, number, 8)
            arguments = tuple(argument.name.lstrip("%") for argument in access.arguments)
        return FullEntry(
            op_id=entry.op_id,
            op=entry.op,
            role=entry.role,
            dtype=entry.dtype,
            shape=entry.shape,
            mask=entry.mask,
            file=entry.file,
            line=entry.line,
            variable=entry.variable,
            statement=entry.statement,
            pointer=entry.pointer,
            block=number,
            values=values,
            lanes=lanes,
            active=active,
            offsets=offsets,
            arguments=arguments,
        )

    def _mask(self, record: Record, mask: Mask, kind: Type, block: int) -> int:
        if mask in (ALL, UNKNOWN):
            return -1
        key = (mask, kind.dims, record.op.block)
        return self._channel(key, Tile(record, kind, mask=mask), block, 1)

    def _channel(self, key: object, tile: Tile, block: int, size: int) -> int:
        if key not in self._channels:
            self._channels[key] = len(self._tiles)
            self._tiles.append(tile)
            self._described.append(FullChannel(block, size, tile.kind.numel))
        return self._channels[key]

    def _block(self, block: Block) -> FullBlock:
        once = block is self._entry.blocks[0]
        return FullBlock(trips.executions(block, self._entry), once)


def _size(kind: Type) -> int:
    """Bytes of an element in a channel."""
    digits = re.match(r"(?:i|f|bf)(\d+)", kind.element)
    assert digits, kind
    return max(int(digits[1]) // 8, 1)


class FullText:
    """Writes what a plan says into a kernel's text."""

    def __init__(self, new: Insertions, masks: MaskOperands, full_values: Full) -> None:
        self._new, self._masks, self._full = new, masks, full_values
        self._values = ""

    def begin(self, addresses: AddressText) -> None:
        """Give the kernel its argument, and define offsets."""
        self._values = self._new.argument("values", "!tt.ptr<i32> {tt.divisibility = 16 : i32}")
        for access in self._full.accesses:
            addresses.define(access)

    def write(self, program: tuple[str, Type]) -> None:
        """Args: program: the linear program id, int64."""
        plan, new = self._full.plan, self._new
        if not plan.entries:
            return
        memory = (self._values, RECORDS)
        map_word = plan.header_bytes // 4 if self._full.mapped else 0
        row = new.probe(full.row_of, [memory, program], {"MAP": map_word}, new.prologue)
        places = []
        for number, block in enumerate(self._full.blocks):
            out = new.prologue if plan.blocks[number].once else new.at(block.line)
            constants = {
                "BLOCK": number, "BLOCKS": len(plan.blocks), "ONCE": plan.blocks[number].once,
            }  # fmt: skip
            places.append(new.probe(full.place_of, [memory, (row, _I64)], constants, out))
        for number, tile in enumerate(self._full.tiles):
            place = (places[plan.channels[number].block], _I64)
            word = 2 + len(plan.blocks) + number
            self._put(tile, memory, place, word)

    def _put(
        self, tile: Tile, memory: tuple[str, Type], place: tuple[str, Type], word: int
    ) -> None:
        new, record = self._new, tile.record
        block = record.op.block
        if tile.value is not None:
            operand = new.tile(tile.value, new.at(record.line))
        elif tile.access is not None:
            operand = new.tile(tile.access.offsets, new.at(record.line))
        else:
            assert tile.mask is not None
            operand, _ = self._masks.operand(
                tile.mask, tile.kind, block, record.line, new.at(record.line)
            )
        out = new.at(new.settled(block, record.line))
        new.probe(full.put, [operand, memory, place], {"CHANNEL": word}, out)
