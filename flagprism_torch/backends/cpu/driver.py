"""The Triton driver `cpu` and its launcher.

Interface relied on: triton/backends/driver.py, class DriverBase, and how CompiledKernel
(triton/compiler/compiler.py) and TritonCompileResult.make_launcher
(torch/_inductor/runtime/triton_heuristics.py) call `launcher_cls` and `utils`.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar

from triton.backends.compiler import GPUTarget
from triton.backends.driver import DriverBase

_BENCH_RUNS = 3
_C_TYPES = {
    "i1": "int8_t",
    "i8": "int8_t",
    "i16": "int16_t",
    "i32": "int32_t",
    "i64": "int64_t",
    "u1": "uint8_t",
    "u8": "uint8_t",
    "u16": "uint16_t",
    "u32": "uint32_t",
    "u64": "uint64_t",
    "fp16": "double",
    "bf16": "double",
    "fp32": "double",
    "f32": "double",
    "fp64": "double",
}


class CPUUtils:
    """What Triton asks of a device: its properties, and loading a compiled kernel."""

    @staticmethod
    def get_device_properties(device: int) -> dict[str, int]:
        return {
            "max_shared_mem": 1 << 40,
            "multiprocessor_count": 1,
            "warpSize": 1,
            "max_num_regs": 1 << 30,
            "sm_clock_rate": 1,
            "mem_clock_rate": 1,
            "mem_bus_width": 64,
        }

    @staticmethod
    def load_binary(
        name: str, binary: bytes | str, shared: int, device: int
    ) -> tuple[Any, Any, int, int, int]:
        """(module, function, registers, spills, most threads). Raises UnsupportedOpError."""
        from .kernel import kernel_of

        kernel = kernel_of(binary.decode() if isinstance(binary, bytes) else binary)
        return kernel, kernel, 0, 0, 1 << 30

    @staticmethod
    def unload_module(module: Any) -> None:
        """Nothing to free."""


class CPULauncher:
    """Calls a kernel with the arguments that its TTIR function takes.

    `signature` values name every positional argument, constexpr ones included: those are passed at
    a launch but are no parameters of the function. An argument that a twin adds is simply one more
    entry at the end.
    """

    alive: ClassVar[weakref.WeakSet[CPULauncher]] = weakref.WeakSet()  # one per loaded kernel

    def __init__(self, src: Any, metadata: Any) -> None:
        self.signature = tuple(src.signature.values())
        self.alive.add(self)

    def __call__(
        self,
        grid_0: int,
        grid_1: int,
        grid_2: int,
        stream: int,
        function: Any,
        packed_metadata: Any,
        launch_metadata: Any,
        enter_hook: Callable[[Any], None] | None,
        exit_hook: Callable[[Any], None] | None,
        *args: Any,
    ) -> None:
        if len(args) != len(self.signature):
            raise TypeError(
                f"kernel {function.name} has {len(self.signature)} launch arguments "
                f"({', '.join(map(str, self.signature))}), got {len(args)}"
            )
        if enter_hook is not None:
            enter_hook(launch_metadata)
        passed = [
            x for kind, arg in zip(self.signature, args, strict=True) for x in _flat(kind, arg)
        ]
        function((int(grid_0), int(grid_1), int(grid_2)), passed)
        if exit_hook is not None:
            exit_hook(launch_metadata)


def _flat(kind: Any, arg: Any) -> Iterator[Any]:
    """The function parameters behind one launch argument."""
    if kind == "constexpr":
        return
    if isinstance(kind, tuple):
        for inner, value in zip(kind, arg, strict=True):
            yield from _flat(inner, value)
    elif isinstance(kind, str) and kind.startswith("tensordesc"):
        yield from _descriptor(arg)
    else:
        yield arg


def _descriptor(descriptor: Any) -> Iterator[Any]:
    """What the pass rewrite-tensor-descriptor-to-pointer makes of a descriptor: base, shape,
    strides, flags; then the frontend's own shape and strides (the argument is flattened)."""
    shape = [int(n) for n in descriptor.shape]
    strides = [int(n) for n in descriptor.strides]
    yield descriptor.base
    yield from shape + strides
    yield getattr(descriptor, "padding", "zero") == "nan"
    if _has_rounding_flag():
        yield bool(getattr(descriptor, "round_f32_to_tf32", False))
    yield from shape + strides


def _has_rounding_flag() -> bool:
    from dataclasses import fields

    from triton.tools.tensor_descriptor import TensorDescriptor

    return any(f.name == "round_f32_to_tf32" for f in fields(TensorDescriptor))


class CPUDriver(DriverBase):
    """Registered as `triton.backends.backends["cpu"].driver`."""

    launcher_cls = CPULauncher

    def __init__(self) -> None:
        self.utils = CPUUtils()
        super().__init__()

    @staticmethod
    def is_active() -> bool:
        """Only where torch sees no accelerator that Triton has a driver of its own for."""
        import torch

        xpu = getattr(torch, "xpu", None)
        return not torch.cuda.is_available() and not (xpu is not None and xpu.is_available())

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cpu", 0, 32)

    def get_current_device(self) -> int:
        return 0

    def set_current_device(self, device: int) -> None:
        """There is one device."""

    def get_current_stream(self, device: int | None = None) -> int:
        return 0

    def get_active_torch_device(self) -> Any:
        import torch

        return torch.device("cpu")

    def get_device_interface(self) -> Any:
        from torch._dynamo.device_interface import CpuInterface

        return CpuInterface

    def map_python_to_cpp_type(self, ty: str) -> str:
        return "void*" if ty.startswith("*") else _C_TYPES[ty]

    def get_benchmarker(self) -> Callable[..., Any]:
        return benchmark

    def get_empty_cache_for_benchmark(self) -> Any:
        import torch

        return torch.empty(1, dtype=torch.int32)

    def clear_cache(self, cache: Any) -> None:
        cache.zero_()


def benchmark(
    fn: Callable[[], Any], quantiles: Sequence[float] | None = None, **ignored: Any
) -> float | list[float]:
    """Milliseconds of a call: the mean of a few runs, or the quantiles asked for."""
    fn()
    times = []
    for _ in range(_BENCH_RUNS):
        start = time.perf_counter()
        fn()
        times.append((time.perf_counter() - start) * 1e3)
    if quantiles is None:
        return sum(times) / len(times)
    times.sort()
    return [times[min(int(q * len(times)), len(times) - 1)] for q in quantiles]
