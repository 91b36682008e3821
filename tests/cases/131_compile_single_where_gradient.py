"""where() hides log(0) in the forward pass; the gradient of the branch not taken is 0 / 0."""

import torch
from torch import nn

KIND = "nan_in_backward"
CAUSE = "the argument of log is not guarded, so its gradient is 0 divided by 0 where x is 0"
MODE = "compile"
EXPECT = {
    "verdict": "anomaly",
    "anomaly": "nan",
    "where": "both",
    "module": "entropy",
    "aten": "div",
    "op": "arith.divf",
    "cause": "0 / 0",
    "phase_first_seen": "backward",
    "nan_count": 2,
}


class Entropy(nn.Module):
    def forward(self, p):
        return torch.where(p > 0, p.log(), 0.0)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(6))
        self.entropy = Entropy()

    def forward(self, x):
        return self.entropy(x * self.weight).sum()


def build(device):
    return Net().to(device), (torch.tensor([0.5, 0.0, 0.25, 0.0, 1.0, 2.0], device=device),)


def run(device="cuda", compile=False):
    net, args = build(device)
    loss = (torch.compile(net) if compile else net)(*args)
    loss.backward()
    return {"loss": loss.detach(), "grad": net.weight.grad}


def verify(out):
    assert torch.isfinite(out["loss"]) and int(out["grad"].isnan().sum()) == 2
