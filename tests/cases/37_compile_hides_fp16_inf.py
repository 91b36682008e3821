"""Eager overflows in fp16; the fused kernel keeps fp32 and stays finite. Tell the runs apart."""

import torch
from torch import nn

KIND = "eager_only_inf"
SOURCE = "pytorch/pytorch#183607"
CAUSE = "Inductor removes the fp16 round trip between fused operations"
MODE = "compile"
EXPECT = {
    "verdict": "divergence",
    "anomaly": "inf",
    "where": "eager",
    "module": "sq",
    "aten": "mul.Tensor",
    "eager": {"nan": 0, "inf": 1},
    "compiled_cpu": {"nan": 0, "inf": 0, "max": 25000000.0},
    "with_emulate_precision_casts": {"nan": 0, "inf": 1},
}


class Square(nn.Module):
    def forward(self, x):
        h = x.to(torch.float16)
        return (h * h).to(torch.float32)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.sq = Square()

    def forward(self, x):
        return self.sq(x)


def build(device):
    return Net().to(device), (torch.tensor([1.0, 200.0, 5000.0, 255.0], device=device),)


def run(device="cuda", compile=False):
    net, args = build(device)
    return {"out": (torch.compile(net) if compile else net)(*args)}


def verify(out):
    o = out["out"]
    assert int(o.isinf().sum()) == 1 and not o.isnan().any() and o[2].isinf()
