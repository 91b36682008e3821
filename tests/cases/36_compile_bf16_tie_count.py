"""Ties with the maximum are counted after a bf16 division; fused code finds none, 1/0."""

import torch
from torch import nn

KIND = "compile_only_nan"
SOURCE = "pytorch/pytorch#195214"
CAUSE = "the bf16 rounding between the division and the equality is dropped by fusion"
MODE = "compile"
EXPECT = {
    "verdict": "anomaly",
    "anomaly": "inf",
    "where": "cpp",
    "module": "grad",
    "aten": "reciprocal",
    "cause_aten": "eq.Tensor",
    "eager": {"nan": 0, "inf": 0},
    "compiled_cpu": {"nan": 0, "inf": 4},
    "off_switch": "torch._inductor.config.emulate_precision_casts = True",
    "emulated_unrounded_ties": [0, 0, 0, 0],
}


class TieShare(nn.Module):
    def forward(self, x):
        scaled = x / 3.0
        top = scaled.amax(-1, keepdim=True)
        ties = (scaled == top).sum(-1, keepdim=True)
        return 1.0 / ties.float()


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.grad = TieShare()

    def forward(self, x):
        return self.grad(x)


def build(device):
    x = ((torch.arange(64) * 13 % 31).reshape(4, 16) * 3 + 1).to(
        torch.bfloat16
    )  # never a multiple of 3
    return Net().to(device), (x.to(device),)


def run(device="cuda", compile=False):
    net, args = build(device)
    return {"out": (torch.compile(net) if compile else net)(*args)}


def verify(out):
    assert torch.isfinite(out["out"]).all() and (out["out"] <= 1).all()
    x = build("cpu")[1][0]
    scaled = x.float() / 3.0
    top = (
        scaled.to(torch.bfloat16).amax(-1, keepdim=True).float()
    )  # only the maximum was materialised
    ties = (scaled == top).sum(-1).tolist()
    assert ties == EXPECT["emulated_unrounded_ties"], ties
