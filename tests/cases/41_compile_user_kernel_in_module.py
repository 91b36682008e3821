"""A user kernel in a compiled module divides by zero: name the module and the user's line."""

import torch
import triton
import triton.language as tl
from torch import nn

KIND = "user_kernel_in_compile"
SOURCE = "pytorch/pytorch#132301"
CAUSE = "group 1 of the gate is all zero; the kernel normalises by its sum"
MODE = "compile"
EXPECT = {
    "verdict": "anomaly",
    "anomaly": "nan",
    "where": "both",
    "module": "mlp.gate",
    "kernel": "group_norm1",
    "statement": "y = x / tot",
    "op": "arith.divf",
    "cause": "0 / 0",
    "cause_statement": "tot = tl.sum(x, axis=0)",
    "first": {"program": (1, 0, 0), "lane": 0},
    "nan_count": 8,
    "eager": {"mlp.gate": {"nan": 8}, "mlp": {"nan": 8}},
}


@triton.jit
def group_norm1(x_ptr, out_ptr, G: tl.constexpr):
    pid = tl.program_id(0)
    i = pid * G + tl.arange(0, G)
    x = tl.load(x_ptr + i)
    tot = tl.sum(x, axis=0)
    y = x / tot
    tl.store(out_ptr + i, y)


class Gate(nn.Module):
    def forward(self, x):
        out = torch.empty_like(x)
        group_norm1[(x.numel() // 8,)](x, out, G=8)
        return out


class Mlp(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate = Gate()

    def forward(self, x):
        return self.gate(torch.relu(x)) + 1.0


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.mlp = Mlp()

    def forward(self, x):
        return self.mlp(x)


def build(device):
    x = torch.ones(4, 8)
    x[1] = -1.0  # relu makes this row zero
    return Net().to(device), (x.to(device),)


def run(device="cuda", compile=False):
    net, args = build(device)
    return {"out": (torch.compile(net) if compile else net)(*args)}


def verify(out):
    net, args = build("cpu")
    got = {}
    for n in EXPECT["eager"]:
        net.get_submodule(n).register_forward_hook(
            lambda mod, i, o, n=n: got.__setitem__(n, {"nan": int(o.isnan().sum())})
        )
    net(*args)
    assert got == EXPECT["eager"] and int(out["out"][1].isnan().sum()) == 8
