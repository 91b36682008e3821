"""Adam with eps=0: parameters that got no gradient are updated by 0 / 0."""

import torch
from torch import nn

KIND = "nan_in_optimizer"
CAUSE = "the second moment of unused parameters is zero and eps does not keep it from that"
MODE = "compile"
EXPECT = {
    "verdict": "anomaly",
    "anomaly": "nan",
    "where": "both",
    "aten": "addcdiv",
    "op": "arith.divf",
    "cause": "0 / 0",
    "phase_first_seen": "optimizer",
    "nan_count": 3,
}
# the default of torch.optim there: foreach=True
ON_GPU = {"aten": "_foreach_addcdiv"}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(8))

    def forward(self, x):
        return (self.weight * x).sum()


def build(device):
    x = torch.tensor([1.0, 0.0, 2.0, 0.0, 3.0, -1.0, 0.0, 4.0], device=device)
    return Net().to(device), (x,)


def run(device="cuda", compile=False):
    net, args = build(device)
    optimizer = torch.optim.Adam(net.parameters(), lr=0.1, eps=0.0)
    loss = (torch.compile(net) if compile else net)(*args)
    loss.backward()
    (torch.compile(optimizer.step) if compile else optimizer.step)()
    return {"loss": loss.detach(), "weight": net.weight.detach()}


def verify(out):
    assert torch.isfinite(out["loss"]) and int(out["weight"].isnan().sum()) == 3
