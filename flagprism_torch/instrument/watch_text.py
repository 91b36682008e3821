"""Text of the watch (instrument.watch, Note [Watch])."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from flagprism_torch.instrument import watch, words
from flagprism_torch.instrument.codegen import RECORDS, ProbeText, triton_dtype
from flagprism_torch.instrument.insertions import Insertions
from flagprism_torch.instrument.mask_operand import MaskOperands
from flagprism_torch.instrument.nests import Accumulator, Nest, Nests
from flagprism_torch.instrument.optable import Chosen
from flagprism_torch.instrument.record import place_of
from flagprism_torch.ir.flow import Downstream, Upstream, members
from flagprism_torch.ir.locations import source_line
from flagprism_torch.ir.module import Block, Function, Module
from flagprism_torch.ir.sentinels import Sentinels
from flagprism_torch.ir.types import Type, parse_type, tensor_type
from flagprism_torch.records.model import CheckEntry, OpTable

_I32, _I64 = parse_type("i32"), parse_type("i64")
Operand = tuple[str, Type]


@dataclass
class _Word:
    """Up to `watch.WORD` values of one place with as many threads; `first`: check number of the
    first. `flags`, `begun`: names at the end of the place."""

    nest: Nest
    block: Block
    threads: int
    first: int
    members: list[tuple[int, Chosen]] = field(default_factory=list)
    flags: str = ""
    begun: str = ""

    @property
    def type(self) -> Type:
        return tensor_type((self.threads,), "i32")


def watch_table(module: Module, chosen: Sequence[Chosen], left_out: Mapping[str, int]) -> OpTable:
    """The table of a watched kernel: one check for each value, no records."""
    entry = module.entry
    flow = Downstream(entry.walk(), [(one.record.value, n) for n, one in enumerate(chosen)])
    checks = []
    for number, one in enumerate(chosen):
        value, frame = one.record.value, one.frame
        checks.append(
            CheckEntry(
                kind="watch",
                rule=one.role,
                op=one.record.op.name,
                dtype=str(triton_dtype(value.type.element)),
                shape=(),
                mask=one.label,
                file=frame.file,
                line=frame.line,
                variable=frame.name,
                statement=source_line(frame.file, frame.line),
                pointer=one.pointer,
                leads=tuple(n for n in members(flow.of(value)) if n != number),
            )
        )
    frames = [f for op in entry.walk() for f in op.frames[:1]]
    file = frames[0].file if frames else ""
    line = min((f.line for f in frames if f.file == file), default=0)
    return OpTable(entry.name, file, line, (), dict(left_out), tuple(checks))


def watched(
    module: Module,
    chosen: Sequence[Chosen],
    probes: ProbeText,
    threads: int,
    moves: Mapping[int, tuple[str, str]],
) -> str:
    """The module's text with the watch and the hidden pointer to the check records."""
    return _Watcher(Insertions(module, probes, moves), chosen, threads).text()


def _own_infinities(entry: Function) -> Upstream:
    """Tells which values an infinity of the program's own can enter."""
    sentinels, ops = Sentinels(entry), list(entry.walk())
    return Upstream(ops, [v for op in ops for v in op.results if sentinels.of(v)])


