"""Scanners of MLIR text that respect string literals and brackets."""

from __future__ import annotations

import functools
import re

QUOTED = re.compile(r'"(?:[^"\\]|\\.)*"')
VALUE = re.compile(r"%[A-Za-z0-9_$.\-]+(?:#\d+)?")  # the name of an SSA value at its use
SYMBOL = re.compile(r'@(?:"([^"]+)"|([\w$.\-]+))')  # quoted where the name has other characters
_DEPTH = dict.fromkeys("<({[", 1) | dict.fromkeys("])}>", -1)
_PARENTHESIS = re.compile(rf"{QUOTED.pattern}|[()]")
_LOCATION = re.compile(rf"{QUOTED.pattern}| loc\(")
_ALIAS_AT_END = re.compile(r" loc\((#loc\d*)\)$")


@functools.cache
def _pieces(separator: str) -> re.Pattern[str]:
    """A string, the separator, an arrow (its `>` closes nothing) or a bracket."""
    return re.compile(rf"{QUOTED.pattern}|{re.escape(separator)}|->|[<({{\[\]}})>]")


def split_top(text: str, separator: str) -> list[str]:
    """Split at separators outside of quotes and all kinds of brackets."""
    if separator not in text:
        return [text]
    parts, depth, start = [], 0, 0
    for match in _pieces(separator).finditer(text):
        piece = match.group()
        if piece == separator:
            if not depth:
                parts.append(text[start : match.start()])
                start = match.end()
        else:
            depth += _DEPTH.get(piece, 0)
    parts.append(text[start:])
    return parts


def closing(text: str, at: int) -> int:
    """Index of the `)` for the `(` that stands before `at`; ValueError if there is none."""
    depth = 1
    for match in _PARENTHESIS.finditer(text, at):
        depth += {"(": 1, ")": -1}.get(match.group(), 0)
        if not depth:
            return match.start()
    raise ValueError(f"no closing parenthesis in {text!r}")


def split_location(text: str) -> tuple[str, str | None]:
    """(stripped text without any `loc(...)`, the text inside the last one)."""
    count = text.count(" loc(")
    if not count:
        return text.strip(), None
    tail = _ALIAS_AT_END.search(text)
    if tail and count == 1:
        return text[: tail.start()].strip(), tail.group(1)
    kept, start, at, found = [], 0, 0, None
    while match := _LOCATION.search(text, at):
        at = match.end()
        if match.group() == " loc(":
            end = closing(text, at)
            kept.append(text[start : match.start()])
            found = text[at:end]
            start = at = end + 1
    return "".join([*kept, text[start:]]).strip(), found


def symbol(text: str) -> str:
    """The first symbol name of a text (`@name`), without quotes; ValueError if there is none."""
    match = SYMBOL.search(text)
    if match is None:
        raise ValueError(f"no symbol in {text!r}")
    return match.group(1) or match.group(2)


def header_arguments(line: str) -> tuple[int, int]:
    """Start and end of the argument list in a function header, without its parentheses."""
    match = SYMBOL.search(line)
    if match is None:
        raise ValueError(f"no function name in {line!r}")
    start = line.index("(", match.end()) + 1
    return start, closing(line, start)
