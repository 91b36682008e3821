"""Put probes into a kernel: TTIR text in, TTIR text with one more argument out.

Records and watches leave partials (instrument.values, instrument.whole) behind their operation, in
a loop carried on (instrument.nests); what is made of them, and the checks of their round
(instrument.births), stands at the round's end (instrument.rounds).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from flagprism_torch.instrument import addresses as offsets_of
from flagprism_torch.instrument import histograms, trace, values, whole, words
from flagprism_torch.instrument.accesses import Access
from flagprism_torch.instrument.address_text import GUARDED, AddressText
from flagprism_torch.instrument.check_text import CheckText
from flagprism_torch.instrument.codegen import RECORDS, ProbeText
from flagprism_torch.instrument.full_text import FullText
from flagprism_torch.instrument.insertions import HIDDEN, Insertions
from flagprism_torch.instrument.mask_operand import MaskOperands
from flagprism_torch.instrument.nests import Accumulator, Nests
from flagprism_torch.instrument.plan import Plan
from flagprism_torch.instrument.record import Place, Record, place_of
from flagprism_torch.instrument.rounds import ROLES, Member, Rounds
from flagprism_torch.instrument.silent_text import SilentText
from flagprism_torch.ir.masks import ALL, UNKNOWN, Mask
from flagprism_torch.ir.module import Module, Op
from flagprism_torch.ir.types import Type, parse_type, tensor_type
from flagprism_torch.records.layout import (
    CHECK_WORDS,
    HIST_BUCKETS,
    HIST_SHARDS,
    iteration_bits,
    lane_bits,
)

__all__ = ["HIDDEN", "instrument"]
_I32, _I64, _I1 = parse_type("i32"), parse_type("i64"), parse_type("i1")


def instrument(
    module: Module,
    plan: Plan,
    probes: ProbeText,
    *,
    threads: int,
    slots: int,
    addresses: bool = False,
    guard: bool = False,
    early: bool = False,
    moves: Mapping[int, tuple[str, str]] = MappingProxyType({}),
) -> str:
    """The module's text with the plan's records and the hidden arguments.

    Args:
        threads: partials a loop keeps per value (a power of two).
        slots: 0 if every program has a slot of its own, else the number of shared slots.
        addresses: whether the kernel takes extents (instrument.address_text).
        guard: whether accesses outside of their tensors are masked off.
        early: whether lanes outside are counted before each access.
        moves: as in backends.profile.
    """
    rewriter = _Rewriter(plan, Insertions(module, probes, moves), threads, slots, early)
    if addresses:
        rewriter.accesses(guard)
    if plan.full is not None:
        rewriter.full_values()
    return rewriter.text()


class _Rewriter:
    def __init__(self, plan: Plan, new: Insertions, threads: int, slots: int, early: bool) -> None:
        self.plan, self.new, self.threads, self.slots = plan, new, threads, slots
        self.early = early
        self.nests = Nests(self.new)
        self.rounds = Rounds(self.new, self.nests)
        self.masks = MaskOperands(self.new)
        self.live: dict[tuple[tuple[Op, ...], Mask], Accumulator] = {}
        self.finals: list[tuple[Place, Any]] = []
        self.histograms = {op.record: op.histogram for op in plan.table.ops if op.histogram >= 0}
        histogram_words = plan.table.histograms * HIST_SHARDS * HIST_BUCKETS * 2
        self.offset = histogram_words + plan.table.check_records * CHECK_WORDS
        self.checks = CheckText(new.module.entry, new, self.masks, plan.checks, histogram_words,
                                plan.table.check_records)  # fmt: skip
        self.addresses = AddressText(new, self.masks)
        self.full: FullText | None = None

    def accesses(self, guard: bool) -> None:
        """Define where accesses go, before anything is said about it."""
        self.addresses.begin()
        for access in self.plan.accesses:
            self.addresses.define(access)
            if guard and access.arguments and access.op.name in GUARDED:
                self.addresses.guard(access)

    def full_values(self) -> None:
        """Take the memory for full values, behind the extents."""
        assert self.plan.full is not None
        self.full = FullText(self.new, self.masks, self.plan.full)
        self.full.begin(self.addresses)

    def text(self) -> str:
        constants = {"OFFSET": self.offset, "OPS": len(self.plan.records), "SLOTS": self.slots}
        hidden = (self.new.hidden, RECORDS)
        base = self.new.probe(words.slot, [hidden], constants, self.new.prologue)
        self.base, self.program = (f"{base}#0", RECORDS), (f"{base}#1", _I64)
        for index, record in enumerate(self.plan.records):
            if record.place.loops:
                self._carry(index, record)
            else:
                self._once(index, record)
        for watch in self.plan.watches:
            self._watch(watch)
        for number, access in enumerate(self.plan.accesses):
            if self.early and access.arguments:
                self._count_early(access)
            self.addresses.sample(
                access, self.plan.table.sample(number), self.checks.base, self.program
            )
        self.rounds.write()
        silent = SilentText(self.new, self.masks, self.nests, self.plan.checks, self.checks.base,
                            self.program, self.threads)  # fmt: skip
        silent.write()
        for nest in self.nests:
            results = self.nests.finish(nest)
            silent.total(nest, results)
            for place, final in self.finals:
                if place.loops == nest:
                    self._total(place, final, results)
        if self.full is not None:
            self.full.write(self.program)
        trace.write(self.new, self.plan.stops, self.program, constants)
        self.nests.close()
        return self.new.text()

    def _mode(self, place: Place) -> int:
        if self.slots:
            return words.ATOMIC
        return words.MERGE if place.repeated else words.STORE

    def _merging(self, place: Place) -> int:
        """The mode of what is put into a record beside something else."""
        mode = self._mode(place)
        return words.MERGE if mode == words.STORE else mode

    # -- one record

    def _once(self, index: int, record: Record) -> None:
        out = self.new.at(record.line)
        value, mask, masked = self._value(record, out)
        self._histogram(index, record, value, mask, masked)
        mode = self._mode(record.place)
        kind = value[1]
        threads = min(self.threads, kind.numel)
        live = self.masks.lanes(record.mask, kind, threads, record.op.block, record.line, out)
        op = (self.new.integer("i32", index), _I32)
        put = [(live, _I64), self.base, op]
        constants: dict[str, Any] = {"MASKED": masked, "T": threads}
        if not record.real:
            how = _Whole.of(record, threads)
            partials = self.new.probe(how.partials, [value, mask], constants, out)
            lanes = kind.numel // threads
            member = Member(record.line, value[:2], lanes, (partials, how.types), roles=how.roles)
            member.put = how.put, put, {"MODE": mode}
            self._bound(record, member, self._executed(record, op, out))
            self.rounds.add(record.op.block, threads, False, member)
            return
        iteration = self._executed(record, op, out)
        member = self._float(index, record, value, mask, constants, iteration, out)
        member.put = values.put_usual, put, {"MODE": mode}
        self.rounds.add(record.op.block, threads, False, member)

    def _carry(self, index: int, record: Record) -> None:
        nest = record.place.loops
        out = self.new.at(record.line)
        value, mask, masked = self._value(record, out)
        self._histogram(index, record, value, mask, masked)
        kind = value[1]
        threads = min(self.threads, kind.numel)
        level = len(nest) - 1
        counter = self.nests.counter(nest)
        live = self._live_carried(nest, record, mask, masked, threads, out)
        how = None if record.real else _Whole.of(record, threads)
        types = how.types if how is not None else _float_types(kind, threads)
        carried = [
            self.nests.accumulator(nest, role, each.element, threads)
            for role, each in zip(how.roles if how else ROLES, types, strict=False)
        ]
        final = (index, record, kind, carried, live, counter)
        constants: dict[str, Any] = {"MASKED": masked, "T": threads}
        if record.access is not None:
            made = self.new.probe(offsets_of.offset_partials, [value, mask], constants, out)
            parts = [(f"{made}#{at}", kind) for at, kind in enumerate(types)]
            inside = [(a.inside(level), a.type) for a in carried]
            merged = self.new.probe(offsets_of.merge_offsets, [*parts, *inside], {}, out)
            for position, accumulator in enumerate(carried):
                accumulator.update = f"{merged}#{position}"
            self.finals.append((record.place, (*final, None)))
            self._watch_bounds(record, value[:2], parts, threads, out)
            return
        if how is not None:
            arguments = [value, mask, *((a.inside(level), a.type) for a in carried)]
            made = self.new.probe(how.accumulate, arguments, constants, out)
            for position, accumulator in enumerate(carried):
                accumulator.update = f"{made}#{position}" if len(carried) > 1 else made
            self.finals.append((record.place, (*final, None)))
            return
        iteration = self._iteration(record)
        member = self._float(index, record, value, mask, constants, iteration, out)
        member.carried, member.nest = carried, nest
        self.finals.append((record.place, (*final, member)))
        self.rounds.add(record.op.block, threads, True, member)

    def _executed(self, record: Record, op: tuple[str, Type], out: list[str]) -> tuple[str, Type]:
        """How often the program executed a statement that no loop carries before."""
        if self._mode(record.place) != words.MERGE:
            return self._iteration(record)
        return self.new.probe(words.executed, [self.base, op], {}, out), _I64

    def _bound(self, record: Record, member: Member, iteration: tuple[str, Type]) -> None:
        """Let the extremes of an access ask for a count of the lanes outside."""
        access = record.access
        if access is None or not access.arguments or self.early:
            return
        number = self.plan.table.bounds(self.plan.accesses.index(access))

        def count(trigger: str, out: list[str]) -> None:
            self.addresses.count(access, number, trigger, iteration, self.checks.base,
                                 self.program, record.line, out)  # fmt: skip

        member.checks = count
        member.flag = lambda found, out: self.addresses.is_beyond(access, found, out)

    def _watch_bounds(
        self, record: Record, value: Any, parts: list[Any], threads: int, out: list[str]
    ) -> None:
        """The same for an access in a loop, at each execution."""
        access = record.access
        if access is None or not access.arguments or self.early:
            return
        found = self.addresses.is_beyond(access, parts, out)
        doubt = self.new.probe(offsets_of.as_doubt, [found], {}, out)
        partials = (doubt, [tensor_type((threads,), "f32")])
        member = Member(record.line, value, value[1].numel // threads, partials)
        self._bound(record, member, self._iteration(record))
        self.rounds.add(record.op.block, threads, True, member)

    def _count_early(self, access: Access) -> None:
        """Count lanes outside before the access, which may be the last that the program does."""
        block, out, line = access.op.block, self.new.at(access.op.line - 1), access.op.line - 1
        offsets = self.new.tile(access.offsets, out)
        threads = min(self.threads, offsets[1].numel)
        mask, masked = self.masks.operand(access.mask, offsets[1], block, line, out)
        constants = {"MASKED": masked, "T": threads}
        made = self.new.probe(offsets_of.offset_partials, [offsets, mask], constants, out)
        kind = tensor_type((threads,), "i64")
        found = self.addresses.is_beyond(access, [(f"{made}#0", kind), (f"{made}#1", kind)], out)
        trigger = self.new.probe(offsets_of.any_lane, [found], {}, out)
        number = self.plan.table.bounds(self.plan.accesses.index(access))
        place = place_of(block)
        iteration = (self.new.integer("i64", 0), _I64)
        if place.repeated:
            iteration = self._unknown_iteration(access.offsets.type)
        elif place.loops:
            counter = self.nests.counter(place.loops)
            iteration = (counter.inside(len(place.loops) - 1), _I64)
        self.addresses.count(access, number, trigger, iteration, self.checks.base, self.program,
                             line, out)  # fmt: skip

    def _watch(self, record: Record) -> None:
        """Checks of values that have no record."""
        out = self.new.at(record.line)
        value = self.new.tile(record.value, out)
        threads = min(self.threads, value[1].numel)
        extra, _ = self._extra(record, value, out, own=True)
        found = self.new.probe(values.doubts, [extra], {"T": threads}, out)
        partials = (found, [tensor_type((threads,), "f32")])
        member = self._member(record, value, partials, self._iteration(record))
        self.rounds.add(record.op.block, threads, bool(record.place.loops), member)

    def _float(
        self, index: int, record: Record, value: Any, mask: Any, constants: dict[str, Any],
        iteration: tuple[str, Type], out: list[str],
    ) -> Member:  # fmt: skip
        """A recorded float value's part in a round, with its partials in the text."""
        extra, has_extra = self._extra(record, value, out)
        partials = self.new.probe(
            values.float_partials, [value, mask, extra], {**constants, "EXTRA": has_extra}, out
        )
        types = _float_types(value[1], constants["T"])
        member = self._member(record, value, (partials, types), iteration)
        member.rare = self._rare(index, record, value, mask, constants, iteration)
        return member

    def _member(
        self,
        record: Record,
        value: Any,
        partials: tuple[str, Sequence[Type]],
        iteration: tuple[str, Type],
    ) -> Member:
        """A float value's part in a round."""

        def checks(trigger: str, out: list[str]) -> None:
            self.checks.branch(record.checks, trigger, iteration, self.program, record.line, out)

        lanes = value[1].numel // partials[1][0].numel * (1 + len(record.others))
        return Member(record.line, value[:2], lanes, partials, checks=checks)

    def _rare(
        self, index: int, record: Record, value: Any, mask: Any, constants: Any, iteration: Any
    ) -> tuple[list[Any], dict[str, Any]]:
        """Operands (but for the flags) and constants of rare_execution."""
        op = (self.new.integer("i32", index), _I32)
        more = {"MODE": self._merging(record.place), "LANE_BITS": lane_bits(value[1].numel)}
        return [value, mask, iteration, self.base, self.program, op], constants | more

    def _iteration(self, record: Record) -> tuple[str, Type]:
        """How often the program executed the statement before, as far as it is known."""
        nest = record.place.loops
        if record.place.repeated:
            return self._unknown_iteration(record.value.type)
        if nest:
            return self.nests.counter(nest).inside(len(nest) - 1), _I64
        return self.new.integer("i64", 0), _I64

    def _total(self, place: Place, final: Any, results: dict[str, str]) -> None:
        """The record of a nest's partials, after the outermost loop."""
        index, record, kind, carried, live, counter, member = final
        out = self.new.at(place.loops[0].end)
        executions = results[counter.name]
        if live is not None:
            lanes = self.new.probe(values.mask_total, [(results[live.name], live.type)], {}, out)
        else:
            lanes, factor = self.new.name(), self.new.integer("i64", kind.numel)
            out.append(f"{lanes} = arith.muli {executions}, {factor} : i64 loc(unknown)")
        arguments: list[Any] = [(results[a.name], a.type) for a in carried]
        arguments += [(lanes, _I64), (executions, _I64), self.base]
        op = (self.new.integer("i32", index), _I32)
        if member is not None:
            seen, bit = member.seen
            arguments += [op, (results[seen.name], _I32)]
            constants = {"MODE": self._mode(place), "BIT": bit}
            self.new.probe(values.float_total, arguments, constants, out)
        else:
            probe = _Whole.of(record, 1).total
            self.new.probe(probe, [*arguments, op], {"MODE": self._mode(place)}, out)

    def _histogram(self, index: int, record: Record, value: Any, mask: Any, masked: bool) -> None:
        block = self.histograms.get(index)
        if block is None:
            return
        out = self.new.at(self.new.settled(record.op.block, record.line))
        number = (self.new.integer("i32", block), _I32)
        self.new.probe(
            histograms.histogram,
            [value, mask, (self.new.hidden, RECORDS), self.program, number],
            {"BLOCKS": len(self.histograms), "SHARDS": HIST_SHARDS, "MASKED": masked},
            out,
        )

    # -- operands

    def _value(self, record: Record, out: list[str]) -> tuple[Any, tuple[str, Type], bool]:
        """(value, mask, whether there is a mask)."""
        name, kind = self.new.tile(record.value, out)
        mask, masked = self.masks.operand(record.mask, kind, record.op.block, record.line, out)
        return (name, kind, record.unsigned), mask, masked

    def _extra(
        self, record: Record, value: Any, out: list[str], own: bool = False
    ) -> tuple[tuple[str, Type], bool]:
        """What the record's own live lanes do not show, as a tile of doubts, and whether there is
        any (instrument.values, Note [Usual tiles]). own: the value itself is to be looked at, which
        else it only is if not all that is watched is live."""
        kind = value[1]
        known = record.watched == record.mask or (record.watched is ALL and record.mask is UNKNOWN)
        own |= bool(record.checks) and not known
        looked_at = [*record.others, *([record.value] if own else [])]
        if not looked_at:
            return (self.new.constant("i1", "true"), _I1), False
        tile = tensor_type(kind.dims, "f32")
        name = self.new.constant(tile.text, "dense<0.0>")
        for each in looked_at:
            operands = [(name, tile), self.new.tile(each, out)]
            handed = self.checks.sentinel_operand(each)
            if handed is None:
                name = self.new.probe(values.doubt, operands, {}, out)
            else:
                operands.append(self.new.tile(handed, out))
                name = self.new.probe(values.doubt_unless, operands, {}, out)
        watched, masked = self.masks.operand(
            record.watched, kind, record.op.block, record.line, out
        )
        if masked:
            name = self.new.probe(values.doubt_within, [(name, tile), watched], {}, out)
        return (name, tile), True

    def _live_carried(
        self, nest: tuple[Op, ...], record: Record, mask: Any, masked: bool, threads: int,
        out: list[str],
    ) -> Accumulator | None:  # fmt: skip
        if not masked:
            return None
        key = (nest, record.mask)
        if key not in self.live:
            accumulator = self.nests.accumulator(nest, "live", "i32", threads)
            arguments = [mask, (accumulator.inside(len(nest) - 1), accumulator.type)]
            accumulator.update = self.new.probe(
                values.mask_accumulate, arguments, {"T": threads}, out
            )
            self.live[key] = accumulator
        return self.live[key]

    def _unknown_iteration(self, kind: Type) -> tuple[str, Type]:
        return self.new.integer("i64", (1 << iteration_bits(kind.numel)) - 1), _I64


