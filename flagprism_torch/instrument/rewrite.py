"""Put probes into a kernel: TTIR text in, TTIR text with one more argument out.

Records and watches become calls of probes (instrument.values) behind their operation, or
loop-carried partials (instrument.nests); checks (instrument.births) stand in a branch behind their
host.
"""

from __future__ import annotations

from typing import Any

from flagprism_torch.instrument import histograms, values
from flagprism_torch.instrument.check_text import CheckText
from flagprism_torch.instrument.codegen import RECORDS, ProbeText
from flagprism_torch.instrument.insertions import HIDDEN, Insertions
from flagprism_torch.instrument.mask_operand import MaskOperands
from flagprism_torch.instrument.nests import Accumulator, Nests
from flagprism_torch.instrument.plan import Plan
from flagprism_torch.instrument.record import Place, Record
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


def instrument(module: Module, plan: Plan, probes: ProbeText, *, threads: int, slots: int) -> str:
    """The module's text with the plan's records and the hidden argument.

    Args:
        threads: partials a loop keeps per value (a power of two).
        slots: 0 if every program has a slot of its own, else the number of shared slots.
    """
    return _Rewriter(module, plan, probes, threads, slots).text()


class _Rewriter:
    def __init__(
        self, module: Module, plan: Plan, probes: ProbeText, threads: int, slots: int
    ) -> None:
        self.plan, self.threads, self.slots = plan, threads, slots
        self.new = Insertions(module, probes)
        self.nests = Nests(self.new)
        self.masks = MaskOperands(self.new)
        self.live: dict[tuple[tuple[Op, ...], Mask], Accumulator] = {}
        self.finals: list[tuple[Place, Any]] = []
        self.histograms = {op.record: op.histogram for op in plan.table.ops if op.histogram >= 0}
        histogram_words = plan.table.histograms * HIST_SHARDS * HIST_BUCKETS * 2
        self.offset = histogram_words + len(plan.checks) * CHECK_WORDS
        self.checks = CheckText(module.entry, self.new, self.masks, plan.checks, histogram_words)

    def text(self) -> str:
        constants = {"OFFSET": self.offset, "OPS": len(self.plan.records), "SLOTS": self.slots}
        hidden = (self.new.hidden, RECORDS)
        base = self.new.probe(values.slot, [hidden], constants, self.new.prologue)
        self.base, self.program = (f"{base}#0", RECORDS), (f"{base}#1", _I64)
        for index, record in enumerate(self.plan.records):
            if record.place.loops:
                self._carry(index, record)
            else:
                self._once(index, record)
        for watch in self.plan.watches:
            self._watch(watch)
        silent = SilentText(self.new, self.masks, self.nests, self.plan.checks, self.checks.base,
                            self.program, self.threads)  # fmt: skip
        silent.write()
        for nest in self.nests:
            results = self.nests.finish(nest)
            silent.total(nest, results)
            for place, final in self.finals:
                if place.loops == nest:
                    self._total(place, final, results)
        self.nests.close()
        return self.new.text()

    def _mode(self, place: Place) -> int:
        if self.slots:
            return values.ATOMIC
        return values.MERGE if place.repeated else values.STORE

    # -- one record

    def _once(self, index: int, record: Record) -> None:
        out = self.new.at(record.line)
        value, mask, masked = self._value(record, out)
        self._histogram(index, value, mask, masked, out)
        mode = self._mode(record.place)
        kind = value[1]
        threads = min(self.threads, kind.numel)
        live = self.masks.lanes(record.mask, kind, threads, record.op.block, record.line, out)
        op = (self.new.integer("i32", index), _I32)
        constants = {"MODE": mode, "MASKED": masked, "T": threads}
        if not record.real:
            self.new.probe(values.int_record, [value, mask, (live, _I64), self.base, op],
                           constants, out)  # fmt: skip
            return
        iteration = (self.new.integer("i64", 0), _I64)
        if record.place.repeated:
            iteration = self._unknown_iteration(kind)
            if mode == values.MERGE:
                ran = self.new.probe(values.executed, [self.base, op], {}, out)
                iteration = (ran, _I64)
        watched, how = self._watched(record, kind, out)
        others = self._others(record, kind, out)
        trigger = self.new.probe(
            values.float_record,
            [value, mask, watched, others, (live, _I64), iteration, self.base, self.program, op],
            {**constants, **how, "LANE_BITS": lane_bits(kind.numel)},
            out,
        )
        self.checks.branch(record.checks, trigger, iteration, self.program, record.line, out)

    def _carry(self, index: int, record: Record) -> None:
        nest = record.place.loops
        out = self.new.at(record.line)
        value, mask, masked = self._value(record, out)
        self._histogram(index, value, mask, masked, out)
        kind = value[1]
        threads = min(self.threads, kind.numel)
        level = len(nest) - 1
        counter = self.nests.counter(nest)
        live = self._live_carried(nest, record, mask, masked, threads, out)
        constants: dict[str, Any] = {"MASKED": masked, "T": threads}
        iteration = (counter.inside(level), _I64)
        if record.place.repeated:
            iteration = self._unknown_iteration(kind)
        if record.real:
            watched, how = self._watched(record, kind, out)
            others = self._others(record, kind, out)
            probe: Any = values.float_accumulate
            arguments = [value, mask, watched, others, iteration, self.base, self.program]
            arguments.append((self.new.integer("i32", index), _I32))
            constants.update(how)
            constants["MODE"] = self._mode(record.place) or values.MERGE
            constants["LANE_BITS"] = lane_bits(kind.numel)
            wide = "f64" if kind.element == "f64" else "f32"
        else:
            probe, arguments = values.int_accumulate, [value, mask]
            narrow = kind.element in ("i1", "i8", "i16") or (
                kind.element == "i32" and not record.unsigned
            )
            wide = "i32" if narrow else "i64"
        sums = wide if record.real else "f64"
        roles = [("zero", "i32"), ("low", wide), ("high", wide), ("total", sums), ("squares", sums)]
        carried = [self.nests.accumulator(nest, role, e, threads) for role, e in roles]
        arguments += [(a.inside(level), a.type) for a in carried]
        made = self.new.probe(probe, arguments, constants, out)
        for position, accumulator in enumerate(carried):
            accumulator.update = f"{made}#{position}"
        self.finals.append((record.place, (index, record, kind, carried, live, counter)))
        trigger = f"{made}#{len(carried)}"
        self.checks.branch(record.checks, trigger, iteration, self.program, record.line, out)

    def _watch(self, record: Record) -> None:
        """Checks of values that have no record."""
        out = self.new.at(record.line)
        value = self.new.tile(record.value, out)
        kind = value[1]
        watched, masked = self.masks.operand(
            record.watched, kind, record.op.block, record.line, out
        )
        constants = {"WATCHED": int(masked), "OTHERS": bool(record.others)}
        trigger = self.new.probe(
            values.is_suspicious,
            [value, self._others(record, kind, out), watched],
            {**constants, "T": min(self.threads, kind.numel)},
            out,
        )
        nest = record.place.loops
        iteration = (self.new.integer("i64", 0), _I64)
        if record.place.repeated:
            iteration = self._unknown_iteration(kind)
        elif nest:
            iteration = (self.nests.counter(nest).inside(len(nest) - 1), _I64)
        self.checks.branch(record.checks, trigger, iteration, self.program, record.line, out)

    def _total(self, place: Place, final: Any, results: dict[str, str]) -> None:
        """The record of a nest's partials, after the outermost loop."""
        index, record, kind, carried, live, counter = final
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
        probe = values.float_total if record.real else values.int_total
        self.new.probe(probe, [*arguments, op], {"MODE": self._mode(place)}, out)

    def _histogram(self, index: int, value: Any, mask: Any, masked: bool, out: list[str]) -> None:
        block = self.histograms.get(index)
        if block is None:
            return
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

    def _watched(
        self, record: Record, kind: Type, out: list[str]
    ) -> tuple[tuple[str, Type], dict[str, Any]]:
        """The lanes whose non-finite values lead to checks."""
        how = {"WATCHED": 0, "OTHERS": bool(record.others)}
        same = record.watched == record.mask
        if not record.checks or same or (record.watched is ALL and record.mask is UNKNOWN):
            return (self.new.constant("i1", "true"), _I1), how
        operand, masked = self.masks.operand(
            record.watched, kind, record.op.block, record.line, out
        )
        return operand, {**how, "WATCHED": 1 if masked else 2}

    def _others(self, record: Record, kind: Type, out: list[str]) -> tuple[str, Type]:
        """What else is watched, as one tile."""
        if not record.others:
            return self.new.constant("i1", "true"), _I1
        tile = tensor_type(kind.dims, "f32")
        name = self.new.constant(tile.text, "dense<0.0>")
        for value in record.others:
            operands = [(name, tile), self.new.tile(value, out)]
            name = self.new.probe(values.suspects, operands, {}, out)
        return name, tile

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
