"""The only door to the C++ extension (csrc/): one typed function per operator.

Arguments are validated here, because an error raised behind the stable ABI reaches Python as a
RuntimeError without its text when the library targets a torch below 2.13
(torch/csrc/stable/ops.h wraps every dispatcher call in STABLE_TORCH_ERROR_CODE_CHECK).

The library has no Python symbols: it is loaded by torch, at first use, not imported.
"""

from __future__ import annotations

import functools
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import Any

import torch

from ..errors import ExtensionMissingError
from .layout import HIST_BUCKETS, RECORD_WORDS

PACKAGE = Path(__file__).resolve().parent.parent


def library_path() -> Path:
    """The built library, `flagprism_torch/_C.abi3.so` (no abi3 on free-threaded Python).

    Raises:
        ExtensionMissingError: if it has not been built.
    """
    for suffix in (".abi3.so", *EXTENSION_SUFFIXES):
        path = PACKAGE / f"_C{suffix}"
        if path.exists():
            return path
    raise ExtensionMissingError(f"no _C*.so in {PACKAGE}")


@functools.cache
def _ops() -> Any:
    path = library_path()
    try:
        torch.ops.load_library(str(path))
    except OSError as error:  # torch/_ops.py, load_library: the loader's own text is the cause
        raise ExtensionMissingError(f"{path.name}: {error.__cause__ or error}") from error
    return torch.ops.flagprism_torch


@functools.cache
def _check_device(device: torch.device) -> None:
    # Cached: this runs once per launch, the answer does not change in a process.
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    allowed = ["cpu"]
    if accelerator is not None:
        count = torch.accelerator.device_count()
        allowed += [accelerator.type, *(f"{accelerator.type}:{i}" for i in range(count))]
    if device != torch.device("cpu", 0) and str(device) not in allowed:
        raise ValueError(f"device={str(device)!r} is not available; allowed: {', '.join(allowed)}")


