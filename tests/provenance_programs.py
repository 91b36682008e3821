"""Programs whose every generated value must have an owner.

Run as a script, as tests/inductor_codegen.py: `python provenance_programs.py PROGRAM ...` prints a
JSON object, program -> launches with their owners, and what is wrong with them.
"""

from __future__ import annotations

import ast
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import inductor_codegen as codegen
import torch
import torch.utils.checkpoint
import triton
import triton.language as tl
from torch import nn
from torch.library import triton_op, wrap_triton
from torch.nn import functional as F

from flagprism_torch.hooks import provenance_patches
from flagprism_torch.provenance import callsites

VARIABLE = re.compile(r"_?tmp\d+\w*$")
COMMENT = re.compile(r"Original ATen: \[(.*)\]")
WRITES = ("store", "atomic_add", "atomic_max", "atomic_min", "atomic_cas", "atomic_xchg")


def values(source: str) -> tuple[set[str], set[str]]:
    """(names of variables, pointer arguments written through) of a kernel's text."""
    assigned, written = set(), set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            if VARIABLE.match(node.id):
                assigned.add(node.id)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            name = node.func.attr
            if name in WRITES and node.args:
                pointers = (n.id for n in ast.walk(node.args[0]) if isinstance(n, ast.Name))
                written |= {p for p in pointers if "ptr" in p}
    return assigned, written


class ZeroingKernel(codegen.StubKernel):
    """A stub that leaves valid indices: extern calls after it may use them."""

    def run(self, *args: object, **kwargs: object) -> None:
        for tensor in args:
            if isinstance(tensor, torch.Tensor) and not tensor.is_floating_point():
                tensor.zero_()
        file, line = callsites.launching_frame(sys._getframe(1))
        codegen.LAUNCHES.append((self.name, file, line))


codegen.StubKernel = ZeroingKernel


class ConvNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.conv2, self.bn2 = nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.head = nn.Linear(8, 10)

    def forward(self, x):
        x = F.max_pool2d(self.bn1(self.conv1(x)).relu(), 2)
        x = x + self.bn2(self.conv2(x)).relu()
        return self.head(x.mean((2, 3)))


