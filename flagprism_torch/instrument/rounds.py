"""Values of one block are decided together: one reduction across threads, one rare branch.

Note [Rounds]
Across threads a reduction is a chain of shuffles, shared memory and barriers, dearer than the sums
of a small tile, and each branch splits the schedule. So the values of a block form rounds. Each
value leaves partials per thread behind its operation (instrument.values); at the end of the round

* outside of loops, one reduction merges the partials of all its values, and a flag word says which
  of them were unusual (instrument.values, Note [Usual tiles]);
* in a loop the partials are carried on (instrument.nests), and only a flag word is reduced;
* one branch holds what is rare: the exact sums of unusual values, and their checks.

The tiles of a round stay alive up to its end, so their number is limited.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from flagprism_torch.instrument import addresses, values
from flagprism_torch.instrument.insertions import Insertions
from flagprism_torch.instrument.nests import Accumulator, Nest, Nests
from flagprism_torch.ir.module import Block
from flagprism_torch.ir.types import Type, parse_type, tensor_type

_MEMBERS = 15  # two bits of an int32 each
_LANES = 32  # of all tiles of a round, per thread
ROLES = ("zero", "low", "high", "total", "squares")  # of partials
_I32 = parse_type("i32")
Operand = tuple[str, Type]


@dataclass
class Member:
    """A value of a round, behind text line `line`.

    `value`: its tile. `lanes`: what it takes of a thread's registers. `partials`: name and types of
    its results per thread; a watch, which has no record, has one, its doubts. `put`: the probe that
    writes the record, its operands and constants; in a loop `carried` is what partials are instead
    merged into, by the loops of `nest`, and `seen` is set to the flags of all executions and
    its bit there. `rare`: operands and constants of rare_execution, None for integers and watches.
    `checks`: writes the branch of its checks, given the name of an i1. `roles`: what the partials
    are. `flag`: of an integer, gives the name of an i1 that asks for the checks, given what was
    reduced.
    """

    line: int
    value: Operand
    lanes: int
    partials: tuple[str, Sequence[Type]]
    put: tuple[Any, list[Any], dict[str, Any]] | None = None
    carried: Sequence[Accumulator] = ()
    nest: Nest = ()
    seen: tuple[Accumulator, int] | None = None
    rare: tuple[list[Any], dict[str, Any]] | None = None
    checks: Callable[[str, list[str]], None] | None = None
    roles: Sequence[str] = ROLES
    flag: Callable[[list[Operand], list[str]], Operand] | None = None

    @property
    def parts(self) -> list[Operand]:
        """Names and types of the partials."""
        name, types = self.partials
        if len(types) == 1:
            return [(name, types[0])]
        return [(f"{name}#{at}", kind) for at, kind in enumerate(types)]

    @property
    def inside(self) -> list[Operand]:
        """What is carried, as the body sees it."""
        return [(each.inside(len(self.nest) - 1), each.type) for each in self.carried]


@dataclass
class _Block:
    """What may share rounds: values of one block with the same number of partials."""

    block: Block
    threads: int
    loop: bool
    members: list[Member] = field(default_factory=list)


class Rounds:
    """The rounds of a kernel."""

    def __init__(self, insertions: Insertions, nests: Nests) -> None:
        self._new, self._nests = insertions, nests
        self._blocks: dict[tuple[int, int, bool], _Block] = {}

    def add(self, block: Block, threads: int, loop: bool, member: Member) -> None:
        """Let a value take part; `threads`: how many partials it has."""
        key = (id(block), threads, loop)
        self._blocks.setdefault(key, _Block(block, threads, loop)).members.append(member)

    def write(self) -> None:
        """Add all rounds to the text."""
        for block in self._blocks.values():
            chosen: list[Member] = []
            for member in sorted(block.members, key=lambda member: member.line):
                lanes = sum(each.lanes for each in chosen) + member.lanes
                if chosen and (len(chosen) == _MEMBERS or lanes > _LANES):
                    self._round(chosen, block)
                    chosen = []
                chosen.append(member)
            self._round(chosen, block)

    def _round(self, members: list[Member], block: _Block) -> None:
        new = self._new
        out = new.at(new.settled(block.block, members[-1].line))
        word = self._carry(members, block, out) if block.loop else self._put(members, out)
        rare = [(at, member) for at, member in enumerate(members) if member.checks is not None]
        if not rare:
            return
        some, nothing = new.name(), new.integer("i32", 0)
        out.append(f"{some} = arith.cmpi ne, {word[0]}, {nothing} : i32 loc(unknown)")
        out.append(f"scf.if {some} {{")
        for at, member in rare:
            constants: dict[str, Any] = {"BIT": 2 * at}
            if member.rare is None:
                trigger = new.probe(values.flag, [word], constants, out)
            else:
                (value, mask, *rest), more = member.rare
                operands = [value, mask, word, *rest]
                trigger = new.probe(values.rare_execution, operands, constants | more, out)
            assert member.checks is not None
            member.checks(trigger, out)
        out.append("} loc(unknown)")

    # -- outside of loops

    def _put(self, members: list[Member], out: list[str]) -> Operand:
        """Reduce all partials and write the records; returns the flag word."""
        new = self._new
        reduced = iter(self._reduced(members, out))
        word = (new.integer("i32", 0), _I32)
        puts = []
        for at, member in enumerate(members):
            found = [next(reduced) for _ in member.parts]
            constants = {"BIT": 2 * at}
            if member.put is None:
                word = (new.probe(values.doubt_flags, [*found, word], constants, out), _I32)
                continue
            if member.rare is not None:
                _, low, high, _, squares = found
                operands: list[Any] = [member.value, low, high, squares, low, high, word]
                word = (new.probe(values.float_flags, operands, constants, out), _I32)
            elif member.flag is not None:
                flagged = [member.flag(found, out), word]
                word = (new.probe(addresses.add_flag, flagged, constants, out), _I32)
            puts.append((member, found, constants))
        for member, found, constants in puts:
            assert member.put is not None
            probe, rest, more = member.put
            if member.rare is None:
                new.probe(probe, [*found, *rest], more, out)
            else:
                new.probe(probe, [*found, word, *rest], constants | more, out)
        return word

    def _reduced(self, members: list[Member], out: list[str]) -> list[Operand]:
        """The partials of all members across threads, as scalars."""
        new = self._new
        partials = [part for member in members for part in member.parts]
        combined = [
            _combination(role, part[1])
            for member in members
            for role, part in zip(member.roles, member.parts, strict=False)
        ]
        scalars = [parse_type(kind.element) for _, kind in partials]
        sides = [[(new.name(), kind) for kind in scalars] for _ in range(2)]
        arguments = [f"{n}: {kind.text} loc(unknown)" for side in sides for n, kind in side]
        result, many = new.name(), len(partials) > 1
        names = ", ".join(name for name, _ in partials)
        left = f"{result}:{len(partials)}" if many else result
        out.append(f'{left} = "tt.reduce"({names}) <{{axis = 0 : i32}}> ({{')
        out.append(f"^bb0({', '.join(arguments)}):")
        made = []
        for how, (a, kind), (b, _) in zip(combined, *sides, strict=True):
            made.append(new.name())
            out.append(f"{made[-1]} = {how} {a}, {b} : {kind.text} loc(unknown)")
        shown = ", ".join(kind.text for kind in scalars)
        out.append(f"tt.reduce.return {', '.join(made)} : {shown} loc(unknown)")
        types = ", ".join(kind.text for _, kind in partials)
        returned = f"({shown})" if many else shown
        out.append(f"}}) : ({types}) -> {returned} loc(unknown)")
        return [(f"{result}#{i}" if many else result, kind) for i, kind in enumerate(scalars)]

    # -- in loops

    def _carry(self, members: list[Member], block: _Block, out: list[str]) -> Operand:
        """Merge the partials into what is carried; returns the flag word."""
        new, kind = self._new, tensor_type((block.threads,), "i32")
        flags = (new.constant(kind.text, "dense<0>"), kind)
        for at, member in enumerate(members):
            constants = {"BIT": 2 * at}
            here = new.at(member.line)
            if member.carried:
                (_, low, high, _, squares), (_, low_so_far, high_so_far, _, _) = (
                    member.parts, member.inside,
                )  # fmt: skip
                operands = [member.value, low, high, squares, low_so_far, high_so_far, flags]
                flags = (new.probe(values.float_flags, operands, constants, here), kind)
            else:
                operands = [*member.parts, flags]
                flags = (new.probe(values.doubt_flags, operands, constants, here), kind)
        word = (new.probe(values.any_flags, [flags], {}, out), _I32)
        carrying = [(at, member) for at, member in enumerate(members) if member.carried]
        if not carrying:
            return word
        seen = self._seen(carrying[0][1].nest, word, out)
        for at, member in carrying:
            member.seen = seen, 2 * at
            operands = [*member.parts, *member.inside, word]
            made = new.probe(values.float_merge, operands, {"BIT": 2 * at}, out)
            for position, accumulator in enumerate(member.carried):
                accumulator.update = f"{made}#{position}"
        return word

    def _seen(self, nest: Nest, word: Operand, out: list[str]) -> Accumulator:
        """The flags of all executions of a round so far."""
        seen = self._nests.flags(nest)
        seen.update, before = self._new.name(), seen.inside(len(nest) - 1)
        out.append(f"{seen.update} = arith.ori {before}, {word[0]} : i32 loc(unknown)")
        return seen


def _combination(role: str, kind: Type) -> str:
    """What merges two partials."""
    real = kind.element[0] == "f"
    if role == "low":
        return "arith.minnumf" if real else "arith.minsi"
    if role == "high":
        return "arith.maxnumf" if real else "arith.maxsi"
    return "arith.addf" if real else "arith.addi"
