"""Four equal layers share one generated kernel; only the last has a zero in its scale."""

import torch
from torch import nn

KIND = "module_attribution"
CAUSE = "layers.3.scale has a zero; the kernel is the same for all layers"
MODE = "compile"
EXPECT = {
    "verdict": "anomaly",
    "anomaly": "inf",
    "where": "both",
    "module": "layers.3",
    "aten": "div.Tensor",
    "op": "arith.divf",
    "cause": "x / 0",
    "inf_count": 6,
    "healthy_modules": ["layers.0", "layers.1", "layers.2"],
}


class Layer(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.weight = nn.Parameter(torch.eye(d) + 0.125)
        self.scale = nn.Parameter(torch.full((d,), 2.0))

    def forward(self, x):
        return (x @ self.weight + 1.0) / self.scale


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(*[Layer(8) for _ in range(4)])
        with torch.no_grad():
            self.layers[3].scale[5] = 0.0

    def forward(self, x):
        return self.layers(x)


def build(device):
    return Net().to(device), (torch.arange(48.0, device=device).reshape(6, 8) / 48,)


def run(device="cuda", compile=False):
    net, args = build(device)
    with torch.no_grad():
        return {"out": (torch.compile(net) if compile else net)(*args)}


def verify(out):
    assert int(out["out"].isinf().sum()) == 6 and not out["out"].isnan().any()
