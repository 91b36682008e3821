"""Locations of TTIR: from `loc(...)` text to source frames, and from frames to the statement.

Grammar seen in Triton 3.6 to 3.9: `"file":L:C`, `"name"(inner)`, `callsite(callee at caller)`,
`fused<..>[a, b]`, `unknown`, and aliases `#locN` that are listed at the end of the module. Columns
differ between versions (3.6 counts from 0 and points at the last operand, 3.8 from 1 and at the
start), so nothing here keys on them.
"""

from __future__ import annotations

import linecache
import re
from dataclasses import dataclass

_ALIAS = re.compile(r"^(#loc\d*) = loc\((.*)\)$")
_STRING = re.compile(r'"((?:[^"\\]|\\.)*)"')
_POSITION = re.compile(r":(\d+):(\d+)(?: to (?:(\d+):)?:?(\d+))?")
_REFERENCE = re.compile(r"#loc\d*")


@dataclass(frozen=True)
class Frame:
    """One source position; `name` is the variable that the statement assigns, if known."""

    file: str
    line: int
    name: str | None = None


class Locations:
    """The alias table of one module's text."""

    def __init__(self, lines: list[str]) -> None:
        self._aliases: dict[str, str] = {}
        for line in lines:
            match = _ALIAS.match(line)
            if match:
                self._aliases[match.group(1)] = match.group(2)
        self._frames: dict[str, tuple[Frame, ...]] = {}

    def frames(self, text: str) -> tuple[Frame, ...]:
        """Frames of the text inside `loc(...)`, outermost (the kernel's own statement) first."""
        found = self._frames.get(text)
        if found is None:
            found = self._frames[text] = tuple(self._parse(text, 0)[0])
        return found

    def name(self, text: str) -> str | None:
        """The name of a named location (of a kernel argument: its Python name), else None."""
        text = self._aliases.get(text, text)
        match = _STRING.match(text)
        return match.group(1) if match and not _POSITION.match(text, match.end()) else None

    def _parse(self, text: str, at: int) -> tuple[list[Frame], int]:
        if text.startswith("callsite(", at):
            callee, at = self._parse(text, at + len("callsite("))
            caller, at = self._parse(text, at + len(" at "))
            return caller + callee, at + 1
        if text.startswith("fused", at):
            first, at = self._parse(text, text.index("[", at) + 1)
            while text.startswith(", ", at):
                _, at = self._parse(text, at + 2)
            return first, at + 1
        if text.startswith("unknown", at):
            return [], at + len("unknown")
        match = _REFERENCE.match(text, at)
        if match:
            return list(self.frames(self._aliases.get(match.group(0), "unknown"))), match.end()
        match = _STRING.match(text, at)
        if not match:
            return [], len(text)
        at = match.end()
        if text.startswith("(", at):  # a name around a location: the outer name wins
            inner, at = self._parse(text, at + 1)
            if inner:
                inner[-1] = Frame(inner[-1].file, inner[-1].line, match.group(1))
            return inner, at + 1
        position = _POSITION.match(text, at)
        if position:
            return [Frame(match.group(1), int(position.group(1)))], position.end()
        return [], at


def source_line(file: str, line: int) -> str:
    """The source text of a statement's first line, stripped; "" if the file cannot be read."""
    return linecache.getline(file, line).strip()
