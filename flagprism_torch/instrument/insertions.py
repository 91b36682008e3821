"""New text for a kernel's module: lines to insert, names, constants and calls of probes.

Note [Hidden argument]
The kernel's function gets an argument `flagprism_records`, a pointer to i32, and behind it what
else its probes ask for (`Insertions.argument`). Lowering appends scratch pointers after the
function's own arguments, so a launcher whose signature ends with the same types passes them in
place.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from flagprism_torch.instrument.apart import Apart
from flagprism_torch.instrument.codegen import Argument, ProbeText
from flagprism_torch.instrument.contraction import Contraction
from flagprism_torch.ir.module import Block, Module, Value
from flagprism_torch.ir.text import header_arguments
from flagprism_torch.ir.types import Type, tensor_type

HIDDEN = "flagprism_records"


class Insertions:
    """Collects what goes into a module's text, then joins it.

    `after[n]`: lines to stand after line n. An operand is (name, type) or (name, type, unsigned).
    `moves`: as in backends.profile.
    """

    def __init__(
        self,
        module: Module,
        probes: ProbeText,
        moves: Mapping[int, tuple[str, str]] = MappingProxyType({}),
    ) -> None:
        self.module, self.probes = module, probes
        self.after: dict[int, list[str]] = {}
        self.prologue: list[str] = []
        self._constants: dict[tuple[str, str], str] = {}
        self._fresh = 0
        self._prefix = "flagprism"
        while any(f"%{self._prefix}_" in line for line in module.lines):  # the kernel's own names
            self._prefix += "_"
        self.hidden = f"%{HIDDEN.replace('flagprism', self._prefix)}"
        self._arguments = [f"{self.hidden}: !tt.ptr<i32> {{tt.divisibility = 16 : i32}}"]
        self.contraction = Contraction(module.entry)
        self._apart = Apart(moves, self.contraction.fragile, module.lines, self.at, self.name)

    def at(self, line: int) -> list[str]:
        """The lines to stand after a line, to be extended."""
        return self.after.setdefault(line, [])

    def settled(self, block: Block, line: int) -> int:
        """The first line at or behind `line` where a branch may stand (instrument.contraction)."""
        return self.contraction.settled(block, line)

    def name(self, what: str = "") -> str:
        """A fresh SSA name."""
        self._fresh += 1
        return f"%{self._prefix}_{what}{self._fresh}"

    def argument(self, what: str, kind: str) -> str:
        """Name of a new argument of the kernel, behind those there are."""
        name = self.name(what)
        self._arguments.append(f"{name}: {kind}")
        return name

    def constant(self, kind: str, literal: str) -> str:
        """Name of a constant at the top of the kernel."""
        key = (kind, literal)
        if key not in self._constants:
            self._constants[key] = self.name()
        return self._constants[key]

    def integer(self, kind: str, value: int) -> str:
        return self.constant(kind, str(value))

    def probe(
        self, probe: Any, operands: Sequence[Any], constants: dict[str, Any], out: list[str]
    ) -> str:
        """Add a call of a `@triton.jit` probe; returns the name of its result (`name#k` with
        several)."""
        listed = [Argument(o[1], o[2] if len(o) > 2 else False) for o in operands]
        made = self.probes.get(probe, listed, constants)
        names = ", ".join(o[0] for o in operands)
        types = ", ".join(o[1].text for o in operands)
        results = [t.text for t in made.results]
        name, left = self.name(), ""
        if len(results) == 1:
            left = f"{name} = "
        elif results:
            left = f"{name}:{len(results)} = "
        shown = results[0] if len(results) == 1 else f"({', '.join(results)})"
        out.append(f"{left}tt.call @{made.name}({names}) : ({types}) -> {shown} loc(unknown)")
        return name

    def tile(self, value: Value, out: list[str]) -> tuple[str, Type]:
        """A value for a probe, as a tensor: scalars become [1]. A float is a copy."""
        name = self._apart.of(value)
        return (name, value.type) if value.type.is_tensor else self.splat(name, value.type, out)

    def splat(self, name: str, kind: Type, out: list[str]) -> tuple[str, Type]:
        """A scalar as a tensor of one lane."""
        made, one = self.name(), tensor_type((1,), kind.element)
        out.append(f"{made} = tt.splat {name} : {kind.text} -> {one.text} loc(unknown)")
        return made, one

    def text(self) -> str:
        """The module's text with everything that was added."""
        function = self.module.entry
        constants = [
            f"{name} = arith.constant {literal}{'' if kind == 'i1' else f' : {kind}'} loc(unknown)"
            for (kind, literal), name in self._constants.items()
        ]
        lines: list[str] = []
        last = max(i for i, line in enumerate(self.module.lines) if line.startswith("}"))
        for number, line in enumerate(self.module.lines):
            if number == function.line:
                lines.append(_with_arguments(line, self._arguments))
                lines += constants + self.prologue + self.after.get(number, [])
                continue
            if number == last:
                lines += self.probes.functions
            lines.append(line)
            lines += self.after.get(number, [])
        return "\n".join(lines)


def _with_arguments(line: str, more: Sequence[str]) -> str:
    """A function header with more arguments, `%name: type {attributes}`."""
    start, end = header_arguments(line)
    own = [line[start:end]] if line[start:end].strip() else []
    named = [f'{each} loc("{each.partition(":")[0][1:]}")' for each in more]
    return f"{line[:start]}{', '.join(own + named)}{line[end:]}"
