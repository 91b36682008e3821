"""From an op to the source statement it came from: `file:line: text`."""

from __future__ import annotations

import functools
import linecache
import re
from pathlib import Path

from .parse import Module, Op, split_top

_FILE = re.compile(r'^"((?:[^"\\]|\\.)*)":(\d+):\d+')
_NAMED = re.compile(r'^"(?:[^"\\]|\\.)*"\((.*)\)$')
_CALLSITE = re.compile(r"^callsite\((.*)\)$")
_FUSED = re.compile(r"^fused(?:<.*?>)?\[(.*)\]$")


@functools.cache
def _triton_folder() -> str:
    import triton

    return str(Path(triton.__file__).parent)


def frames(module: Module, loc: str) -> list[tuple[str, int]]:
    """(file, line) of a raw location, innermost call first; [] where it is unknown."""
    text = loc.strip()
    if text.startswith("loc(") and text.endswith(")"):
        text = text[4:-1]
    for _ in range(64):  # aliases and names nest
        if text.startswith("#loc"):
            text = module.locations.get(text, "")
            continue
        named = _NAMED.match(text)
        if named is None:
            break
        text = named.group(1)
    place = _FILE.match(text)
    if place:
        return [(place.group(1), int(place.group(2)))]
    call = _CALLSITE.match(text)
    if call:
        callee, _, caller = _partition_at(call.group(1))
        return frames(module, callee) + frames(module, caller)
    fused = _FUSED.match(text)
    if fused:
        for part in split_top(fused.group(1), ", "):
            found = frames(module, part)
            if found:
                return found
    return []


def _partition_at(text: str) -> tuple[str, str, str]:
    parts = split_top(text, " at ")
    return parts[0], " at ", " at ".join(parts[1:])


def statement_of(module: Module, op: Op) -> str:
    """`file:line: source line` of `op`, in user code if it came from there; else its TTIR text."""
    found = frames(module, op.loc)
    outside = [frame for frame in found if not frame[0].startswith(_triton_folder())]
    for file, line in outside or found[::-1]:
        source = linecache.getline(file, line).strip()
        return f"{file}:{line}: {source}" if source else f"{file}:{line}: {_ttir(op)}"
    return _ttir(op)


def _ttir(op: Op) -> str:
    left = ", ".join(op.results) + " = " if op.results else ""
    right = f" : {op.sig}" if op.sig else ""
    return f"{left}{op.name}{op.head}{right}"
