"""What probes cost in registers, spills and shared memory, without a GPU.

`python -m benchmarks.registers [NAME...]` compiles the kernels of `benchmarks/kernels.py` and their
twins for sm_90 and prints one table: registers and stack bytes (spills) of a thread, shared memory
of a program, machine instructions, and how many programs a multiprocessor can hold. Compiled and
inspected with the tools in Triton's wheel; nothing is run.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import triton
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from benchmarks import kernels
from flagprism_torch.instrument.twin import Recipe, TwinSource

TARGET = GPUTarget("cuda", 90, 32)
# of one multiprocessor (CUDA C++ Programming Guide, compute capability 9.0)
REGISTERS, SHARED_BYTES, THREADS, PROGRAMS = 65536, 228 << 10, 2048, 32
RECIPES = {
    "plain": None,
    "stores": Recipe(1, 64, False, stores_only=True),
    "all": Recipe(1, 64, False),
    "all, shared": Recipe(1, 64, False, slots=1024),
    "all, hist": Recipe(1, 64, True),
}


# name -> kernel, types of its arguments before the constexprs, constexprs, warps
KERNELS: dict[str, tuple[Any, str, dict[str, int], int]] = {
    "vector add": (kernels.vector_add, "*fp32 *fp32 *fp32 i32", {"BLOCK": 1024}, 4),
    "softmax": (kernels.row_softmax, "*fp32 *fp32 i32", {"BLOCK": 1024}, 4),
    "layernorm": (kernels.layer_norm, "*bf16 *fp32 *fp32 *bf16 i32 fp32", {"BLOCK": 1024}, 4),
    "matmul 64": (
        kernels.matmul, "*fp16 *fp16 *fp16 i32 i32 i32", {"BM": 64, "BN": 64, "BK": 32}, 4,
    ),
    "matmul 128": (
        kernels.matmul, "*fp16 *fp16 *fp16 i32 i32 i32", {"BM": 128, "BN": 128, "BK": 64}, 8,
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Usage:
    """Resources of one compiled kernel. `records`: 0 without probes."""

    records: int
    registers: int
    stack: int
    shared: int
    instructions: int
    threads: int

    @property
    def programs(self) -> int:
        """Programs that fit on one multiprocessor; registers are handed out by 8 per thread."""
        limits = [PROGRAMS, THREADS // self.threads]
        limits.append(REGISTERS // (-(-self.registers // 8) * 8 * self.threads))
        limits.append(SHARED_BYTES // (self.shared + 1024))  # 1 KiB is the system's
        return min(limits)


def usage(name: str, recipe: Recipe | None) -> Usage:
    """Compile one kernel, plain (recipe None) or instrumented."""
    fn, types, constants, warps = KERNELS[name]
    signature = dict(zip(fn.arg_names, types.split(), strict=False))
    signature.update(dict.fromkeys(constants, "constexpr"))
    aligned = [i for i, t in enumerate(types.split()) if t[0] == "*" or t == "i32"]
    attrs = {(i,): [["tt.divisibility", 16]] for i in aligned}
    source: Any = ASTSource(fn, signature, constants, attrs)
    if recipe is not None:
        source = TwinSource(fn, signature, constants, attrs, recipe)
    kernel = triton.compile(source, target=TARGET, options={"num_warps": warps})
    table = getattr(source, "table", None)
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        Path(file.name).write_bytes(kernel.asm["cubin"])
        report = _tool("cuobjdump", "-res-usage", file.name)
        code = _tool("cuobjdump", "-sass", file.name)
    counted = dict(re.findall(r"(REG|STACK|LOCAL):(\d+)", report))
    return Usage(
        records=table.records if table is not None else 0,
        registers=int(counted["REG"]),
        stack=int(counted["STACK"]) + int(counted["LOCAL"]),
        shared=kernel.metadata.shared,
        instructions=len(re.findall(r"^\s+/\*[0-9a-f]{4,}\*/\s+(?!NOP)\S", code, re.M)),
        threads=warps * 32,
    )


def _tool(name: str, *arguments: str) -> str:
    """Output of a tool from Triton's wheel."""
    path = getattr(knobs.nvidia, name).path
    return subprocess.run([path, *arguments], check=True, capture_output=True, text=True).stdout


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("names", nargs="*", help=f"of {', '.join(KERNELS)}")
    names = parser.parse_args().names or list(KERNELS)
    print(f"Triton {triton.__version__}, sm_90\n")
    print("| kernel | probes | records | registers | stack | shared | instructions | programs |")
    print("|---|---|---|---|---|---|---|---|")
    for name in names:
        for probes, recipe in RECIPES.items():
            u = usage(name, recipe)
            print(
                f"| {name} | {probes} | {u.records} | {u.registers} | {u.stack} B | {u.shared} B "
                f"| {u.instructions} | {u.programs} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