class _Watcher:
    def __init__(self, new: Insertions, chosen: Sequence[Chosen], threads: int) -> None:
        self.new, self.chosen, self.threads = new, chosen, threads
        self.nests, self.masks = Nests(new), MaskOperands(new)
        self.own_infinities = _own_infinities(new.module.entry)

    def text(self) -> str:
        new = self.new
        made = new.probe(words.program_id, [], {}, new.prologue)
        self.program = (made, _I64)
        carried: list[tuple[_Word, Accumulator, Accumulator]] = []
        ends: dict[int, list[_Word]] = {}
        for word in self._words():
            self._mark(word, carried)
            if not word.nest:
                ends.setdefault(id(word.block), []).append(word)
        results: dict[str, str] = {}
        for nest in self.nests:
            results |= self.nests.finish(nest)
        for word, flags, begun in carried:
            word.flags, word.begun = results[flags.name], results[begun.name]
            ends.setdefault(id(word.nest[0].block), []).append(word)
        for found in ends.values():
            self._end(found)
        self.nests.close()
        return new.text()

    def _words(self) -> list[_Word]:
        """The values by place and number of threads. Check numbers of a word follow each other, so
        that a value of another place ends it."""
        found: list[_Word] = []
        for number, one in enumerate(self.chosen):
            place = place_of(one.record.op.block)
            nest = () if place.repeated else place.loops
            threads = min(self.threads, self._kind(one).numel)
            last = found[-1] if found else None
            if (
                last is None
                or (last.nest, last.block, last.threads) != (nest, one.record.op.block, threads)
                or len(last.members) == watch.WORD
            ):
                last = _Word(nest, one.record.op.block, threads, number)
                found.append(last)
            last.members.append((number, one))
        return found

    def _mark(self, word: _Word, carried: list[tuple[_Word, Accumulator, Accumulator]]) -> None:
        """Write what sets the flags of a word."""
        new, kind = self.new, word.type
        level = len(word.nest) - 1
        flags = new.constant(kind.text, "dense<0>")
        kept: tuple[Accumulator, Accumulator] | None = None
        if word.nest:
            kept = (
                self.nests.accumulator(word.nest, "flags", "i32", word.threads),
                self.nests.accumulator(word.nest, "low", "i32", word.threads),
            )
            flags = kept[0].inside(level)
        before = flags
        members_ = sorted(word.members, key=lambda member: member[1].record.line)
        for number, one in members_:
            record = one.record
            out = new.at(record.line)
            value = new.tile(record.value, out)
            mask, masked = self.masks.operand(
                record.watched, value[1], record.op.block, record.line, out
            )
            constants = {"MASKED": masked, "T": word.threads}
            size = new.probe(watch.largest, [value, mask], constants, out)
            element = "f64" if value[1].element == "f64" else "f32"
            operands = [(size, tensor_type((word.threads,), element)), (flags, kind)]
            infinite = not self.own_infinities.of(record.value)
            constants = {"BIT": 2 * (number - word.first), "INFINITE": infinite}
            flags = new.probe(watch.mark, operands, constants, out)
        word.flags = flags
        if kept is None:
            begun = watch.UNKNOWN if place_of(word.block).repeated else 0
            word.begun = new.constant(kind.text, f"dense<{begun}>")
            return
        counter = (self.nests.counter(word.nest).inside(level), _I64)
        operands = [(before, kind), (flags, kind), (kept[1].inside(level), kind), counter]
        out = new.at(members_[-1][1].record.line)
        kept[0].update, kept[1].update = flags, new.probe(watch.begun, operands, {}, out)
        carried.append((word, *kept))

    def _end(self, found: list[_Word]) -> None:
        """One reduction for all words that end in a block, by number of threads, and the branch."""
        block = found[0].nest[0].block if found[0].nest else found[0].block
        last = max(
            word.nest[0].end if word.nest else max(one.record.line for _, one in word.members)
            for word in found
        )
        line = self.new.settled(block, last)
        out = self.new.at(line)
        by_threads: dict[int, list[_Word]] = {}
        for word in found:
            by_threads.setdefault(word.threads, []).append(word)
        for words_ in by_threads.values():
            self._put(words_, out)

    def _put(self, found: list[_Word], out: list[str]) -> None:
        new, kind = self.new, found[0].type
        flags = found[0].flags
        for word in found[1:]:
            made = new.name()
            out.append(f"{made} = arith.ori {flags}, {word.flags} : {kind.text} loc(unknown)")
            flags = made
        some, nothing = new.name(), new.integer("i32", 0)
        any_ = new.probe(watch.any_flag, [(flags, kind)], {}, out)
        out.append(f"{some} = arith.cmpi ne, {any_}, {nothing} : i32 loc(unknown)")
        out.append(f"scf.if {some} {{")
        for word in found:
            operands: list[Any] = [(word.flags, kind), (word.begun, kind)]
            operands += [(new.hidden, RECORDS), self.program]
            new.probe(watch.put, operands, {"NUMBER": word.first}, out)
        out.append("} loc(unknown)")

    @staticmethod
    def _kind(one: Chosen) -> Type:
        kind = one.record.value.type
        return kind if kind.is_tensor else tensor_type((1,), kind.element)
