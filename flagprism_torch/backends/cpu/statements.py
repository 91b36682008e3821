"""From an op to the source statement it came from: `file:line: text`."""

from __future__ import annotations

import functools
from pathlib import Path

from ...ir.locations import source_line
from ...ir.module import Module, Op
from ...ir.text import split_location


@functools.cache
def _triton_folder() -> str:
    import triton

    return str(Path(triton.__file__).parent)


def statement_of(module: Module, op: Op) -> str:
    """`file:line: source line` of `op`, in user code if it came from there; else its TTIR text."""
    outside = [frame for frame in op.frames if not frame.file.startswith(_triton_folder())]
    text = split_location(module.lines[op.line])[0]
    if not op.frames:
        return text
    frame = outside[-1] if outside else op.frames[0]
    return f"{frame.file}:{frame.line}: {source_line(frame.file, frame.line) or text}"