class Language(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(50, 16), nn.Linear(16, 50)
        self.norm = nn.RMSNorm(16)

    def forward(self, ids, labels):
        logits = self.head(self.norm(self.embed(ids)))
        return F.cross_entropy(logits.view(-1, 50), labels.view(-1))


class UNetBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.GroupNorm(4, 16), nn.GroupNorm(4, 16)
        self.conv1, self.conv2 = (nn.Conv2d(16, 16, 3, padding=1) for _ in range(2))
        self.time = nn.Linear(8, 16)

    def forward(self, x, t):
        h = self.conv1(F.silu(self.norm1(x)))
        h = h + self.time(F.silu(t))[:, :, None, None]
        h = self.conv2(F.silu(self.norm2(h)))
        return F.interpolate(x + h, scale_factor=2.0)


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.gru = nn.LSTMCell(8, 16), nn.GRUCell(16, 16)

    def forward(self, x):
        h = c = x.new_zeros(x.shape[1], 16)
        g = h
        for t in range(x.shape[0]):
            h, c = self.lstm(x[t], (h, c))
            g = self.gru(h, g)
        return g


class Experts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(16, 4)
        self.up = nn.Parameter(torch.randn(4, 16, 32))
        self.down = nn.Parameter(torch.randn(4, 32, 16))

    def forward(self, x):
        weights, chosen = self.router(x).softmax(-1).topk(2, -1)
        weights = weights / weights.sum(-1, keepdim=True)
        out = torch.zeros_like(x)
        for k in range(2):
            hidden = F.gelu(torch.bmm(x[:, None], self.up[chosen[:, k]]))
            out = out + torch.bmm(hidden, self.down[chosen[:, k]])[:, 0] * weights[:, k : k + 1]
        load = torch.zeros(4).index_add(0, chosen.flatten(), weights.flatten())
        spread = torch.zeros_like(x).scatter_add(0, chosen[:, :1].expand(-1, 16), x)
        return out + spread, load.var()


class Assorted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.drop, self.bn, self.linear = nn.Dropout(0.1), nn.BatchNorm1d(64), nn.Linear(64, 64)

    def forward(self, x, big):
        low = x.bfloat16()
        updated = x.clone()
        updated[:, ::2] += 1
        ordered, order = torch.sort(x, -1)
        return (
            torch.softmax(low.float() * 2, -1).to(low.dtype),
            torch.cumsum(big, -1),
            torch.cumprod(x, -1),
            torch.logcumsumexp(x, -1),
            torch.cummax(x, -1).values,
            big.argmax(-1),
            ordered,
            order,
            torch.topk(x, 4).values,
            big.var(-1),
            torch.cat([x.sin(), x.cos()], -1),
            self.drop(self.linear(x)).relu(),
            self.bn(x),
            torch.softmax(big, -1),
            updated,
            torch.where(x > 0, x, 0).sum(),
            F.pad(x, (1, 1)).tanh(),
            torch.logsumexp(big, -1),
            F.gelu(big).sum(0),
            (big / big.norm()).max(),
            torch.bucketize(x, torch.linspace(-2, 2, 8)),
            x.median(-1).values,
            torch.nn.functional.one_hot(order, 64).sum(1),
            x.masked_fill(x < 0, -1.0).amin(0),
            torch.rand_like(x) + torch.arange(64),
            x.half().float(),
            x.unfold(1, 4, 2).mean(-1),
            x.flip(1).roll(3, 0),
            torch.cdist(x, x),
        )


class Checkpointed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = codegen.Sub(), codegen.Sub()

    def forward(self, x):
        checkpoint = torch.utils.checkpoint.checkpoint
        x = checkpoint(self.first, x, use_reentrant=False)
        return checkpoint(self.second, x, use_reentrant=False)


@triton.jit
def scale_kernel(x_ptr, out_ptr, n, factor, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offsets, mask=offsets < n)
    tl.store(out_ptr + offsets, x * factor, mask=offsets < n)


def scale(x, factor, launch=lambda kernel: kernel):
    out, n = torch.empty_like(x), x.numel()
    launch(scale_kernel)[(triton.cdiv(n, 256),)](x, out, n, factor, BLOCK=256)  # SCALE
    return out


class Double(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return scale(x, 2.0)

    @staticmethod
    def backward(ctx, grad):
        return scale(grad, 2.0)


@triton_op("flagprism_programs::triple", mutates_args=())
def triple(x: torch.Tensor) -> torch.Tensor:
    return scale(x, 3.0, wrap_triton)


triple.register_autograd(lambda ctx, grad: triple(grad))


class ByFunction(nn.Module):
    def forward(self, x):
        return Double.apply(x.sin())


class ByOperator(nn.Module):
    def forward(self, x):
        return triple(x.cos())


class UserKernels(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.function, self.operator = ByFunction(), ByOperator()

    def forward(self, x):
        return self.operator(self.function(x)).exp()


class Reductions(nn.Module):
    """What the options of `OPTIONS` are about."""

    def forward(self, x, big):
        return (
            torch.softmax(big, -1),
            torch.cumsum(big, -1),
            big.argmax(-1),
            big.var(-1),
            torch.sort(x, -1).values,
            (big / big.norm()).max(),
            F.gelu(big).sum(0),
            F.layer_norm(x, (64,)) * x.sum(0),
            x.t().contiguous() + x.t().cos(),
            x.t() @ x,  # Inductor fails where a workspace is the last thing to be freed
        )


def train(model: nn.Module, *inputs: torch.Tensor, **options) -> list[dict]:
    out = torch.compile(model, **options)(*inputs)
    flat = out if isinstance(out, tuple) else (out,)
    sum(o.float().sum() for o in flat if o.is_floating_point() and o.requires_grad).backward()
    return codegen.sites(model)


def optimize() -> list[dict]:
    model = codegen.Transformer()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for parameter in model.parameters():
        parameter.grad = torch.randn_like(parameter)
    torch.compile(optimizer.step)()
    return codegen.sites(model)


def differentiate() -> list[dict]:
    """A gradient taken inside the compiled code: there is no backward graph."""
    model = codegen.Sub()
    torch.compile(torch.func.grad(lambda x: model(x).sum()))(torch.randn(20, 16))
    return codegen.sites(model)


def _wide() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(4096, 64, requires_grad=True), torch.randn(8, 8192, requires_grad=True)


OPTIONS = {
    "combo": {"combo_kernels": True},
    "looped": {"triton.persistent_reductions": False},
    "cooperative": {"triton.force_cooperative_reductions": True},
    "mix_order": {
        "triton.mix_order_reduction": True,
        "triton.mix_order_reduction_non_strict_mode": True,
    },
    "multi_kernel": {"triton.multi_kernel": 2},  # 2: take the first choice, do not benchmark
    "tiles": {"triton.prefer_nd_tiling": True, "triton.max_tiles": 3},
    "unsplit": {"split_reductions": False},
    "block_pointers": {"triton.use_block_ptr": True},
}

PROGRAMS: dict[str, Callable[[], list[dict]]] = {
    "transformer": codegen.transformer,
    "optimizer": optimize,
    "conv_net": lambda: train(ConvNet(), torch.randn(4, 3, 16, 16)),
    "language": lambda: train(Language(), torch.randint(50, (2, 9)), torch.randint(50, (2, 9))),
    "unet": lambda: train(UNetBlock(), torch.randn(2, 16, 8, 8), torch.randn(2, 8)),
    "recurrent": lambda: train(Recurrent(), torch.randn(3, 4, 8)),
    "experts": lambda: train(Experts(), torch.randn(12, 16)),
    "assorted": lambda: train(Assorted(), *_wide()),
    "dynamic": lambda: train(
        Assorted(), torch.randn(33, 64, requires_grad=True), _wide()[1], dynamic=True
    ),
    "checkpointed": lambda: train(Checkpointed(), torch.randn(40, 16, requires_grad=True)),
    "user_kernels": lambda: train(UserKernels(), torch.randn(24, 16, requires_grad=True)),
    "gradient": differentiate,
}
for title, options in OPTIONS.items():
    PROGRAMS[title] = lambda options=options: train(Reductions(), *_wide(), options=options)


def check(site: dict) -> dict:
    """Adds to a site what no owner is known of, and the ATen ops of owners that Inductor's own
    comment for the launch does not name."""
    source = codegen.KERNELS[site["kernel"]]
    assigned, written = values(source)
    known = site.get("statements", {})
    parts = {name: re.match(r"_?(tmp\d+)", name)[1] for name in assigned}
    site["unknown"] = sorted(
        [n for n, part in parts.items() if n not in known and part not in known]
        + [n for n in written if n not in known and not n.startswith("block_ptr")]
    )
    above = Path(site["file"]).read_text().splitlines()[: site["line"]]
    comment = next((c for line in reversed(above) if (c := COMMENT.search(line))), None)
    named = {part.strip() for part in comment[1].split(",")} if comment else set()
    site["foreign"] = sorted(
        {(name, one[2]) for name, one in known.items() if one[2] and one[2] not in named}
    )
    site["source_text"] = source
    return site


if __name__ == "__main__":
    result: dict = {}
    for title in sys.argv[1:]:
        torch._dynamo.reset()
        torch.manual_seed(0)
        codegen.KERNELS.clear()
        result[title] = [check(site) for site in PROGRAMS[title]()]
    result["failures"] = dict(provenance_patches.failures())
    print(json.dumps(result))
