"""The gradient of sqrt at a distance of exactly zero: 1 / 0 is inf, times zero is NaN."""

import torch
from torch import nn

KIND = "nan_in_backward"
CAUSE = "two points coincide; the forward pass is finite, the backward pass divides by sqrt(0)"
MODE = "compile"
EXPECT = {
    "verdict": "anomaly",
    "anomaly": "nan",
    "where": "both",
    "module": "distance",
    "aten": "mul",
    "op": "arith.mulf",
    "cause": "0 * inf",
    "inf_cause": "x / 0",
    "phase_first_seen": "backward",
    "nan_count": 3,
    "inf_module": "distance",
    "inf_aten": "div",
    "inf_op": "arith.divf",
    "inf_count": 3,  # one distance, in the three lanes that its gradient is spread to
}
# Inductor writes the four rows out and divides once for each of them.
ON_GPU = {"inf_count": 1}


class Distance(nn.Module):
    def forward(self, a, b):
        return (a - b).pow(2).sum(-1).sqrt()


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(3))
        self.distance = Distance()

    def forward(self, a, b):
        return self.distance(a * self.scale, b).sum()


def build(device):
    a = torch.arange(12.0).reshape(4, 3)
    b = a.flip(0).clone()
    b[1] = a[1]
    return Net().to(device), (a.to(device), b.to(device))


def run(device="cuda", compile=False):
    net, args = build(device)
    loss = (torch.compile(net) if compile else net)(*args)
    loss.backward()
    return {"loss": loss.detach(), "grad": net.scale.grad}


def verify(out):
    assert torch.isfinite(out["loss"]) and int(out["grad"].isnan().sum()) == 3
