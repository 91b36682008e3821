"""Loop-carried partials: a value that is recorded inside loops is summed up across iterations.

Note [Carried partials]
A value inside directly nested `scf.for` loops accumulates [T] partials: every loop of the nest gets
iter_args for them, and the record is made once, after the outermost loop. Values below an `scf.if`
in a loop or in an `scf.while` merge into their record in memory at each execution.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from flagprism_torch.instrument.insertions import Insertions
from flagprism_torch.ir.module import Op
from flagprism_torch.ir.types import Type, parse_type, tensor_type

_I32, _I64 = parse_type("i32"), parse_type("i64")
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
Nest = tuple[Op, ...]


class Accumulator:
    """One loop-carried value: `init` before the nest, `update` in the innermost body."""

    def __init__(self, name: str, kind: Type, init: str) -> None:
        self.name, self.type, self.init, self.update = name, kind, init, ""

    def inside(self, level: int) -> str:
        """Its name in the body of the nest's loop `level`."""
        return f"{self.name}_{level}"


class Nests:
    """The accumulators of all loop nests of a kernel."""

    def __init__(self, insertions: Insertions) -> None:
        self._new = insertions
        self._lines = insertions.module.lines
        self._carried: dict[Nest, list[Accumulator]] = {}
        self._counters: dict[Nest, Accumulator] = {}
        self._new_yields: dict[Op, list[tuple[str, str]]] = {}  # of loops without one: (name, type)

    def __iter__(self) -> Iterator[Nest]:
        return iter(list(self._carried))

    def accumulator(self, nest: Nest, role: str, element: str, threads: int) -> Accumulator:
        """A new one of [threads] elements, starting at the neutral element of its role."""
        literal = _NEUTRAL.get((element, role), "0.0" if element[0] == "f" else "0")
        kind = tensor_type((threads,), element)
        init = self._new.constant(kind.text, f"dense<{literal}>")
        made = Accumulator(self._new.name(role), kind, init)
        self._carried.setdefault(nest, []).append(made)
        return made

    def flags(self, nest: Nest) -> Accumulator:
        """A new flag word of the program, i32; its maker sets `update`."""
        made = Accumulator(self._new.name("flags"), _I32, self._new.integer("i32", 0))
        self._carried.setdefault(nest, []).append(made)
        return made

    def counter(self, nest: Nest) -> Accumulator:
        """Executions of the innermost body, i64."""
        if nest not in self._counters:
            made = Accumulator(self._new.name("count"), _I64, self._new.integer("i64", 0))
            self._carried.setdefault(nest, []).append(made)
            line = nest[-1].regions[0][0].line
            made.update, one = self._new.name(), self._new.integer("i64", 1)
            self._new.at(line).insert(
                0, f"{made.update} = arith.addi {made.inside(len(nest) - 1)}, {one} : i64 "
                "loc(unknown)"
            )  # fmt: skip
            self._counters[nest] = made
        return self._counters[nest]

    def finish(self, nest: Nest) -> dict[str, str]:
        """Thread the accumulators through every loop of the nest; their names -> names of what they
        are after the outermost loop."""
        accumulators = self._carried[nest]
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
        return {a.name: f"{base}#{start + i}" for i, a in enumerate(accumulators)}

    def _widen_header(
        self, loop: Op, accumulators: list[Accumulator], inits: list[str], level: int
    ) -> tuple[str, int]:
        """More iter_args; returns the name of the results and the index of the first new one."""
        line = self._lines[loop.line]
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
            base, start, right = self._new.name("loop"), 0, line.split("scf.for ", 1)[1]
        total = start + len(accumulators)
        self._lines[loop.line] = f"{indent}{base}:{total} = scf.for {right}"
        return base, start

    def _widen_yield(self, loop: Op, accumulators: list[Accumulator], yields: list[str]) -> None:
        block = loop.regions[0][-1]
        names = ", ".join(yields)
        types = ", ".join(a.type.text for a in accumulators)
        last = block.ops[-1] if block.ops else None
        if last is not None and last.name == "scf.yield":
            self._lines[last.line] = _YIELD.sub(
                lambda m: (
                    f"scf.yield {m.group(1)}, {names} : {m.group(2)}, {types}{m.group(3) or ''}"
                ),
                self._lines[last.line],
            )
        else:
            pairs = zip(yields, (a.type.text for a in accumulators), strict=True)
            self._new_yields.setdefault(loop, []).extend(pairs)

    def close(self) -> None:
        """End the loops that had no yield; nothing may be added to their bodies afterwards."""
        for loop, pairs in self._new_yields.items():
            block = loop.regions[0][-1]
            end = block.ops[-1].end if block.ops else block.line
            names, types = (", ".join(part) for part in zip(*pairs, strict=True))
            self._new.at(end).append(f"scf.yield {names} : {types} loc(unknown)")
