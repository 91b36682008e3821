"""Element types of TTIR: what a value looks like in a NumPy register and in memory.

An element is named as in the text (`ir.types.Type.element`): "i1", "f32", "bf16", "!tt.ptr<f32>".

Register format: bool for i1, intN, float16/32/64; bf16 and fp8 are held as float32 that is already
rounded to the type; a pointer is an int64 address. Memory format: uint8 for i1, uint16 bits for
bf16, uint8 bits for fp8.
"""

from __future__ import annotations

import functools
import re
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]

_REGISTER: dict[str, type[np.generic]] = {
    "i1": np.bool_,
    "i8": np.int8,
    "i16": np.int16,
    "i32": np.int32,
    "i64": np.int64,
    "index": np.int64,
    "f16": np.float16,
    "f32": np.float32,
    "f64": np.float64,
    "bf16": np.float32,
    "f8E5M2": np.float32,
    "f8E4M3FN": np.float32,
    "f8E4M3FNUZ": np.float32,
    "f8E5M2FNUZ": np.float32,
}
_FP8 = {
    "f8E5M2": "float8_e5m2",
    "f8E4M3FN": "float8_e4m3fn",
    "f8E4M3FNUZ": "float8_e4m3fnuz",
    "f8E5M2FNUZ": "float8_e5m2fnuz",
}
_FP8_MAX = {"f8E5M2": 57344.0, "f8E4M3FN": 448.0, "f8E4M3FNUZ": 240.0, "f8E5M2FNUZ": 57344.0}
_MEMORY: dict[str, type[np.generic]] = {
    **_REGISTER,
    "i1": np.uint8,
    "bf16": np.uint16,
    **dict.fromkeys(_FP8, np.uint8),
}
ROUNDED = frozenset({"bf16", *_FP8})  # types whose register is wider than the type

_UNSIGNED: dict[np.dtype[Any], type[np.generic]] = {
    np.dtype(np.bool_): np.uint8,
    np.dtype(np.int8): np.uint8,
    np.dtype(np.int16): np.uint16,
    np.dtype(np.int32): np.uint32,
    np.dtype(np.int64): np.uint64,
}


def is_pointer(elem: str) -> bool:
    return elem.startswith("!tt.ptr<")


def register_dtype(elem: str) -> np.dtype[Any]:
    """NumPy dtype of a value of type `elem` while a kernel runs. KeyError: no such type."""
    return np.dtype(np.int64 if is_pointer(elem) else _REGISTER[elem])


def memory_dtype(elem: str) -> np.dtype[Any]:
    """NumPy dtype of a value of type `elem` in memory. KeyError: no such type."""
    return np.dtype(np.int64 if is_pointer(elem) else _MEMORY[elem])


def supported(elem: str) -> bool:
    return is_pointer(elem) or elem in _REGISTER


def bits(elem: str) -> int:
    """Width in bits (i1 is 1)."""
    if is_pointer(elem) or elem == "index":
        return 64
    found = re.search(r"[if](\d+)", elem)
    assert found is not None
    return int(found.group(1))


def unsigned(x: Array) -> Array:
    """The same bits as an unsigned array."""
    return x.astype(_UNSIGNED[x.dtype]) if x.dtype == bool else x.view(_UNSIGNED[x.dtype])


def torch_view(x: Array) -> Any:
    """A torch tensor of `x`; copies where torch cannot alias it (negative strides, read-only)."""
    import torch

    x = np.ascontiguousarray(x)
    return torch.from_numpy(x if x.flags.writeable else x.copy())


@functools.cache
def _fp8_values(elem: str) -> Array:
    """The 256 values of an fp8 type as float32."""
    import torch

    codes = torch.arange(256, dtype=torch.int32).to(torch.uint8)
    values: Array = codes.view(getattr(torch, _FP8[elem])).float().numpy()
    return values


def to_memory(x: Array, elem: str) -> Array:
    """Register -> memory format."""
    if elem == "bf16":
        import torch

        narrow = torch_view(x).to(torch.bfloat16)
        result: Array = narrow.view(torch.int16).numpy().view(np.uint16)
        return result
    if elem in _FP8:
        import torch

        bytes_: Array = torch_view(x).to(getattr(torch, _FP8[elem])).view(torch.uint8).numpy()
        return bytes_
    return x.astype(memory_dtype(elem), copy=False)


def from_memory(m: Array, elem: str) -> Array:
    """Memory -> register format."""
    if elem == "bf16":
        return (m.astype(np.uint32) << np.uint32(16)).view(np.float32)
    if elem in _FP8:
        return _fp8_values(elem)[m]
    if elem == "i1":
        return m != 0
    return m


def round_to(x: Array, elem: str) -> Array:
    """Round a float32 register to the nearest value of `elem` where the type is narrower. Fp8
    saturates (also infinities), like NVIDIA's `cvt.rn.satfinite` that Triton emits
    (third_party/nvidia ElementwiseOpToLLVM.cpp)."""
    if elem == "bf16":
        import torch

        rounded: Array = torch_view(x).to(torch.bfloat16).float().numpy()
        return rounded
    if elem in _FP8:
        limit = np.float32(_FP8_MAX[elem])
        return from_memory(to_memory(np.clip(x, -limit, limit), elem), elem)  # keeps NaN
    return x


def truncate_to(x: Array, elem: str) -> Array:
    """Round a float32 or float64 register towards zero to bf16 or f16 (`rounding = rtz`)."""
    if elem == "bf16":
        word = np.ascontiguousarray(x, np.float32).view(np.uint32) & np.uint32(0xFFFF0000)
        return np.where(np.isnan(x), np.float32(np.nan), word.view(np.float32))
    if elem == "f16":
        near = x.astype(np.float16)
        over = np.abs(near).astype(x.dtype) > np.abs(x)
        return np.where(over, np.nextafter(near, np.float16(0)), near)
    return round_to(x.astype(register_dtype(elem)), elem)


def number(value: Any, elem: str) -> Array:
    """A one-element array (shape [1]) of a launch argument; integers wrap to the type's width."""
    dtype = register_dtype(elem)
    if isinstance(value, int) and dtype.kind == "i":
        width = 64 if is_pointer(elem) else bits(elem)
        value &= (1 << width) - 1
        if value >> (width - 1):
            value -= 1 << width
    return round_to(np.array([value]).astype(dtype), elem)
