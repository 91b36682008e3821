"""Random models in which a function's name tells its module: an oracle for statement owners.

Every leaf applies another function, so a kernel line that calls `libdevice.atan` must belong to the
leaf with `torch.atan`, whatever fusion, recomputation and common subexpressions did. Run as a
script: `python provenance_random.py SEED ...` prints [kernel, statement, want, got] of every such
line that is owned by another module or model line, and how many lines were looked at.
"""

from __future__ import annotations

import importlib.util
import json
import random
import re
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import inductor_codegen as codegen
import torch

from flagprism_torch.provenance import callsites, modules

# Function of a leaf -> names in kernel text that only its forward or backward has.
FUNCTIONS = {
    "sin": ("sin", "cos"),
    "erf": ("erf", "exp"),
    "sinh": ("sinh", "cosh"),
    "atan": ("atan",),
    "tanh": ("tanh",),
    "log1p": ("log1p",),
    "expm1": ("expm1",),
    "asinh": ("asinh",),
    "exp2": ("exp2",),
    "lgamma": ("lgamma",),
    "erfc": ("erfc",),
    "floor": ("floor",),
    "ceil": ("ceil",),
    "sigmoid": ("sigmoid",),
}
CALL = re.compile(r"^\s*(tmp\d+) = .*\b(?:libdevice|tl_math|tl)\.(\w+)\(")
JOINS = ("{a} + {b}", "{a} * {b}", "{a} - {b}.mean(-1, keepdim=True)", "torch.maximum({a}, {b})")
LEAVES = ("torch.{f}({x})", "torch.{f}({x} * 0.5)", "{x} + torch.{f}({x}).sum(-1, keepdim=True)")


def source(seed: int) -> str:
    """Text of a module `Root`: a random tree whose leaves are all different."""
    rng = random.Random(seed)
    free = rng.sample(sorted(FUNCTIONS), k=rng.randint(5, 12))
    lines = ["import torch"]

    def module(depth: int) -> str:
        if depth == 0 or len(free) == 1 or (depth < 3 and rng.random() < 0.4):
            function = free.pop()
            formula = rng.choice(LEAVES).format(f=function, x="x")
            lines.extend(
                (
                    f"class {function}_leaf(torch.nn.Module):",
                    "    def forward(self, x):",
                    f"        return {formula}  # {function}",
                )
            )
            return f"{function}_leaf"
        parts = []
        while free and len(parts) < rng.randint(2, 4):
            parts.append(module(depth - 1))
        name = f"Block{len(lines)}"
        lines.extend((f"class {name}(torch.nn.Module):", "    def __init__(self):"))
        lines.append("        super().__init__()")
        lines.extend(f"        self.part{i} = {part}()" for i, part in enumerate(parts))
        lines.append("    def forward(self, x):")
        known = ["x"]
        for i in range(len(parts)):
            lines.append(f"        y{i} = self.part{i}({rng.choice(known)})")
            known.append(f"y{i}")
            a, b = rng.choice(known), known[-1]
            lines.append(f"        z{i} = " + rng.choice(JOINS).format(a=a, b=b))
            known.append(f"z{i}")
        lines.append(f"        return {known[-1]} + {known[1]}")
        return name

    lines.append(f"Root = {module(3)}")
    return "\n".join(lines) + "\n"


def compile_and_check(seed: int, folder: Path) -> tuple[int, list[list]]:
    file = folder / f"random_{seed}.py"
    file.write_text(source(seed))
    spec = importlib.util.spec_from_file_location(file.stem, file)
    built = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(built)
    model = built.Root()
    torch.compile(model)(torch.randn(16 + seed, 24, requires_grad=True)).sum().backward()

    lines = file.read_text().splitlines()
    want = {}
    for name, module in model.named_modules():
        leaf = type(module).__name__.removesuffix("_leaf")
        if leaf in FUNCTIONS:
            at = next(i for i, line in enumerate(lines, 1) if line.endswith(f"  # {leaf}"))
            for text in FUNCTIONS[leaf]:
                want[text] = (name or f"<{type(model).__name__}>", at)
    seen, wrong = 0, []
    names = modules.ModuleNames(model)
    for kernel, wrapper, line in codegen.LAUNCHES:
        origin = callsites.resolve(wrapper, line, kernel, names)
        for text in codegen.KERNELS[kernel].splitlines():
            found = CALL.match(text)
            if found is None or found[2] not in want:
                continue
            seen += 1
            owner = callsites.owner(origin, found[1])
            got = (owner.module, owner.model_line)
            if got != want[found[2]] or owner.model_file != str(file):
                wrong.append([kernel, text.strip(), want[found[2]], got])
    codegen.LAUNCHES.clear()
    return seen, wrong


if __name__ == "__main__":
    total, failures = 0, []
    with tempfile.TemporaryDirectory() as folder:
        for seed in map(int, sys.argv[1:]):
            torch._dynamo.reset()
            codegen.KERNELS.clear()
            seen, wrong = compile_and_check(seed, Path(folder))
            total += seen
            failures += wrong
    print(json.dumps({"seen": total, "wrong": failures}))
