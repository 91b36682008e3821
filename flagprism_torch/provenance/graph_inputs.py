"""What the program calls the inputs of a compiled graph: `x`, `batch['mask']`.

Dynamo knows each input's source (`L['batch']['mask']`), AOTAutograd's placeholders say which of
them they are (`meta["desc"]`), and a kernel's arguments which placeholder is passed. Relied on
(torch 2.11 to 2.14): `OutputGraph.graphargs`, `GraphArg.source.name`; `PlainAOTInput.idx`,
`TangentAOTInput.output.idx` (torch/_functorch/_aot_autograd/descriptors.py);
`KernelArgs.input_buffers`, `.inplace_buffers`. Parameters and buffers are not named here: their
names are relative to what was compiled, and `tensors.tensor_name` knows better.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

_LOCAL = re.compile(r"^L\['(\w+)'\]")
_OWNED = re.compile(r"\._(?:parameters|buffers)\b")


def names(output: Any) -> tuple[str | None, ...]:
    """Names of the inputs of the graph that Dynamo has just traced (an OutputGraph), in order; None
    for parameters, buffers and values of the bytecode's own."""
    return tuple(_name(getattr(argument, "source", None)) for argument in output.graphargs)


def _name(source: Any) -> str | None:
    text = getattr(source, "name", None)
    text = text() if callable(text) else text
    if not isinstance(text, str):
        return None
    local = _LOCAL.match(text)
    if local is None or local[1].startswith("___") or _OWNED.search(text):
        return None
    return local[1] + text[local.end() :]


def by_buffer(graph: Any, known: tuple[str | None, ...]) -> dict[str, str]:
    """Buffer of an input of a graph (a GraphLowering) -> its name."""
    found = {}
    for node in graph.graph.find_nodes(op="placeholder"):
        name = _described(node.meta.get("desc"), known)
        if name is not None:
            found[str(node.target)] = name
    return found


def _described(desc: Any, known: tuple[str | None, ...]) -> str | None:
    kind = type(desc).__name__
    if kind == "PlainAOTInput" and desc.idx < len(known):
        return known[desc.idx]
    if kind == "TangentAOTInput" and type(desc.output).__name__ == "PlainAOTOutput":
        return f"gradient of output {desc.output.idx}"
    return None


def by_pointer(arguments: Any, inputs: Mapping[str, str]) -> dict[str, str]:
    """Pointer argument of a kernel (KernelArgs) -> name of the graph input that is passed."""
    pointers = dict(arguments.input_buffers)
    for buffer, argument in arguments.inplace_buffers.items():
        pointers[buffer] = getattr(argument, "inner_name", argument)
    return {
        pointer: inputs[buffer]
        for buffer, pointer in pointers.items()
        if buffer in inputs and isinstance(pointer, str)
    }
