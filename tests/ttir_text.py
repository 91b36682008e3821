"""TTIR of small kernels, as the stage `ttir` of a real backend prints it. No launch, no device."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from triton._C.libtriton import ir
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.compiler.compiler import make_backend

from flagprism_torch.ir.module import Module, Op, Value

CUDA = GPUTarget("cuda", 90, 32)


def ttir(
    fn: Any,
    signature: Mapping[str, str],
    constants: Mapping[str, Any] | None = None,
    target: GPUTarget = CUDA,
) -> str:
    """The text of a kernel after the target's `ttir` stage, locations included.

    Parameters named in `constants` are constexprs; all others need a type in `signature`.
    """
    constants = dict(constants or {})
    types = {name: "constexpr" if name in constants else signature[name] for name in fn.arg_names}
    places = {(fn.arg_names.index(name),): value for name, value in constants.items()}
    source = ASTSource(fn, types, places)
    backend = make_backend(target)
    options = backend.parse_options({})
    context = ir.context()
    ir.load_dialects(context)
    backend.load_dialects(context)
    codegen, modules = backend.get_codegen_implementation(options), backend.get_module_map()
    module = source.make_ir(target, options, codegen, modules, context)
    stages: dict[str, Any] = {}
    backend.add_stages(stages, options, source.language)
    return str(stages["ttir"](module, {}))


def line_of(fn: Any, code: str) -> int:
    """Line in the file of the one line of a kernel's source that contains `code`."""
    lines = fn.raw_src if hasattr(fn, "raw_src") else fn.src.split("\n")
    found = [number for number, line in enumerate(lines) if code in line]
    assert len(found) == 1, (code, found)
    return int(fn.starting_line_number + found[0])


def ops(module: Module, name: str) -> list[Op]:
    """Operations of the kernel with this name, in program order."""
    return [op for op in module.entry.walk() if op.name == name]


def named(module: Module, variable: str) -> list[Value]:
    """Results of the operations whose statement assigns `variable`; no combine regions."""
    return [
        value
        for op in module.entry.walk()
        if op.frames and op.frames[0].name == variable
        if op.block.parent is None or not op.block.parent.name.startswith("tt.")
        for value in op.results
    ]
