"""Child of test_cuda_stub.py: launch kernels through Triton's own NVIDIA launcher onto the stub.

Prints one JSON object: per case, what was passed by the caller, what the stub saw in each phase,
and the record buffers that the session's hooks reserved.
"""

from __future__ import annotations

import contextlib
import json
import os
import struct
import sys
from pathlib import Path
from typing import Any

import torch
import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.backends.nvidia import driver as nvidia
from triton.tools.tensor_descriptor import TensorDescriptor

from flagprism_torch.analysis.coverage import Coverage
from flagprism_torch.config import Config
from flagprism_torch.hooks import jit
from flagprism_torch.hooks.collector import Collector
from flagprism_torch.hooks.patches import Patches
from flagprism_torch.provenance.modules import ModuleNames
from flagprism_torch.records.buffers import RecordBuffers

STREAM = 0x5EED0


class StubDriver:
    """Triton's CUDA utilities and launcher; tensors live on the CPU, so records do too."""

    def __init__(self) -> None:
        self.utils = nvidia.CudaUtils()
        self.launcher_cls = nvidia.CudaLauncher

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return STREAM

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", 90, 32)

    def get_active_torch_device(self) -> torch.device:
        return torch.device("cpu")


class Reserved(RecordBuffers):
    """Record buffers that note what each launch was given."""

    def __init__(self, consume: Any, lost: Any) -> None:
        super().__init__(consume, lost)
        self.given: list[dict[str, int]] = []

    def launch(self, note: Any, device: Any, stream: int, slots: int, call: Any) -> Any:
        def noting(buffer: torch.Tensor) -> Any:
            words = buffer.numel()
            self.given.append({"pointer": buffer.data_ptr(), "words": words, "slots": slots})
            return call(buffer)

        return super().launch(note, device, stream, slots, noting)


@triton.jit
def vadd(x, y, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at, at < n) + tl.load(y + at, at < n), at < n)


@triton.jit
def mixed(x, nothing, BLOCK: tl.constexpr, one, scale, flags, out, wide):
    """A missing pointer, a specialised 1, a float, a bool, 64 bits, and a constexpr in between."""
    at = tl.arange(0, BLOCK) * one
    value = tl.load(x + at).to(tl.float32) * scale
    if flags:
        value += wide
    if nothing is not None:
        value += 1
    tl.store(out + at, value.to(tl.float16))


@triton.jit
def described(source, out, BLOCK: tl.constexpr):
    """A host-side tensor descriptor, which the launcher expands into several parameters."""
    at = tl.arange(0, BLOCK)
    tile = source.load([0, tl.program_id(0) * BLOCK])
    tl.store(out + at[:, None] * BLOCK + at[None, :], tile)


def quick_bench(call: Any, quantiles: Any) -> list[float]:
    call()
    call()
    return [1.0] * len(quantiles)


@triton.autotune(
    configs=[triton.Config({"BLOCK": 128}), triton.Config({"BLOCK": 256}, num_warps=8)],
    key=["n"],
    do_bench=quick_bench,
)
@triton.jit
def tuned(x, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at, at < n) * 2, at < n)


class Probe:
    """Runs one call before, inside, again inside, and after the hooks."""

    def __init__(self) -> None:
        self.log = Path(os.environ["CUDA_STUB_LOG"])
        self.seen = 0

    def launches(self) -> list[dict[str, Any]]:
        lines = self.log.read_text().splitlines() if self.log.exists() else []
        new, self.seen = lines[self.seen :], len(lines)
        return [json.loads(line) for line in new]

    def case(self, call: Any, layout: str, *passed: Any, capacity: int = 65536) -> dict[str, Any]:
        """`layout`: what the kernel must be given, one `struct` format per parameter."""
        formats = layout.split()
        expected = [
            [struct.calcsize(f"<{f}"), struct.pack(f"<{f}", value).hex()]
            for f, value in zip(formats, passed, strict=True)
        ]
        out: dict[str, Any] = {"passed": expected, "phases": {}}
        call()
        out["phases"]["before"] = self.launches()
        with contextlib.ExitStack() as stack:
            collector = Collector(
                Config(record_capacity=capacity, logdir=False), ModuleNames(None), Coverage()
            )
            collector.buffers = Reserved(collector.ledger.add, collector._lost)
            jit.install(Patches(stack), collector)
            call()
            out["phases"]["inside"] = self.launches()
            call()
            out["phases"]["again"] = self.launches()
        call()
        out["phases"]["after"] = self.launches()
        collector.buffers.drain()
        out["buffers"] = collector.buffers.given
        out["recorded"] = [block.launches for block in collector.ledger.blocks()]
        out["coverage"] = collector.coverage.to_dict()
        return out


def cases(probe: Probe) -> dict[str, Any]:
    x, y, out = (torch.zeros(8192) for _ in range(3))
    half = torch.zeros(8192, dtype=torch.float16)
    pointers = [x.data_ptr(), y.data_ptr(), out.data_ptr()]
    square = torch.zeros(64, 64)
    descriptor = TensorDescriptor.from_tensor(square, [16, 16])

    def grid(meta: dict[str, Any]) -> tuple[int]:
        return (triton.cdiv(meta["n"], meta["BLOCK"]),)

    found = {
        "vadd": probe.case(
            lambda: vadd[(4,)](x, y, out, 4096, BLOCK=1024), "Q Q Q i", *pointers, 4096
        ),
        "keywords": probe.case(
            lambda: vadd[grid](n=4097, out=out, y=y, x=x, BLOCK=1024), "Q Q Q i", *pointers, 4097
        ),
        "mixed": probe.case(
            lambda: mixed[(2, 3, 5)](half, None, 256, 1, 0.5, True, half, 1 << 40),
            "Q f ? Q q", half.data_ptr(), 0.5, True, half.data_ptr(), 1 << 40,
        ),
        "described": probe.case(
            lambda: described[(2,)](descriptor, out, BLOCK=16),
            "Q120x i i q q Q", square.data_ptr(), 64, 64, 64, 1, out.data_ptr(),
        ),
        "shared slots": probe.case(
            lambda: vadd[(4,)](x, y, out, 4000, BLOCK=1024), "Q Q Q i", *pointers, 4000, capacity=3
        ),
    }  # fmt: skip
    for n in (1000, 2000):  # a new key is benchmarked inside the hooks
        calls = iter([4096, n, n, n])

        def call(calls: Any = calls) -> None:
            tuned[grid](x, out, next(calls))

        found[f"tuned {n}"] = probe.case(call, "Q Q i", x.data_ptr(), out.data_ptr(), n)
    return found


def main() -> None:
    triton.runtime.driver.set_active(StubDriver())
    result = {"triton": triton.__version__, "stream": STREAM, "cases": cases(Probe())}
    sys.stdout.write(json.dumps(result) + "\n")


if __name__ == "__main__":
    main()
