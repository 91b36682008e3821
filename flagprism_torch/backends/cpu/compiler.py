"""The Triton compiler backend `cpu`: the stock TTIR passes, then the TTIR text as the "binary".

Interface relied on: triton/backends/compiler.py, class BaseBackend (Triton 3.6 to 3.9).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, fields
from types import ModuleType
from typing import Any

from triton._C.libtriton import ir, passes
from triton.backends.compiler import BaseBackend, GPUTarget, Language

_PIPELINE = "flagprism-cpu-1"  # part of Triton's cache key; raise it when the stages change


@dataclass(frozen=True)
class CPUOptions:
    """Compile options of one kernel. Nothing here changes the results; `num_warps` and the others
    keep the user's values, so that they can be reported. Defaults as in CUDAOptions
    (triton/backends/nvidia/compiler.py)."""

    num_warps: int = 4
    num_ctas: int = 1
    num_stages: int = 3
    warp_size: int = 1
    cluster_dims: tuple[int, int, int] = (1, 1, 1)
    maxnreg: int | None = None
    ir_override: str | None = None
    enable_fp_fusion: bool = True
    launch_cooperative_grid: bool = False
    launch_pdl: bool = False
    supported_fp8_dtypes: tuple[str, ...] = ("fp8e5", "fp8e4nv", "fp8e4b8", "fp8e5b16")
    deprecated_fp8_dot_operand_dtypes: tuple[str, ...] = ()
    default_dot_input_precision: str = "tf32"
    allowed_dot_input_precisions: tuple[str, ...] = ("ieee", "tf32", "tf32x3", "bf16x3", "bf16x6")
    max_num_imprecise_acc_default: int = 0
    extern_libs: tuple[Any, ...] | None = None
    debug: bool = False
    backend_name: str = "cpu"
    sanitize_overflow: bool = True  # only with debug=True, as on CUDA
    arch: str = "generic"
    instrumentation_mode: str = ""
    fpsan_homomorphic_casts: bool = False  # Triton 3.9

    def hash(self) -> str:
        """Identity of the options (part of the cache key)."""
        return hashlib.sha256(repr(sorted(self.__dict__.items())).encode()).hexdigest()


class CPUBackend(BaseBackend):
    """Registered as `triton.backends.backends["cpu"].compiler`."""

    binary_ext = "ttirbin"

    @staticmethod
    def supports_target(target: GPUTarget) -> bool:
        return bool(target.backend == "cpu")

    def __init__(self, target: GPUTarget) -> None:
        super().__init__(target)
        self.binary_ext = "ttirbin"

    def get_target_name(self, options: CPUOptions) -> str:
        return "cpu"

    def hash(self) -> str:
        return _PIPELINE

    def parse_options(self, opts: dict[str, Any]) -> CPUOptions:
        known = {f.name for f in fields(CPUOptions)}
        return CPUOptions(**{k: v for k, v in opts.items() if k in known and v is not None})

    def pack_metadata(self, metadata: Any) -> Any:
        return metadata

    def get_codegen_implementation(self, options: CPUOptions) -> dict[str, Any]:
        return {"min_dot_size": lambda lhs, rhs: (1, 1, 1), "convert_custom_types": None}

    def get_module_map(self) -> dict[str, ModuleType]:
        """The same libdevice calls as on CUDA, so that generated kernels read the same."""
        from triton.language.extra.cuda import libdevice

        return {"triton.language.extra.libdevice": libdevice}

    def load_dialects(self, ctx: Any) -> None:
        """TTIR needs no dialect beyond those Triton loads."""

    @staticmethod
    def make_ttir(mod: Any, metadata: dict[str, Any], opt: CPUOptions) -> Any:
        """The passes of CUDABackend.make_ttir, with tensor descriptors rewritten to pointers."""
        manager = ir.pass_manager(mod.context)
        manager.enable_debug()
        passes.common.add_inliner(manager)
        if hasattr(passes.ttir, "add_rewrite_tensor_pointer"):  # gone in Triton 3.8
            passes.ttir.add_rewrite_tensor_pointer(manager)
        passes.ttir.add_rewrite_tensor_descriptor_to_pointer(manager)
        passes.common.add_canonicalizer(manager)
        passes.ttir.add_combine(manager)
        passes.ttir.add_reorder_broadcast(manager)
        passes.common.add_cse(manager)
        passes.common.add_symbol_dce(manager)
        passes.ttir.add_loop_unroll(manager)
        manager.run(mod, "make_ttir")
        return mod

    @staticmethod
    def make_binary(mod: Any, metadata: dict[str, Any], opt: CPUOptions) -> bytes:
        """The module's text; fills the metadata that CompiledKernel and Inductor read."""
        metadata["name"] = mod.get_entry_func_name()
        metadata["shared"] = 0
        metadata["tmem_size"] = 0
        for scratch in ("global_scratch", "profile_scratch"):
            metadata[f"{scratch}_size"] = 0
            metadata[f"{scratch}_align"] = 1
        return str(mod).encode()

    def add_stages(
        self,
        stages: dict[str, Callable[[Any, dict[str, Any]], Any]],
        options: CPUOptions,
        language: Language = Language.TRITON,
    ) -> None:
        stages["ttir"] = lambda src, metadata: self.make_ttir(src, metadata, options)
        stages["ttirbin"] = lambda src, metadata: self.make_binary(src, metadata, options)
        from triton import knobs

        hook = knobs.runtime.add_stages_inspection_hook
        if hook is not None:  # called as backends/amd/compiler.py does
            hook(self, stages, options, language, None)
