"""Calls that are no Triton kernels: results of `extern_kernels.*` get a row, all others are
counted, so that the coverage can name what stays unseen.

`extern_kernels` (torch/_inductor/select_algorithm.py) is an object whose attributes generated
wrappers look up at every call. They appear when Inductor loads, so they are patched again when it
loads a wrapper (`PyCodeCache.load_by_key_path`, torch/_inductor/codecache.py) and when a wrapper is
first seen. Everything else in a wrapper is counted from its source, once per wrapper.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import torch

from flagprism_torch.hooks.collector import Collector
from flagprism_torch.hooks.patches import Patches
from flagprism_torch.hooks.tensors import tensor_notes
from flagprism_torch.provenance import callsites
from flagprism_torch.records import outputs
from flagprism_torch.records.model import CallSite, Launch, OpEntry, OpTable
from flagprism_torch.records.modes import unseen

SHAPES_OF_A_CALL = 64  # with rows of their own; memory must not grow with every new length


def install(patches: Patches, collector: Collector) -> None:
    """Record extern calls while the patches hold."""
    from torch._inductor.codecache import PyCodeCache

    patched: set[str] = set()
    results = _Results(collector)

    def refresh() -> None:
        module = sys.modules.get("torch._inductor.select_algorithm")
        kernels = getattr(module, "extern_kernels", None)
        for name, value in list(vars(kernels).items()) if kernels is not None else ():
            if name not in patched and callable(value):
                patched.add(name)
                patches.replace(kernels, name, _extern(name, collector, results))

    def loading(original: Any) -> Any:
        def load(*args: Any, **kwargs: Any) -> Any:
            refresh()
            return original(*args, **kwargs)

        return load

    def wrapper_seen(file: str) -> None:
        fresh = {f"extern_kernels.{n}" for n in patched}
        refresh()
        for name, count in callsites.extern_calls(file).items():
            if name not in fresh:  # calls made before the patch, or not by extern_kernels
                collector.coverage.extern(_label(name), count)

    refresh()
    patches.replace(PyCodeCache, "load_by_key_path", loading)
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


def _extern(name: str, collector: Collector, results: _Results) -> Callable[[Any], Any]:
    def recorded(function: Any) -> Any:
        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            result = function(*args, **kwargs)
            reason = collector.pass_reason()
            if reason != "benchmark":
                out = kwargs.get("out")
                written = result if out is None else out
                seen = reason is None and results.note(
                    name, written, (args, kwargs), sys._getframe()
                )
                if not seen:
                    collector.coverage.extern(f"aten.{name}")
            return result

        return call

    return recorded


class _Results:
    """What extern calls wrote: noted in the tensor log, and recorded as a row where it can be."""

    def __init__(self, collector: Collector) -> None:
        self._collector = collector
        self._tables: dict[tuple[str, str], dict[Any, OpTable]] = {}  # by call site

    def note(self, name: str, written: Any, given: Any, frame: FrameType) -> bool:
        """Whether everything that a call wrote has a row. Never raises into the user's program."""
        try:
            with unseen():
                site = self._collector.site(f"extern_kernels.{name}", frame)
                inputs = list(_tensors(given))
                rows = [
                    self._one(site, frame, tensor, number, inputs)
                    for number, tensor in enumerate(_tensors(written))
                ]
        except Exception as error:
            text = f"{type(error).__name__}: {error}".split("\n")[0]
            self._collector.coverage.note(f"results of extern_kernels.{name} have no row: {text}")
            return False
        return bool(rows) and all(rows)

    def _one(
        self,
        site: CallSite,
        frame: FrameType,
        tensor: torch.Tensor,
        index: int,
        inputs: list[torch.Tensor],
    ) -> bool:
        """Note the result with number `index` of a call; True if it is recorded."""
        collector = self._collector
        tables = self._tables.setdefault((site.key, site.kernel), {})
        key = (index, tensor.dtype, tuple(tensor.shape))
        recorded = _recordable(tensor) and collector.config.extern_checks
        if not recorded or (key not in tables and len(tables) >= SHAPES_OF_A_CALL):
            recorded, key = False, (index, tensor.dtype, ())
        table = tables.get(key) or tables.setdefault(key, _table(site, frame, *key))
        grid = (outputs.programs_of(tensor) if recorded else 1, 1, 1)
        names = (str(table.ops[0].pointer), *(f"in{n}" for n in range(len(inputs))))
        tensors = tensor_notes(names, (tensor, *inputs))
        note = Launch(next(collector.numbers), collector.step, site, table, grid, tensors)
        collector.tensors.note(note)
        if recorded:
            stream = _stream(tensor.device)
            collector.buffers.launch(
                note, tensor.device, stream, 0, lambda s: outputs.write(tensor, s, stream)
            )
        return recorded


def _table(
    site: CallSite, frame: FrameType, index: int, dtype: torch.dtype, shape: tuple[int, ...]
) -> OpTable:
    """The result number `index` as if a kernel with one statement had stored it: one execution, on
    a tile of its shape."""
    file, line = callsites.launching_frame(frame) or ("", 0)
    entry = OpEntry(
        op_id=0,
        op="extern",
        dtype=outputs.DTYPES.get(dtype, str(dtype).removeprefix("torch.")),
        shape=shape,
        mask="all",
        file=file,
        line=line,
        variable=None,
        statement=site.kernel,
        role="store",
        pointer=f"out{index}" if index else "out",
        record=0,
    )
    return OpTable(site.kernel, file, line, (entry,))


def _recordable(tensor: torch.Tensor) -> bool:
    """Whether the tensor can be read here: on the CPU, or on the current device."""
    if not outputs.recordable(tensor):
        return False
    accelerator = torch.accelerator.current_accelerator()
    if accelerator is None or tensor.device.type != accelerator.type:
        return tensor.device.type == "cpu"
    return tensor.device.index == torch.accelerator.current_device_index()


def _stream(device: torch.device) -> int:
    from triton.runtime.driver import driver

    return 0 if device.type == "cpu" else int(driver.active.get_current_stream(device.index))


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    """The tensors of a result or of arguments (positional and named), without `out`."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (tuple, list)):
        for member in value:
            yield from _tensors(member)
    elif isinstance(value, dict):
        yield from _tensors([member for name, member in value.items() if name != "out"])


def _passing(what: str, reason: str, collector: Collector) -> Callable[[Any], Any]:
    """Counts the calls of a method as launches that passed through."""

    def counted(original: Any) -> Any:
        @functools.wraps(original)
        def call(self: Any, *args: Any, **kwargs: Any) -> Any:
            collector.coverage.passed(what, reason)
            return original(self, *args, **kwargs)

        return call

    return counted
