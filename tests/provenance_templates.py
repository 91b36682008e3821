"""Generated code of template and combo kernels, which Inductor writes for GPUs only.

Run as a script, on any machine: prints a JSON object, program -> launches. Device properties are
those of an H200, tensors are fake, the first Triton template is taken instead of tuning, and
nothing is launched: the wrapper's text is what counts.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace

sys.path.insert(0, str(Path(__file__).parent))

import inductor_codegen as codegen
import torch
import torch._inductor.config
import torch._inductor.utils
from functorch.compile import make_boxed_func
from provenance_programs import values
from torch._dynamo import device_interface
from torch._dynamo.backends.common import aot_autograd
from torch._inductor import select_algorithm
from torch._inductor.compile_fx import compile_fx_inner
from torch._inductor.decomposition import select_decomp_table
from torch._subclasses.fake_tensor import FakeTensorMode

from flagprism_torch.provenance import callsites

WRAPPERS: list[str] = []

PROPERTIES = SimpleNamespace(
    name="H200", type="cuda", index=0, major=9, minor=0, multi_processor_count=132, warp_size=32,
    regs_per_multiprocessor=65536, max_threads_per_multi_processor=2048,
    max_threads_per_block=1024, total_memory=140 << 30, gcnArchName="",
    shared_memory_per_block=49152, shared_memory_per_block_optin=232448, L2_cache_size=50 << 20,
    is_integrated=False, clock_rate=1980000, memory_clock_rate=3201000, memory_bus_width=6144,
)  # fmt: skip


def pretend_a_gpu() -> None:
    torch.cuda.get_device_properties = lambda *args, **kwargs: PROPERTIES
    torch.cuda.get_device_capability = lambda *args, **kwargs: (9, 0)
    torch.cuda.current_device, torch.cuda.device_count = lambda: 0, lambda: 1
    torch._C._cuda_getCurrentRawStream = lambda index: 0  # the wrapper imports it
    cuda = device_interface.CudaInterface
    for owner in (cuda, cuda.Worker):
        owner.get_device_properties = staticmethod(lambda *args: PROPERTIES)
        owner.current_device = staticmethod(lambda: 0)
    cuda.is_available = staticmethod(lambda: True)
    cuda.get_compute_capability = staticmethod(lambda *args: 90)
    cuda.exchange_device = cuda.maybe_exchange_device = staticmethod(lambda index: 0)
    for name, module in list(sys.modules.items()):
        if name.startswith("torch._inductor") and hasattr(module, "has_triton"):
            module.has_triton = lambda *args: True
    torch._inductor.utils.is_big_gpu = lambda *args, **kwargs: True


def first_template(self, name, choices, *args, **kwargs):
    templates = [c for c in choices if isinstance(c, select_algorithm.TritonTemplateCaller)]
    return templates[0].output_node(), templates[0]


def backend(graph_module, example_inputs):
    def compile_only(graph, inputs):
        WRAPPERS.append(compile_fx_inner(graph, inputs).source_code)
        return make_boxed_func(graph.forward)

    return aot_autograd(fw_compiler=compile_only, decompositions=select_decomp_table())(
        graph_module, example_inputs
    )


def cuda(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.empty(*shape, device="cuda", dtype=dtype)


class Linear(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(cuda(256, 256), requires_grad=False)

    def forward(self, x):
        return x @ self.weight


class Product(torch.nn.Module):
    """relu can become a prologue of the product, what follows it is an epilogue."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.act = Linear(), torch.nn.GELU()

    def forward(self, x, y):
        return self.act(self.linear(x.relu())) + y.sin()


class Batched(torch.nn.Module):
    def forward(self, x, y):
        return torch.bmm(x, y).sigmoid()


def products():
    torch.compile(Product(), backend=backend)(cuda(512, 256), cuda(512, 256))


def batched():
    torch.compile(Batched(), backend=backend)(cuda(4, 64, 128), cuda(4, 128, 64))


class Side(torch.nn.Module):
    def forward(self, x):
        return x.cos().sum(-1)


class Sides(torch.nn.Module):
    """Kernels of several sizes that do not depend on each other."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = Side(), Side()

    def forward(self, x, y, z):
        return self.left(x), self.right(y), z.sin() + 1, x.exp()


def combined():
    torch._inductor.config.combo_kernels = True
    torch.compile(Sides(), backend=backend)(cuda(64, 100), cuda(40, 300), cuda(7000))


def read() -> list[dict]:
    """Every launch in the wrappers since the last call."""
    found = []
    for text in WRAPPERS:
        with tempfile.NamedTemporaryFile("w", suffix=".py", delete=False) as file:
            file.write(text)
        for line, code in enumerate(text.splitlines(), 1):
            name = code.strip().partition(".run(")[0]
            if ".run(" in code and name.isidentifier():
                origin = callsites.resolve(file.name, line, name)
                source = codegen.KERNELS[name]
                names, pointers = values(source)
                found.append(
                    {
                        "kernel": name,
                        "source": source,
                        "module": origin.module,
                        "values": sorted(names),
                        "pointers": sorted(pointers),
                        "owners": {
                            key: [one.module, one.aten, one.model_line]
                            for key, one in origin.statements.items()
                        },
                    }
                )
        Path(file.name).unlink()
    WRAPPERS.clear()
    return found


PROGRAMS = {"products": products, "batched": batched, "combined": combined}

if __name__ == "__main__":
    pretend_a_gpu()
    torch._inductor.config.max_autotune_gemm = True
    torch._inductor.config.max_autotune_gemm_backends = "TRITON"
    torch._inductor.config.prologue_fusion = True
    select_algorithm.AlgorithmSelectorCache.__call__ = first_template
    result = {}
    for title in sys.argv[1:]:
        torch._dynamo.reset()
        with FakeTensorMode(allow_non_fake_inputs=True), torch.no_grad():
            PROGRAMS[title]()
        result[title] = read()
    print(json.dumps(result))
