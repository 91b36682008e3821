"""Inductor's kernels for GPUs, on machines without one.

`python inductor_sources.py write FOLDER` lets Inductor generate Triton kernels and writes each to
FOLDER/<model>.<kernel>.py, with the properties of an H100 in place of the CPU's, which is all that
ties a source to its device. Prints the names of the files as JSON.
"""

from __future__ import annotations

import importlib.util
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

H100 = (
    "DeviceProperties(type='cuda', index=0, multi_processor_count=132, cc=90, major=9, "
    "regs_per_multiprocessor=65536, max_threads_per_multi_processor=2048, "
    "max_threads_per_block=1024, warp_size=32)"
)


def softmax(x: torch.Tensor) -> torch.Tensor:
    return torch.softmax(x, -1)


def layernorm_gelu(x: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.gelu(torch.nn.functional.layer_norm(x, x.shape[-1:]))


def dropout(x: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.dropout(x.relu(), 0.1)


def long_reduction(x: torch.Tensor) -> torch.Tensor:
    """Rows too long for one tile: Inductor loops over them."""
    return x.reshape(2, -1).exp().sum(-1)


MODELS: dict[Callable[..., torch.Tensor], tuple[int, ...]] = {
    softmax: (64, 1000),
    layernorm_gelu: (64, 256),
    dropout: (64, 512),
    long_reduction: (256, 4096),
}


class Launched:
    """Takes the place of a kernel; numbers computed with it mean nothing."""

    def run(self, *args: object, **kwargs: object) -> None:
        pass


def write(folder: Path) -> None:
    import torch._inductor.config
    import torch.utils._triton
    from torch._inductor.async_compile import AsyncCompile

    name = ""

    def triton(self: Any, kernel: str, source: str, device_str: str = "cpu") -> Launched:
        swapped, count = re.subn(r"DeviceProperties\(type='cpu'[^)]*\)", H100, source)
        assert count == 1, source
        (folder / f"{name}.{kernel}.py").write_text(swapped)
        return Launched()

    torch._inductor.config.cpu_backend = "triton"
    torch.utils._triton.triton_hash_with_backend = lambda: "none"  # asks for a driver
    AsyncCompile.triton = triton
    for function, shape in MODELS.items():
        name = function.__name__
        torch.compile(function)(torch.randn(shape))


def compile_all(folder: Path) -> dict[str, Any]:
    """Facts (cuda_compiles.py) about the first configuration of every kernel in the folder."""
    import torch._inductor.runtime.triton_helpers as helpers
    from cuda_compiles import TARGETS, compile_both
    from torch._inductor.runtime.triton_heuristics import CachingAutotuner

    helpers.set_driver_to_gpu = lambda: None  # called by the sources; there is no driver
    found = {}
    for file in sorted(folder.glob("*.py")):
        spec = importlib.util.spec_from_file_location(file.stem.replace(".", "_"), file)
        assert spec and spec.loader
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        (tuner,) = (v for v in vars(module).values() if isinstance(v, CachingAutotuner))
        config = tuner.configs[0]
        meta = tuner._create_compile_meta(config)
        options = tuner._create_compile_options(config, meta)
        found[file.stem] = compile_both(
            tuner.fn, meta["signature"], meta["constants"], meta["configs"][0], TARGETS["cuda"],
            options, {},
        )  # fmt: skip
    return found


if __name__ == "__main__":
    write(Path(sys.argv[1]))
    print(json.dumps(sorted(file.name for file in Path(sys.argv[1]).glob("*.py"))))
