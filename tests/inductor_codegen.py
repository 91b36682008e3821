"""Real Inductor code generation for Triton on any machine, for the provenance tests.

Run as a script in a process of its own: `python inductor_codegen.py SCENARIO ...` prints one JSON
object. Kernels are stubs that note the launch (name, wrapper file, line), so no driver is needed;
numbers computed by a compiled model mean nothing here. Importing
flagprism_torch installs the recorder, unless FLAGPRISM_PROVENANCE=0.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import torch
import torch._inductor.config
import torch.utils._triton
from torch._dynamo.utils import counters
from torch._inductor import async_compile

from flagprism_torch.hooks import provenance_patches
from flagprism_torch.provenance import callsites, markers, modules

KERNELS: dict[str, str] = {}
LAUNCHES: list[tuple[str, str, int]] = []
LOCATED: list[tuple[str, str, str, str]] = []  # kernel, call site key, module, phase
NAMES: list[modules.ModuleNames] = []  # if any, launches are located while they happen


class StubKernel:
    def __init__(self, name: str, source: str) -> None:
        self.name = name
        self.inductor_meta = {"kernel_name": name}

    def run(self, *args: object, **kwargs: object) -> None:
        file, line = callsites.launching_frame(sys._getframe(1))
        LAUNCHES.append((self.name, file, line))
        if NAMES:
            key, origin = callsites.locate(sys._getframe(1), self.name, NAMES[-1])
            LOCATED.append((self.name, key, origin.module, origin.phase))


def _stub_triton(self, kernel_name, source_code, device_str="cpu"):
    KERNELS[kernel_name] = source_code
    return StubKernel(kernel_name, source_code)


torch._inductor.config.cpu_backend = "triton"
torch.utils._triton.triton_hash_with_backend = lambda: "stub"
torch.utils._triton.has_triton = lambda: True  # so that Dynamo recognises user kernels
async_compile.AsyncCompile.triton = _stub_triton


class Attention(torch.nn.Module):
    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = torch.nn.Linear(dim, 3 * dim)
        self.out = torch.nn.Linear(dim, dim)

    def forward(self, x):
        batch, time, dim = x.shape
        q, k, v = (
            t.view(batch, time, self.heads, -1).transpose(1, 2)
            for t in self.qkv(x).split(dim, dim=-1)
        )
        weights = torch.softmax(q @ k.transpose(-1, -2) / 7.0, -1)  # 7: no SDPA pattern
        return self.out((weights @ v).transpose(1, 2).reshape(batch, time, dim))


class Block(torch.nn.Module):
    def __init__(self, dim: int = 32, heads: int = 4) -> None:
        super().__init__()
        self.ln1 = torch.nn.LayerNorm(dim)
        self.attn = Attention(dim, heads)
        self.ln2 = torch.nn.LayerNorm(dim)
        self.mlp = torch.nn.Sequential(
            torch.nn.Linear(dim, 2 * dim), torch.nn.GELU(), torch.nn.Linear(2 * dim, dim)
        )

    def forward(self, x):
        x = x + self.attn(self.ln1(x))
        return x + self.mlp(self.ln2(x))


class Transformer(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList([Block(), Block()])
        self.norm = torch.nn.LayerNorm(32)

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return self.norm(x).tanh()  # ROOT-LINE


class Sub(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.ln = torch.nn.LayerNorm(16)

    def forward(self, x):
        return self.ln(x).sin() * 2


class Pair(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = Sub(), Sub()

    def forward(self, x):
        return self.b(self.a(x))


class Twice(torch.nn.Module):
    """One module called twice, and a parameter whose gradient is accumulated."""

    def __init__(self) -> None:
        super().__init__()
        self.shared = Sub()

    def forward(self, x):
        return self.shared(self.shared(x).cos())


def sites(model: torch.nn.Module | None) -> list[dict]:
    """Origins of the launches since the last call."""
    names = modules.ModuleNames(model)
    out = []
    for name, file, line in LAUNCHES:
        origin = callsites.resolve(file, line, name, names)
        record = {"kernel": name, "line": line, "file": file, "source": None}
        if origin is not None:
            record |= {
                "source": origin.source,
                "module": origin.module,
                "modules": origin.modules,
                "phase": origin.phase,
                "aten": origin.aten,
                "model": [origin.model_file, origin.model_line],
                "statements": {
                    key: [s.module, s.modules, s.aten, s.model_file, s.model_line, s.phase]
                    for key, s in origin.statements.items()
                },
                "unmapped": unmapped(KERNELS.get(name, ""), origin),
            }
        out.append(record)
    LAUNCHES.clear()
    return out


def unmapped(source: str, origin) -> list[str]:
    """Variables and stores of a kernel's text that `statement_of` knows nothing about."""
    missing = []
    for line in source.splitlines():
        if found := re.match(r"\s*(_?tmp\d\w*)(?:, \w+)* = ", line):
            if callsites.statement_of(origin, found[1]) is None:
                missing.append(line.strip())
        elif (found := re.match(r"\s*tl\.(?:store|atomic_add)\((\w+)", line)) and (
            callsites.statement_of(origin, None, found[1]) is None
        ):
            missing.append(line.strip())
    return missing


def transformer() -> list[dict]:
    model = Transformer()
    torch.compile(model)(torch.randn(2, 8, 32)).sum().backward()
    found = sites(model)
    for file in {site["file"] for site in found}:
        found[0].setdefault("externs", {}).update(callsites.extern_calls(file))
    return found


