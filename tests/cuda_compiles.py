"""Child of test_cuda_compile.py: compile kernels and their twins for a GPU that is not there.

`python cuda_compiles.py FOLDER` prints one JSON object: group of kernels -> kernel -> facts about
the plain and the instrumented compilation. FOLDER has Inductor's sources (inductor_sources.py).
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import triton
from cuda_kernels import KERNELS
from triton.backends import backends
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from flagprism_torch.instrument.twin import Recipe, TwinSource

TARGETS = {"cuda": GPUTarget("cuda", 90, 32), "hip": GPUTarget("hip", "gfx942", 64)}
BINARY = {"cuda": "cubin", "hip": "hsaco"}
RECIPE = {"level": 1, "max_values": 64, "histograms": False}

_ENTRY = re.compile(r"tt\.func public @\w+\((.*?)\) attributes", re.S)
_ARGUMENT = re.compile(r"%(\w+): (!tt\.ptr<\w+>|\w+)")
_ALIAS = re.compile(r"^(#\w+) = #ttg\.(\w+)<\{(.*)\}>$", re.M)
_CONVERT = re.compile(r"convert_layout %\S+ .*?: tensor<([\dx]+)\S+, (.*?)> -> tensor<\S+, (.*)>")
_FIELDS = ("sizePerThread", "threadsPerWarp", "warpsPerCTA")


def conversions(ttgir: str) -> int:
    """Layout conversions that move data between threads, outside of branches: those that probes
    add are for the rare case.

    Two kinds do not: of one element, which every thread has; and between a row per thread without
    its second dimension and a one-dimensional layout that maps elements to the same threads.
    """
    text = re.sub(r" loc\(.*$", "", ttgir, flags=re.M)
    text = re.sub(r"^( *)(?:%\S+ = )?scf\.if .*?^\1\}$", "", text, flags=re.M | re.S)
    layouts = {name: (kind, fields) for name, kind, fields in _ALIAS.findall(text)}

    def meaning(layout: str) -> Any:
        sliced = re.match(r"#ttg\.slice<\{dim = (\d), parent = (#\w+)\}>$", layout)
        kind, fields = layouts.get(sliced[2] if sliced else layout, ("", ""))
        if kind != "blocked":
            return layout
        sizes = [
            [int(n) for n in re.search(rf"{field} = \[(.*?)\]", fields)[1].split(",")]
            for field in _FIELDS
        ]
        if sliced:
            along = [size.pop(int(sliced[1])) for size in sizes]
            if along != [1, 1, 1]:
                return layout
        return sizes if len(sizes[0]) == 1 else layout

    return sum(
        set(shape) != set("1x") and meaning(old) != meaning(new)
        for shape, old, new in _CONVERT.findall(text)
    )


def facts(kernel: Any, backend: str) -> dict[str, Any]:
    """What the tests look at in one compilation."""
    entry = _ENTRY.search(kernel.asm["ttir"])
    assert entry
    found = {
        "arguments": _ARGUMENT.findall(entry[1]),
        "binary": len(kernel.asm[BINARY[backend]]),
        "conversions": conversions(kernel.asm["ttgir"]),
        "shared": kernel.metadata.shared,
    }
    if backend == "cuda":
        ptx = kernel.asm["ptx"]
        header = ptx[ptx.index(".entry") : ptx.index("{", ptx.index(".entry"))]
        found |= {
            "parameters": re.findall(r"\.param \.(\w+)", header),
            "copies": len(re.findall(r"\bcp\.async\.c[ag]\.", ptx)),
            "products": len(re.findall(r"\bwgmma\.mma_async\.", ptx)),
        }
    return found


def compile_both(
    fn: Any, signature: Any, constants: Any, attrs: Any, target: Any, options: Any, recipe: Any
) -> dict[str, Any]:
    """Facts about a kernel and its twin; `recipe`: fields that differ from `RECIPE`."""
    plain = ASTSource(fn, signature, constants, attrs)
    twin = TwinSource(fn, signature, constants, attrs, Recipe(**{**RECIPE, **recipe}))
    out = {
        name: facts(triton.compile(source, target=target, options=options), target.backend)
        for name, source in (("plain", plain), ("twin", twin))
    }
    assert twin.table is not None
    roles = [op.role for op in twin.table.ops]
    return out | {"roles": {role: roles.count(role) for role in roles}}


def compile_cases(backend: str, names: list[str]) -> dict[str, Any]:
    out = {}
    for name in names:
        case = KERNELS[name]
        options = {"num_warps": case.warps}
        out[name] = compile_both(case.fn, *case.arguments(), TARGETS[backend], options, case.recipe)
    return out


def main(folder: Path) -> None:
    from inductor_sources import compile_all

    found = {
        "triton": triton.__version__,
        "cuda": compile_cases("cuda", list(KERNELS)),
        "inductor": compile_all(folder),
        "hip": compile_cases("hip", ["vadd", "softmax"]) if "amd" in backends else None,
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
