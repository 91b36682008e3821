"""Tiny fp16 input: eager underflows to 0 * inf = NaN; the compiled kernel returns zeros."""

import torch
from torch import nn

KIND = "eager_only_inf"
SOURCE = "pytorch/pytorch#183605"
CAUSE = "var + 1e-9 is zero in fp16, rsqrt(0) is inf; in fp32 it is not zero"
MODE = "compile"
EXPECT = {
    "verdict": "divergence",
    "anomaly": "nan",
    "where": "eager",
    "module": "norm",
    "aten": "mul.Tensor",
    "cause_aten": "rsqrt",
    "eager": {"nan": 15, "inf": 0},
    "compiled_cpu": {"nan": 0, "inf": 0, "zero": 15},
}


class VarNorm(nn.Module):
    def forward(self, x):
        return x * torch.rsqrt(x.var(dim=-1, keepdim=True) + 1e-9)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = VarNorm()

    def forward(self, x):
        return self.norm(x)


def build(device):
    return Net().to(device), (torch.full((3, 5), 1e-10, dtype=torch.float16, device=device),)


def run(device="cuda", compile=False):
    net, args = build(device)
    return {"out": (torch.compile(net) if compile else net)(*args)}


def verify(out):
    assert int(out["out"].isnan().sum()) == 15
