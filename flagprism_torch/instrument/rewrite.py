"""Put probes into a kernel: TTIR text in, TTIR text with one more argument out.

Note [Hidden argument]
The kernel's function gets a last argument `flagprism_records`, a pointer to i32. Lowering appends
scratch pointers after the function's own arguments, so a launcher whose signature ends with one
more `*i32` passes it in place.

Note [Carried partials]
A value inside directly nested `scf.for` loops accumulates [T] partials: every loop of the nest gets
iter_args for them, and the record is made once, after the outermost loop. Values below an `scf.if`
in a loop or in an `scf.while` merge into their record in memory at each execution.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from flagprism_torch.instrument import values
from flagprism_torch.instrument.codegen import RECORDS, Argument, ProbeText
from flagprism_torch.instrument.plan import Place, Plan, Record
from flagprism_torch.ir.masks import ALL, UNKNOWN, Mask
from flagprism_torch.ir.module import Block, Module, Op
from flagprism_torch.ir.text import header_arguments
from flagprism_torch.ir.types import Type, parse_type, tensor_type
from flagprism_torch.records.layout import (
    HIST_BUCKETS,
    HIST_SHARDS,
    iteration_bits,
    lane_bits,
)

HIDDEN = "flagprism_records"
_I32, _I64, _I1 = parse_type("i32"), parse_type("i64"), parse_type("i1")
_ITER_ARGS = re.compile(r"iter_args\((.*?)\) -> \((.*)\)(\s*: \w+)? \{$")
_PLAIN_FOR = re.compile(r"(step \S+)(\s*: \w+)? \{$")
_YIELD = re.compile(r"scf\.yield (.*?) : (.*?)( loc\(.*\))?$")
# initial values of the carried partials, by element and role
_NEUTRAL = {
    ("f32", "low"): "0x7FC00000",
    ("f32", "high"): "0x7FC00000",
    ("f64", "low"): "0x7FF8000000000000",
    ("f64", "high"): "0x7FF8000000000000",
    ("i32", "low"): str(2**31 - 1),
    ("i32", "high"): str(-(2**31)),
    ("i64", "low"): str(2**63 - 1),
    ("i64", "high"): str(-(2**63)),
}


def instrument(module: Module, plan: Plan, probes: ProbeText, *, threads: int, slots: int) -> str:
    """The module's text with the plan's records and the hidden argument.

    Args:
        threads: partials a loop keeps per value (a power of two).
        slots: 0 if every program has a slot of its own, else the number of shared slots.
    """
    return _Rewriter(module, plan, probes, threads, slots).text()


class _Accumulator:
    """One loop-carried value: `init` before the nest, `update` in the innermost body."""

    def __init__(self, name: str, type_: Type, init: str) -> None:
        self.name, self.type, self.init, self.update = name, type_, init, ""

    def inside(self, level: int) -> str:
        return f"%{self.name}_{level}"


class _Rewriter:
    def __init__(
        self, module: Module, plan: Plan, probes: ProbeText, threads: int, slots: int
    ) -> None:
        self.module, self.plan, self.probes = module, plan, probes
        self.threads, self.slots = threads, slots
        self.after: dict[int, list[str]] = {}
        self.prologue: list[str] = []
        self.constants: dict[tuple[str, str], str] = {}
        self.made_masks: dict[tuple[int, Mask], str] = {}
        self.counts: dict[tuple[int, Mask], str] = {}
        self.nests: dict[tuple[Op, ...], list[_Accumulator]] = {}
        self.counters: dict[tuple[Op, ...], _Accumulator] = {}
        self.live: dict[tuple[tuple[Op, ...], Mask], _Accumulator] = {}
        self.finals: list[tuple[Place, Any]] = []
        self.histograms = {op.record: op.histogram for op in plan.table.ops if op.histogram >= 0}
        self.fresh = 0
        self.prefix = "flagprism"
        while any(f"%{self.prefix}_" in line for line in module.lines):  # names of the kernel's own
            self.prefix += "_"
        self.hidden = HIDDEN.replace("flagprism", self.prefix)

    def text(self) -> str:
        offset = self.plan.table.histograms * HIST_SHARDS * HIST_BUCKETS * 2
        constants = {"OFFSET": offset, "OPS": len(self.plan.records), "SLOTS": self.slots}
        base = self._probe(values.slot, [(f"%{self.hidden}", RECORDS)], constants, self.prologue)
        self.base, self.program = f"{base}#0", f"{base}#1"
        for index, record in enumerate(self.plan.records):
            if record.place.loops:
                self._carry(index, record)
            else:
                self._once(index, record)
        for nest, accumulators in self.nests.items():
            self._finish_nest(nest, accumulators)
        return self._join()

    def _mode(self, place: Place) -> int:
        if self.slots:
            return values.ATOMIC
        return values.MERGE if place.repeated else values.STORE

    # -- one record

    def _once(self, index: int, record: Record) -> None:
        out = self.after.setdefault(record.op.end, [])
        x, kind = self._tensor(record, out)
        mask, masked = self._mask(record, kind, out)
        self._histogram(index, (x, kind, record.unsigned), mask, masked, out)
        mode = self._mode(record.place)
        threads = min(self.threads, kind.numel)
        live = self._live_once(record, mask, masked, kind, threads, out)
        op = (self._number(index), _I32)
        common = {"MODE": mode, "MASKED": masked, "T": threads}
        value = (x, kind, record.unsigned)
        if not record.real:
            self._probe(values.int_record, [value, mask, (live, _I64), (self.base, RECORDS), op],
                        common, out)  # fmt: skip
            return
        iteration = (self._constant("i64", "0"), _I64)
        if record.place.repeated:
            iteration = (self._unknown_iteration(kind), _I64)
            if mode == values.MERGE:
                ran = self._probe(values.executed, [(self.base, RECORDS), op], {}, out)
                iteration = (ran, _I64)
        self._probe(
            values.float_record,
            [value, mask, (live, _I64), iteration, (self.base, RECORDS), (self.program, _I64), op],
            {**common, "LANE_BITS": lane_bits(kind.numel)},
            out,
        )

    def _carry(self, index: int, record: Record) -> None:
        nest = record.place.loops
        out = self.after.setdefault(record.op.end, [])
        x, kind = self._tensor(record, out)
        mask, masked = self._mask(record, kind, out)
        self._histogram(index, (x, kind, record.unsigned), mask, masked, out)
        threads = min(self.threads, kind.numel)
        level = len(nest) - 1
        counter = self._counter(nest)
        live = self._live_carried(nest, record, mask, masked, threads, out)
        common = {"MASKED": masked, "T": threads}
        value = (x, kind, record.unsigned)
        if record.real:
            iteration = (counter.inside(level), _I64)
            if record.place.repeated:
                iteration = (self._unknown_iteration(kind), _I64)
            probe: Any = values.float_accumulate
            arguments = [value, mask, iteration, (self.base, RECORDS), (self.program, _I64)]
            arguments.append((self._number(index), _I32))
            common["MODE"] = self._mode(record.place) or values.MERGE
            wide = "f64" if kind.element == "f64" else "f32"
            common["LANE_BITS"] = lane_bits(kind.numel)
        else:
            probe, arguments = values.int_accumulate, [value, mask]
            narrow = kind.element in ("i1", "i8", "i16") or (
                kind.element == "i32" and not record.unsigned
            )
            wide = "i32" if narrow else "i64"
        sums = wide if record.real else "f64"
        roles = [("zero", "i32"), ("low", wide), ("high", wide), ("total", sums), ("squares", sums)]
        carried = [self._accumulator(nest, role, element, threads) for role, element in roles]
        arguments += [(a.inside(level), a.type) for a in carried]
        made = self._probe(probe, arguments, common, out)
        for position, accumulator in enumerate(carried):
            accumulator.update = f"{made}#{position}"
        self.finals.append((record.place, (index, record, kind, carried, live, counter)))

    def _total(self, place: Place, final: Any, results: dict[str, str]) -> None:
        """The record of a nest's partials, after the outermost loop."""
        index, record, kind, carried, live, counter = final
        out = self.after[place.loops[0].end]
        executions = results[counter.name]
        if isinstance(live, _Accumulator):
            lanes = self._probe(values.mask_total, [(results[live.name], live.type)], {}, out)
        else:
            lanes = self._name()
            factor = self._constant("i64", str(kind.numel))
            out.append(f"{lanes} = arith.muli {executions}, {factor} : i64 loc(unknown)")
        arguments: list[Any] = [(results[a.name], a.type) for a in carried]
        arguments += [(lanes, _I64), (executions, _I64), (self.base, RECORDS)]
        constants = {"MODE": self._mode(place)}
        op = (self._number(index), _I32)
        probe = values.float_total if record.real else values.int_total
        self._probe(probe, [*arguments, op], constants, out)

    def _histogram(self, index: int, value: Any, mask: Any, masked: bool, out: list[str]) -> None:
        block = self.histograms.get(index)
        if block is None:
            return
        self._probe(
            values.histogram,
            [
                value,
                mask,
                (f"%{self.hidden}", RECORDS),
                (self.program, _I64),
                (self._number(block), _I32),
            ],
            {"BLOCKS": len(self.histograms), "SHARDS": HIST_SHARDS, "MASKED": masked},
            out,
        )

    # -- pieces of a record

    def _tensor(self, record: Record, out: list[str]) -> tuple[str, Type]:
        """The value as a tensor: scalars become [1]."""
        value = record.value
        if value.type.is_tensor:
            return value.name, value.type
        name, kind = self._name(), tensor_type((1,), value.type.element)
        out.append(
            f"{name} = tt.splat {value.name} : {value.type.text} -> {kind.text} loc(unknown)"
        )
        return name, kind

    def _mask(self, record: Record, kind: Type, out: list[str]) -> tuple[tuple[str, Type], bool]:
        """((name, type) of the mask operand, whether it is one)."""
        if record.mask in (ALL, UNKNOWN):
            return (self._constant("i1", "true"), _I1), False
        name = self._materialise(record.mask, record.op.block, out)
        if not record.mask.type.is_tensor:
            spread, one = self._name(), tensor_type((1,), "i1")
            out.append(f"{spread} = tt.splat {name} : i1 -> {one.text} loc(unknown)")
            return (spread, one), True
        return (name, kind.like("i1")), True

    def _live_once(
        self, record: Record, mask: Any, masked: bool, kind: Type, threads: int, out: list[str]
    ) -> str:
        """Live lanes of one execution, i64; counted once per mask and block."""
        if not masked:
            return self._constant("i64", str(kind.numel))
        key = (id(record.op.block), record.mask)
        if key not in self.counts:
            self.counts[key] = self._probe(values.mask_count, [mask], {"T": threads}, out)
        return self.counts[key]

    def _live_carried(
        self, nest: tuple[Op, ...], record: Record, mask: Any, masked: bool, threads: int,
        out: list[str],
    ) -> _Accumulator | None:  # fmt: skip
        if not masked:
            return None
        key = (nest, record.mask)
        if key not in self.live:
            accumulator = self._accumulator(nest, "live", "i32", threads)
            arguments = [mask, (accumulator.inside(len(nest) - 1), accumulator.type)]
            accumulator.update = self._probe(values.mask_accumulate, arguments, {"T": threads}, out)
            self.live[key] = accumulator
        return self.live[key]

    def _unknown_iteration(self, kind: Type) -> str:
        return self._constant("i64", str((1 << iteration_bits(kind.numel)) - 1))

    # -- masks

    def _materialise(self, mask: Mask, block: Block, out: list[str]) -> str:
        """Name of an i1 value for a description, reusing one made in this or an enclosing block."""
        if mask.kind == "value":
            return str(mask.arguments[0].name)
        scope: Block | None = block
        while scope is not None:
            found = self.made_masks.get((id(scope), mask))
            if found:
                return found
            scope = scope.parent.block if scope.parent is not None else None
        if mask.kind == "and":
            left, right = (self._materialise(m, block, out) for m in mask.arguments)
            name = self._name()
            out.append(f"{name} = arith.andi {left}, {right} : {mask.type.text} loc(unknown)")
        elif mask.kind == "select":
            condition, *sides = mask.arguments
            yes, no = (self._side(m, mask.type, block, out) for m in sides)
            name = self._name()
            out.append(
                f"{name} = arith.select {condition.name}, {yes}, {no} : {mask.type.text}, "
                f"{mask.type.text} loc(unknown)"
            )
        elif mask.kind == "any":
            inner, axis = mask.arguments
            source = self._materialise(inner, block, out)
            name = self._probe(values.mask_any, [(source, inner.type)], {"AXIS": axis}, out)
        else:
            inner, op, attributes = mask.arguments
            source = self._materialise(inner, block, out)
            name = self._name()
            out.append(
                f"{name} = {op} {source} {attributes} : {inner.type.text} -> {mask.type.text} "
                "loc(unknown)"
            )
        self.made_masks[(id(block), mask)] = name
        return name

    def _side(self, mask: Mask, kind: Type, block: Block, out: list[str]) -> str:
        if mask is ALL:
            return self._constant(kind.text, "dense<true>")
        return self._materialise(mask, block, out)

    # -- loops

    def _accumulator(
        self, nest: tuple[Op, ...], role: str, element: str, threads: int
    ) -> _Accumulator:
        literal = _NEUTRAL.get((element, role), "0.0" if element[0] == "f" else "0")
        kind = tensor_type((threads,), element)
        self.fresh += 1
        made = _Accumulator(f"{self.prefix}_{role}{self.fresh}", kind,
                            self._constant(kind.text, f"dense<{literal}>"))  # fmt: skip
        self.nests.setdefault(nest, []).append(made)
        return made

    def _counter(self, nest: tuple[Op, ...]) -> _Accumulator:
        """Executions of the innermost body, i64."""
        if nest not in self.counters:
            self.fresh += 1
            made = _Accumulator(
                f"{self.prefix}_count{self.fresh}", _I64, self._constant("i64", "0")
            )
            self.nests.setdefault(nest, []).append(made)
            line = nest[-1].regions[0][0].line
            name, one = self._name(), self._constant("i64", "1")
            self.after.setdefault(line, []).insert(
                0, f"{name} = arith.addi {made.inside(len(nest) - 1)}, {one} : i64 loc(unknown)"
            )
            made.update = name
            self.counters[nest] = made
        return self.counters[nest]

    def _finish_nest(self, nest: tuple[Op, ...], accumulators: list[_Accumulator]) -> None:
        """Thread the accumulators through every loop of the nest, then make the records."""
        bases: list[tuple[str, int]] = []
        for level, loop in enumerate(nest):
            inits = [a.init if level == 0 else a.inside(level - 1) for a in accumulators]
            bases.append(self._widen_header(loop, accumulators, inits, level))
        for level, loop in enumerate(nest):
            if level + 1 < len(nest):
                base, start = bases[level + 1]
                yields = [f"{base}#{start + i}" for i in range(len(accumulators))]
            else:
                yields = [a.update for a in accumulators]
            self._widen_yield(loop, accumulators, yields)
        base, start = bases[0]
        results = {a.name: f"{base}#{start + i}" for i, a in enumerate(accumulators)}
        self.after.setdefault(nest[0].end, [])
        for place, final in self.finals:
            if place.loops == nest:
                self._total(place, final, results)

    def _widen_header(
        self, loop: Op, accumulators: list[_Accumulator], inits: list[str], level: int
    ) -> tuple[str, int]:
        """More iter_args; returns the name of the results and the index of the first new one."""
        line = self.module.lines[loop.line]
        carried = ", ".join(
            f"{a.inside(level)} = {init}" for a, init in zip(accumulators, inits, strict=True)
        )
        types = ", ".join(a.type.text for a in accumulators)
        match = _ITER_ARGS.search(line)
        if match:
            line = (
                f"{line[: match.start()]}iter_args({match.group(1)}, {carried}) -> "
                f"({match.group(2)}, {types}){match.group(3) or ''} {{"
            )
        else:
            line = _PLAIN_FOR.sub(
                lambda m: f"{m.group(1)} iter_args({carried}) -> ({types}) {m.group(2) or ''} {{",
                line,
            )
        indent = line[: len(line) - len(line.lstrip())]
        left, equals, right = line.partition(" = scf.for ")
        if equals:
            base, _, count = left.strip().partition(":")
            start = int(count or 1)
        else:
            self.fresh += 1
            base, start, right = f"%{self.prefix}_loop{self.fresh}", 0, line.split("scf.for ", 1)[1]
        total = start + len(accumulators)
        self.module.lines[loop.line] = f"{indent}{base}:{total} = scf.for {right}"
        return base, start

    def _widen_yield(self, loop: Op, accumulators: list[_Accumulator], yields: list[str]) -> None:
        block = loop.regions[0][-1]
        names = ", ".join(yields)
        types = ", ".join(a.type.text for a in accumulators)
        last = block.ops[-1] if block.ops else None
        if last is not None and last.name == "scf.yield":
            line = self.module.lines[last.line]
            self.module.lines[last.line] = _YIELD.sub(
                lambda m: (
                    f"scf.yield {m.group(1)}, {names} : {m.group(2)}, {types}{m.group(3) or ''}"
                ),
                line,
            )
        else:
            end = last.end if last is not None else block.line
            self.after.setdefault(end, []).append(f"scf.yield {names} : {types} loc(unknown)")

    # -- text

    def _probe(
        self, probe: Any, arguments: Sequence[Any], constants: dict[str, Any], out: list[str]
    ) -> str:
        """Emit a call; returns the name of its result (`name#k` with several)."""
        listed = [Argument(a[1], a[2] if len(a) > 2 else False) for a in arguments]
        made = self.probes.get(probe, listed, constants)
        operands = ", ".join(a[0] for a in arguments)
        types = ", ".join(a[1].text for a in arguments)
        results = [t.text for t in made.results]
        name, left = self._name(), ""
        if len(results) == 1:
            left = f"{name} = "
        elif results:
            left = f"{name}:{len(results)} = "
        shown = results[0] if len(results) == 1 else f"({', '.join(results)})"
        out.append(f"{left}tt.call @{made.name}({operands}) : ({types}) -> {shown} loc(unknown)")
        return name

    def _name(self) -> str:
        self.fresh += 1
        return f"%{self.prefix}_{self.fresh}"

    def _number(self, value: int) -> str:
        return self._constant("i32", str(value))

    def _constant(self, type_: str, literal: str) -> str:
        """A constant at the top of the kernel."""
        key = (type_, literal)
        if key not in self.constants:
            self.constants[key] = self._name()
        return self.constants[key]

    def _join(self) -> str:
        function = self.module.entry
        constants = [
            f"{name} = arith.constant {literal}"
            f"{'' if type_ == 'i1' else f' : {type_}'} loc(unknown)"
            for (type_, literal), name in self.constants.items()
        ]
        lines: list[str] = []
        last = max(i for i, line in enumerate(self.module.lines) if line.startswith("}"))
        for number, line in enumerate(self.module.lines):
            if number == function.line:
                lines.append(_with_argument(line, self.hidden))
                lines += constants + self.prologue + self.after.get(number, [])
                continue
            if number == last:
                lines += self.probes.functions
            lines.append(line)
            lines += self.after.get(number, [])
        return "\n".join(lines)


def _with_argument(line: str, name: str) -> str:
    """A function header with the hidden argument (Note [Hidden argument])."""
    start, end = header_arguments(line)
    arguments = line[start:end]
    hidden = f'%{name}: !tt.ptr<i32> {{tt.divisibility = 16 : i32}} loc("{name}")'
    joined = f"{arguments}, {hidden}" if arguments.strip() else hidden
    return f"{line[:start]}{joined}{line[end:]}"