def _check_count(name: str, value: Any, low: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(
            f"{name}={value!r} has type {type(value).__name__}; allowed: an int from {low} up"
        )
    if value < low:
        raise ValueError(f"{name}={value!r} is out of range; allowed: {low} and more")


def _check_tensor(name: str, value: Any, dtype: torch.dtype, shape: tuple[int | None, ...]) -> None:
    """A contiguous CPU tensor; None in `shape` stands for any extent."""
    if not isinstance(value, torch.Tensor):
        raise TypeError(f"{name} has type {type(value).__name__}; allowed: a torch.Tensor")
    if value.dtype != dtype:
        raise TypeError(f"{name} has dtype {value.dtype}; allowed: {dtype}")
    if value.device.type != "cpu":
        raise ValueError(f"{name} is on {value.device}; allowed: cpu (see copy_to_host)")
    fits = value.dim() == len(shape) and all(
        want is None or have == want for have, want in zip(value.shape, shape, strict=False)
    )
    if not fits:
        wanted = ", ".join("any" if extent is None else str(extent) for extent in shape)
        raise ValueError(f"{name} has shape {tuple(value.shape)}; allowed: ({wanted})")
    if not value.is_contiguous():
        raise ValueError(f"{name} has strides {value.stride()}; allowed: a contiguous tensor")


def _check_index(index: Any, rows: int, totals: int) -> None:
    _check_tensor("index", index, torch.int64, (rows,))
    if rows == 0:
        return
    low, high = (int(bound) for bound in index.aminmax())
    if low < 0 or high >= totals:
        bad = low if low < 0 else high
        raise ValueError(f"index has the value {bad}; allowed: 0 to {totals - 1} (rows of totals)")


def new_buffer(words: int, device: torch.device | str) -> torch.Tensor:
    """A zeroed int32 tensor [words] on `device`, allocated and zeroed on its current stream.

    Nothing waits for the device. Zeroed memory is a valid set of empty records and histograms.

    Args:
        words: length in 32-bit words, from 1 up.
        device: "cpu" or the machine's accelerator, with or without an index.

    Raises:
        TypeError, ValueError: naming the argument, its value and what is allowed.
        ExtensionMissingError: if the C++ extension is not built.
    """
    _check_count("words", words, 1)
    if not isinstance(device, (torch.device, str)):
        raise TypeError(
            f"device={device!r} has type {type(device).__name__}; allowed: torch.device or str"
        )
    try:
        device = torch.device(device)
    except RuntimeError as error:
        raise ValueError(f"device={device!r} is no device: {error}") from error
    _check_device(device)
    with torch.inference_mode(False):  # buffers outlive the mode they are first needed in
        return _ops().new_buffer(words, device)


def copy_to_host(source: torch.Tensor) -> torch.Tensor:
    """A host tensor of the same shape and dtype that receives the values of `source`.

    From an accelerator the result is pinned and the copy is only queued on the device's current
    stream: record a `torch.Event` after the call and wait for it before reading. A CPU source is
    copied at once (a torch without accelerator cannot pin memory).

    Args:
        source: contiguous tensor of any dtype and device.

    Raises:
        TypeError, ValueError: if `source` is no contiguous tensor.
        ExtensionMissingError: if the C++ extension is not built.
    """
    if not isinstance(source, torch.Tensor):
        raise TypeError(f"source has type {type(source).__name__}; allowed: a torch.Tensor")
    if not source.is_contiguous():
        raise ValueError(f"source has strides {source.stride()}; allowed: a contiguous tensor")
    return _ops().copy_to_host(source)


def fold(scratch: torch.Tensor, out: torch.Tensor, slots: int, ops: int) -> None:
    """Overwrite `out` with the merge of the records of all slots, one record per op. CPU only.

    The result does not depend on the number of threads, to the last bit.

    Args:
        scratch: int32 [slots * ops * 24], records in [slot][op] order.
        out: int32 [ops * 24], overwritten.
        slots: programs with a record of their own, from 0 up (0 leaves empty records).
        ops: records per slot, from 1 up.

    Raises:
        TypeError, ValueError: naming the argument, its value and what is allowed.
        ExtensionMissingError: if the C++ extension is not built.
    """
    _check_count("slots", slots, 0)
    _check_count("ops", ops, 1)
    _check_tensor("scratch", scratch, torch.int32, (slots * ops * RECORD_WORDS,))
    _check_tensor("out", out, torch.int32, (ops * RECORD_WORDS,))
    _ops().fold(scratch, out, slots, ops)


def merge(records: torch.Tensor, index: torch.Tensor, totals: torch.Tensor) -> None:
    """Merge `records[i]` into `totals[index[i]]`, in the order of i. CPU only.

    What merging means is in records/layout.py: counters and sums add up, keys and `first` take the
    unsigned maximum, sums of squares are brought to the larger of both scales by an exact power of
    two. Places of different launches do not compare, so ignore `first` after merging across
    launches.

    Args:
        records: int32 [n, 24].
        index: int64 [n], rows of `totals`; a row may occur any number of times.
        totals: int32 [m, 24], updated in place.

    Raises:
        TypeError, ValueError: naming the argument, its value and what is allowed.
        ExtensionMissingError: if the C++ extension is not built.
    """
    _check_tensor("records", records, torch.int32, (None, RECORD_WORDS))
    _check_tensor("totals", totals, torch.int32, (None, RECORD_WORDS))
    _check_index(index, records.shape[0], totals.shape[0])
    _ops().merge(records, index, totals)


def merge_histograms(counts: torch.Tensor, index: torch.Tensor, totals: torch.Tensor) -> None:
    """Add `counts[i]` to `totals[index[i]]`. CPU only.

    Args:
        counts: int64 [n, 64], lanes per binade.
        index: int64 [n], rows of `totals`; a row may occur any number of times.
        totals: int64 [m, 64], updated in place.

    Raises:
        TypeError, ValueError: naming the argument, its value and what is allowed.
        ExtensionMissingError: if the C++ extension is not built.
    """
    _check_tensor("counts", counts, torch.int64, (None, HIST_BUCKETS))
    _check_tensor("totals", totals, torch.int64, (None, HIST_BUCKETS))
    _check_index(index, counts.shape[0], totals.shape[0])
    _ops().merge_histograms(counts, index, totals)


def record_layout() -> tuple[tuple[int, ...], int]:
    """(byte offset of each field in declaration order, bytes of a record), as compiled in C++."""
    *offsets, size = _ops().record_layout().tolist()
    return tuple(offsets), size
