"""Markers of extern calls: as for launches, one comment before each `extern_kernels.*` call.

What is written is the kernel name as called (`extern_kernels.addmm`) and the owners of the node; a
call has no statements. Relied on (torch 2.11 to 2.14): torch/_inductor/ir.py
`ExternKernel.codegen_comment(wrapper, ...)`, called just before the line of the call is written.
"""

from __future__ import annotations

import functools
from typing import Any

from flagprism_torch.provenance import markers
from flagprism_torch.provenance.statements import Point, Recorder, _fx, _GraphNotes

PREFIX = "extern_kernels."


def points(recorder: Recorder) -> list[Point]:
    """What to wrap; nothing, and a reason in `recorder.missing`, in a torch without it."""
    from torch._inductor import ir

    if not hasattr(ir.ExternKernel, "codegen_comment"):
        recorder.missing.append("extern calls: no ir.ExternKernel.codegen_comment")
        return []

    def wrap(original: Any) -> Any:
        @functools.wraps(original)
        def codegen_comment(node: Any, wrapper: Any, *args: Any, **kwargs: Any) -> None:
            original(node, wrapper, *args, **kwargs)
            try:
                name = str(getattr(node, "python_kernel_name", None))
                if name.startswith(PREFIX) and getattr(wrapper, "comment", "#") == "#":
                    wrapper.make_comment(markers.encode(_marker(node, name)))
            except Exception as error:  # provenance must never break a compilation
                recorder._failed("extern call", error)

        return codegen_comment

    return [Point(ir.ExternKernel, "codegen_comment", wrap, "launch")]


def _marker(node: Any, name: str) -> markers.Marker:
    notes = _GraphNotes.current()
    marker = notes.marker(name)
    main = getattr(node, "origin_node", None)  # `origins` has its operands' views too
    found = _fx([main]) or notes.sorted(_fx(node.origins))
    marker.owners = [notes.owner(origin) for origin in found]
    buffers = [notes.inputs.get(tensor.get_name()) for tensor in node.inputs]
    marker.inputs = {f"in{n}": known for n, known in enumerate(buffers) if known is not None}
    return marker
