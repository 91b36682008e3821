"""Healthy: the argument of log and of rsqrt is guarded too, so the gradient is finite."""

import torch
from torch import nn

KIND = "healthy"
CAUSE = "none: where() replaces the argument before the function and the result after it"
MODE = "compile"
EXPECT = {"verdict": "healthy", "modules": ["guarded"]}


class Guarded(nn.Module):
    def forward(self, p):
        positive = p > 0
        safe = torch.where(positive, p, 1.0)
        logs = torch.where(positive, safe.log(), 0.0)
        inverse = torch.where(positive, safe.rsqrt(), 0.0)
        return logs + inverse + torch.where(positive, 1.0 / safe, 0.0)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(6))
        self.guarded = Guarded()

    def forward(self, x):
        return self.guarded(x * self.weight).sum()


def build(device):
    return Net().to(device), (torch.tensor([0.5, 0.0, 0.25, -1.0, 1.0, 2.0], device=device),)


def run(device="cuda", compile=False):
    net, args = build(device)
    loss = (torch.compile(net) if compile else net)(*args)
    loss.backward()
    return {"loss": loss.detach(), "grad": net.weight.grad}


def verify(out):
    assert torch.isfinite(out["loss"]) and torch.isfinite(out["grad"]).all()
