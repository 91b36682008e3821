"""From a `@triton.jit` probe and argument types to the text of TTIR functions.

Triton's own CodeGenerator writes the probe into a scratch module whose only function has arguments
of the wanted types; the printed private functions are then spliced into the kernel's module, where
Triton's inliner removes the calls. Relied on: `CodeGenerator(...)` and `call_JitFunction`
(triton/compiler/code_generator.py: 3.6.0 :288 and :1285, 3.7.1 :292 and :1315, 3.9.0 :296 and
:1446).
"""

from __future__ import annotations

import os
import re
import tempfile
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import triton.language as tl
from triton._C.libtriton import ir
from triton.compiler.code_generator import CodeGenerator

from flagprism_torch.ir.types import Type, parse_types

_FUNCTION = re.compile(r"^  tt\.func private @([\w$.]+|\"[^\"]+\")\(", re.M)
_SIGNATURE = re.compile(
    r"^  tt\.func private @(?:[\w$.]+|\"[^\"]+\")\((.*?)\)(?: -> (.*?))? attributes \{", re.M
)

ELEMENTS: dict[str, tl.dtype] = {
    "f16": tl.float16,
    "bf16": tl.bfloat16,
    "f32": tl.float32,
    "f64": tl.float64,
    "f8E4M3FN": tl.float8e4nv,
    "f8E5M2": tl.float8e5,
    "f8E4M3FNUZ": tl.float8e4b8,
    "f8E5M2FNUZ": tl.float8e5b16,
    "i1": tl.int1,
    "i8": tl.int8,
    "i16": tl.int16,
    "i32": tl.int32,
    "i64": tl.int64,
}
_UNSIGNED = {"i8": tl.uint8, "i16": tl.uint16, "i32": tl.uint32, "i64": tl.uint64}
RECORDS = Type("!tt.ptr<i32>", "!tt.ptr<i32>", None)


def triton_dtype(element: str, unsigned: bool = False) -> tl.dtype | None:
    """Triton's dtype of an MLIR element type, None for one that probes cannot read."""
    if unsigned and element in _UNSIGNED:
        return _UNSIGNED[element]
    return ELEMENTS.get(element)


@dataclass(frozen=True)
class Argument:
    """A runtime argument of a probe: its TTIR type and whether its integers are unsigned."""

    type: Type
    unsigned: bool = False

    def triton_type(self) -> Any:
        if self.type.is_pointer and not self.type.is_tensor:
            return tl.pointer_type(tl.int32)
        dtype = triton_dtype(self.type.element, self.unsigned)
        return tl.block_type(dtype, list(self.type.dims)) if self.type.is_tensor else dtype


@dataclass(frozen=True)
class Probe:
    """A generated probe: `name` to call, types of its results."""

    name: str
    arguments: tuple[Type, ...]
    results: tuple[Type, ...]


# (backend, options, probe, arguments, constants) -> generated probe and its functions by name
_generated: dict[Any, tuple[Probe, dict[str, str]]] = {}
_generating = threading.Lock()


class ProbeText:
    """Generates probes for one target and collects the text of their functions.

    Args:
        backend, options: Triton's compiler backend and its parsed options.
    """

    def __init__(self, backend: Any, options: Any) -> None:
        self._backend, self._options = backend, options
        self._key = (type(backend).__module__, options.hash())
        self._functions: dict[str, str] = {}

    def get(self, probe: Any, arguments: Sequence[Argument], constants: dict[str, Any]) -> Probe:
        """The probe specialised to argument types and constexprs; generated once per process."""
        key = (*self._key, probe, tuple(arguments), tuple(sorted(constants.items())))
        with _generating:  # Python alone: threads would not gain from doing it at once
            if key not in _generated:
                _generated[key] = self._generate(probe, list(arguments), constants)
            made, functions = _generated[key]
        self._functions.update(functions)
        return made

    @property
    def functions(self) -> list[str]:
        """Lines of all generated functions, every operation with an explicit location."""
        return [line for text in self._functions.values() for line in text.split("\n")]

    def _generate(
        self, probe: Any, arguments: list[Argument], constants: dict[str, Any]
    ) -> tuple[Probe, dict[str, str]]:
        context = ir.context()
        ir.load_dialects(context)
        self._backend.load_dialects(context)
        listed = ", ".join(f"%a{i}: {a.type.text}" for i, a in enumerate(arguments))
        host = (
            f"module {{\n  tt.func public @host({listed}) attributes {{noinline = false}} {{\n"
            "    tt.return\n  }\n}\n"
        )
        module = parse_module(host, context)
        generator = CodeGenerator(
            context,
            None,
            gscope={},
            function_name="flagprism",
            jit_fn=probe,
            options=self._options,
            codegen_fns=self._backend.get_codegen_implementation(self._options),
            module_map=self._backend.get_module_map(),
            module=module,
            is_gluon=False,
            file_name="flagprism",
            begin_line=1,
        )
        function = module.get_function("host")
        returns: list[Any] = []
        module.walk(lambda op: returns.append(op) if op.get_name() == "tt.return" else None)
        generator.builder.set_insertion_point_to_start(returns[0].get_block())
        tensors = [tl.tensor(function.args(i), a.triton_type()) for i, a in enumerate(arguments)]
        names = probe.arg_names
        values = dict(zip([n for n in names if n not in constants], tensors, strict=True))
        values.update({name: tl.constexpr(value) for name, value in constants.items()})
        generator.call_JitFunction(probe, [values[name] for name in names], {})
        text = module.str_nodebug()
        call = re.search(r"tt\.call @([\w$.]+|\"[^\"]+\")\(", text)
        assert call, text
        functions = dict(_functions(text))
        name = call.group(1)
        signature = _SIGNATURE.search(functions[name])
        assert signature, functions[name]
        results = parse_types(signature.group(2)) if signature.group(2) else []
        return Probe(name, tuple(a.type for a in arguments), tuple(results)), functions


def _functions(text: str) -> list[tuple[str, str]]:
    """(name, text with locations) of every private function in a printed module."""
    found = []
    starts = list(_FUNCTION.finditer(text))
    for match in starts:
        end = text.index("\n  }\n", match.start()) + len("\n  }")
        lines = text[match.start() : end].split("\n")
        reorder = re.search(r"\.(per_thread|flat)__", match.group(1)) is not None
        found.append((match.group(1), "\n".join(_located(line, reorder) for line in lines)))
    return found


def _located(line: str, reorder: bool) -> str:
    """Reorderable reshapes in `per_thread` and `flat` (Note [Lane order]) and an explicit location:
    without one the parser would write the name of its temporary file into the debug information."""
    if reorder:
        line = re.sub(r"(tt\.reshape %\S+)( : )", r"\1 allow_reorder\2", line)
    text = line.rstrip()
    if not text or text.endswith("{") or text.lstrip().startswith("^"):
        return line
    return f"{text} loc(unknown)"


def parse_module(text: str, context: Any) -> Any:
    """Module of a TTIR text; Triton only parses files."""
    with tempfile.NamedTemporaryFile("w", suffix=".ttir", delete=False) as file:
        file.write(text)
    try:
        module = ir.parse_mlir_module(file.name, context)
    finally:
        os.unlink(file.name)  # noqa: PTH108
    module.context = context
    return module
