"""Full values as `.npy` files with an index, `tensor_index.json` (docs/full-values.md)."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from ..records.full_values import FullLaunch, FullValue, Refused
from ..records.reassembly import worth_writing

SCHEMA_VERSION = 1
LAYOUT = "[program][execution][lane, row-major]"
INDEX = "tensor_index.json"

Array = np.ndarray[Any, Any]


class NpyWriter:
    """Writes the values of each launch into a folder of their own below `<logdir>/full_values`; if
    an earlier session was there, below `full_values-2` and so on."""

    def __init__(self, logdir: Path) -> None:
        self._logdir = logdir
        self._root: Path | None = None

    def write(self, values: Sequence[FullValue]) -> None:
        """Write the values of one launch, which then read their arrays from the files.

        The index comes last: a folder without one is not finished.

        Raises:
            OSError: a file could not be written; the values stay in memory.
        """
        if not values:
            return
        launch = values[0].about
        folder = self._folder() / f"{launch.number:06d}_{_plain(launch.kernel)}"
        folder.mkdir(parents=True)
        files = _Files(folder)
        programs = files.put("programs", launch.programs)
        listed, moves = [], []
        for value in values:
            stem = f"{value.entry.op_id:03d}_{_plain(value.variable or value.entry.op)}"
            kept = {what: files.put(f"{stem}.{what}", array) for what, array in _arrays(value)}
            counts = files.put(f"{stem}.executions", value.executions)
            listed.append(_entry(value, stem, files, kept, counts))
            moves.append(kept)
        index = {**_header(launch, programs.name), "entries": listed}
        unfinished = folder / f"{INDEX}.part"
        unfinished.write_text(json.dumps(index, indent=1) + "\n")
        unfinished.rename(folder / INDEX)
        for value, kept in zip(values, moves, strict=True):
            value.move(kept)

    def finish(self, refused: Sequence[Refused]) -> None:
        """List the launches that were selected and are not here, in `refused.json`.

        Raises:
            OSError: the file could not be written.
        """
        if refused:
            listed = [asdict(launch) for launch in refused]
            text = json.dumps({"schema_version": SCHEMA_VERSION, "refused": listed}, indent=1)
            (self._folder() / "refused.json").write_text(text + "\n")

    def _folder(self) -> Path:
        if self._root is None:
            number, found = 1, self._logdir / "full_values"
            while found.exists():
                number += 1
                found = self._logdir / f"full_values-{number}"
            found.mkdir(parents=True)
            self._root = found
        return self._root


class _Files:
    """Writes arrays, each once."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._known: dict[int, tuple[Array, Path]] = {}  # the array keeps its id taken

    def put(self, name: str, array: Array) -> Path:
        known = self._known.get(id(array))
        if known is None:
            path = self._folder / f"{name}.npy"
            np.save(path, array, allow_pickle=False)
            known = self._known[id(array)] = (array, path)
        return known[1]


def _arrays(value: FullValue) -> list[tuple[str, Array]]:
    """The arrays of a value that are more than what can be told without them."""
    found: list[tuple[str, Array]] = [("values", value.array)]
    if value.has("mask"):
        found.append(("mask", value.mask))
    for what in ("active", "offsets"):
        array = getattr(value, what) if value.has(what) else None
        if array is not None:
            found.append((what, array))
    return found


def _header(launch: FullLaunch, programs: str) -> dict[str, Any]:
    return {
        "schema_version": SCHEMA_VERSION,
        "launch": launch.number,
        "step": launch.step,
        "kernel": launch.kernel,
        "site": launch.site,
        "call": launch.call,
        "grid": list(launch.grid),
        "programs": programs,
        "layout": LAYOUT,
    }


def _entry(
    value: FullValue, stem: str, files: _Files, kept: dict[str, Path], counts: Path
) -> dict[str, Any]:
    entry, owner, array = value.entry, value.owner, value.array
    most = int(value.executions.max(initial=0))
    return {
        "op_id": entry.op_id,
        "op": entry.op,
        "role": entry.role,
        "statement": entry.statement,
        "variable": entry.variable,
        "file": entry.file,
        "line": entry.line,
        "module": owner.module,
        "modules": list(owner.modules),
        "phase": owner.phase,
        "aten": owner.aten,
        "model_file": owner.model_file,
        "model_line": owner.model_line,
        "dtype": entry.dtype,
        "stored_as": array.dtype.name,
        "shape": list(array.shape),
        "tile": list(entry.shape),
        "mask": entry.mask,
        "complete": value.complete,
        "executions": most,
        "executions_kept": array.shape[1],
        "files": {**{what: path.name for what, path in kept.items()}, "executions": counts.name},
        "argument": _argument(value),
        "global": _global(value, stem, files),
    }


def _argument(value: FullValue) -> dict[str, Any] | None:
    layout = value.layout
    if layout is None:
        return None
    return {
        "name": layout.name,
        "shape": list(layout.shape),
        "strides": list(layout.strides),
        "dtype": layout.dtype,
    }


def _global(value: FullValue, stem: str, files: _Files) -> dict[str, Any] | None:
    """The tensor put together, if the value was loaded or stored."""
    if value.role == "value" or value.offsets is None:
        return None
    if value.layout is not None and not worth_writing(value.layout, value.array.size):
        return {"reason": "the tensor has far more elements than lanes that were recorded"}
    found = value.global_tensor()
    if found.values is None or found.written is None:
        return {"reason": found.reason}
    # in the order of the indices: files know no strides
    return {
        "values": files.put(f"{stem}.global", np.ascontiguousarray(found.values)).name,
        "written": files.put(f"{stem}.written", np.ascontiguousarray(found.written)).name,
        "elements_written": int(found.written.sum()),
    }


def _plain(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9_.-]", "_", name)[:80]