def _types(wide: str, total: str, squares: str, threads: int) -> list[Type]:
    """Types of the five partials of a record."""
    return [tensor_type((threads,), element) for element in ("i32", wide, wide, total, squares)]


def _float_types(kind: Type, threads: int) -> list[Type]:
    wide = "f64" if kind.element == "f64" else "f32"
    return _types(wide, wide, wide, threads)


@dataclass(frozen=True)
class _Whole:
    """How integers of a type are recorded (instrument.whole)."""

    partials: Any
    put: Any
    accumulate: Any
    total: Any
    types: list[Type]
    roles: tuple[str, ...] = ROLES

    @classmethod
    def of(cls, record: Record, threads: int) -> _Whole:
        element = record.value.type.element
        if record.access is not None:
            extremes = [tensor_type((threads,), "i64")] * 2
            return cls(offsets_of.offset_partials, offsets_of.put_offsets, None,
                       offsets_of.offset_total, extremes, ("low", "high"))  # fmt: skip
        if element == "i1":
            counts = [tensor_type((threads,), "i32")]
            return cls(whole.true_partials, whole.put_true, whole.true_accumulate,
                       whole.true_total, counts)  # fmt: skip
        narrow = element in ("i8", "i16") or (element == "i32" and not record.unsigned)
        total = "f64" if element == "i64" else "i64"
        types = _types("i32" if narrow else "i64", total, "f64", threads)
        return cls(whole.int_partials, whole.put_int, whole.int_accumulate, whole.int_total,
                   types)  # fmt: skip