def optimizer() -> list[dict]:
    model = Sub()
    optim = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for parameter in model.parameters():
        parameter.grad = torch.randn_like(parameter)
    torch.compile(optim.step)()
    return sites(model)


def submodule() -> dict:
    net = Pair()
    net.b.compile()
    net(torch.randn(64, 16)).sum().backward()
    launched = list(LAUNCHES)
    known = sites(net)
    LAUNCHES.extend(launched)
    return {"root": known, "no root": sites(None)}


def regional() -> dict:
    """Layers compiled one by one: Dynamo runs one wrapper for all of them."""
    out = {}
    for title, given in (("given", True), ("discovered", False)):
        torch._dynamo.reset()
        net = torch.nn.Sequential(Sub(), Sub(), torch.nn.Sequential(Sub()))
        for sub in (net[0], net[1], net[2][0]):
            sub.compile()
        NAMES.append(modules.ModuleNames(net if given else None))
        try:
            net(torch.randn(64, 16)).sum().backward()
        finally:
            NAMES.clear()
        out[title] = list(LOCATED)
        LOCATED.clear()
        LAUNCHES.clear()
    return out


def library_root() -> list[dict]:
    """A root whose forward is torch's own: Dynamo compiles it through a closure."""
    net = torch.nn.Sequential(torch.nn.LayerNorm(16), torch.nn.GELU())
    torch.compile(net)(torch.randn(64, 16)).sum().backward()
    return sites(None)


def accumulation() -> list[dict]:
    """A value with two users in one module: its gradient is a sum that no model line made."""

    class Fork(torch.nn.Module):
        def forward(self, x):
            y = x.exp()
            return y.sin() * y.cos()

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fork = Fork()

        def forward(self, x):
            return self.fork(x)

    net = Net()
    torch.compile(net)(torch.randn(64, 16, requires_grad=True)).sum().backward()
    return sites(net)


def shared() -> list[dict]:
    net = Twice()
    torch.compile(net)(torch.randn(64, 16, requires_grad=True)).sum().backward()
    return sites(net)


def function() -> list[dict]:
    """A compiled training function: loss code outside any module."""
    net = Sub()

    def loss(x):
        return (net(x).tanh() ** 2).mean()

    torch.compile(loss)(torch.randn(64, 16)).backward()
    return sites(net)


def multi_kernel() -> list[dict]:
    net = Sub()
    # 2: take the first choice, do not benchmark.
    compiled = torch.compile(net, options={"triton.multi_kernel": 2})
    compiled(torch.randn(64, 16)).sum().backward()
    return sites(net)


def foreach() -> list[dict]:
    def update(xs, ys):
        return torch._foreach_add(xs, ys)

    torch.compile(update)([torch.randn(8), torch.randn(9)], [torch.randn(8), torch.randn(9)])
    return sites(None)


def user_kernel() -> list[dict]:
    import user_kernel_model

    net = user_kernel_model.Net()
    with torch.no_grad():
        torch.compile(net)(torch.randn(32, 16))
    return sites(net)


def uninstalled() -> dict:
    """What is left after uninstall, and what a model compiled then resolves to."""
    from torch._inductor import ir, loop_body
    from torch._inductor.codegen import common, triton, wrapper

    owners = [ir.IRNode, ir.Reduction, ir.Scan, loop_body.LightTracer, common.CSE]
    owners += [common.CSEProxy, triton.TritonScheduling, wrapper.PythonWrapperCodegen]
    owners.append(ir.UserDefinedTritonKernel)
    provenance_patches.uninstall()
    before = [dict(vars(owner)) for owner in owners]
    installed = provenance_patches.install()
    during = provenance_patches.applied()
    changed = sum(dict(vars(o)) != b for o, b in zip(owners, before, strict=True))
    from flagprism_torch import provenance

    provenance.uninstall()
    restored = all(dict(vars(o)) == b for o, b in zip(owners, before, strict=True))
    net = Sub()
    # A shape of its own: another scenario's cache entry has markers.
    torch.compile(net)(torch.randn(48, 16)).sum().backward()
    return {
        "installed": installed,
        "during": during,
        "changed": changed,
        "restored": restored,
        "after": provenance_patches.applied(),
        "sites": sites(net),
    }


def broken() -> list[dict]:
    """A recorder whose every description fails."""
    from flagprism_torch.provenance import nodes

    real = nodes.describe

    def fail(*args):
        raise ValueError("broken on purpose")

    nodes.describe = fail
    try:
        torch.compile(Sub())(torch.randn(56, 16))  # not in the cache
    finally:
        nodes.describe = real
    return sites(None)


SCENARIOS = (
    transformer,
    optimizer,
    submodule,
    shared,
    function,
    multi_kernel,
    foreach,
    user_kernel,
    regional,
    library_root,
    accumulation,
    broken,
    uninstalled,
)

if __name__ == "__main__":
    chosen = {scenario.__name__: scenario for scenario in SCENARIOS}
    results: dict = {}
    for name in sys.argv[1:]:
        torch._dynamo.reset()
        torch.manual_seed(0)
        counters.clear()
        KERNELS.clear()
        results[name] = chosen[name]()
        results.setdefault("hits", {})[name] = counters["inductor"]["fxgraph_cache_hit"]
        results.setdefault("failures", {})[name] = dict(provenance_patches.failures())
        results.setdefault("kernels", {})[name] = dict(KERNELS)
    results["missing"] = provenance_patches.missing()
    results["reason"] = provenance_patches.reason()
    results["token"] = markers.PROCESS_TOKEN
    print(json.dumps(results))
