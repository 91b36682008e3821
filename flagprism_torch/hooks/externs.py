"""Calls that are no Triton kernels, counted so that the coverage can name what stays unseen.

`extern_kernels` (torch/_inductor/select_algorithm.py) is an object whose attributes generated
wrappers look up at every call; they appear while Inductor compiles, so new ones are patched when a
wrapper is first seen. Everything else in a wrapper is counted from its source, once per wrapper.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

from flagprism_torch.hooks.collector import Collector
from flagprism_torch.hooks.patches import Patches
from flagprism_torch.provenance import callsites


def install(patches: Patches, collector: Collector) -> None:
    """Count extern calls while the patches hold."""
    patched: set[str] = set()

    def refresh() -> None:
        module = sys.modules.get("torch._inductor.select_algorithm")
        kernels = getattr(module, "extern_kernels", None)
        for name, value in list(vars(kernels).items()) if kernels is not None else ():
            if name not in patched and callable(value):
                patched.add(name)
                patches.replace(kernels, name, _counter(f"aten.{name}", collector))

    def wrapper_seen(file: str) -> None:
        fresh = {f"extern_kernels.{n}" for n in patched}
        refresh()
        for name, count in callsites.extern_calls(file).items():
            if name not in fresh:  # calls made before the patch, or not by extern_kernels
                collector.coverage.extern(_label(name), count)

    refresh()
    collector.on_wrapper = wrapper_seen
    graph = getattr(sys.modules.get("torch.cuda"), "CUDAGraph", None)
    if graph is not None and hasattr(graph, "replay"):
        patches.replace(graph, "replay", _passing("<CUDA graph>", "graph replay", collector))
    archive = sys.modules.get("torch.export.pt2_archive._package")
    model = getattr(archive, "AOTICompiledModel", None)
    if model is not None:
        reason = "AOTInductor launches its kernels in C++"
        patches.replace(model, "__call__", _passing("<AOTInductor model>", reason, collector))
    config = sys.modules.get("torch._inductor.config")
    if getattr(config, "cpp_wrapper", False):
        collector.coverage.note("cpp_wrapper is on: its wrappers launch in C++, unseen")


def _label(name: str) -> str:
    for prefix in ("extern_kernels.", "torch.ops.aten."):
        if name.startswith(prefix):
            return "aten." + name.removeprefix(prefix).split(".")[0]
    return name.removeprefix("torch.ops.")


def _counter(label: str, collector: Collector) -> Callable[[Any], Any]:
    def counted(function: Any) -> Any:
        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            collector.coverage.extern(label)
            return function(*args, **kwargs)

        return call

    return counted


def _passing(what: str, reason: str, collector: Collector) -> Callable[[Any], Any]:
    """Counts the calls of a method as launches that passed through."""

    def counted(original: Any) -> Any:
        @functools.wraps(original)
        def call(self: Any, *args: Any, **kwargs: Any) -> Any:
            collector.coverage.passed(what, reason)
            return original(self, *args, **kwargs)

        return call

    return counted
