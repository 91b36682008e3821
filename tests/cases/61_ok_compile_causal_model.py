"""Healthy compiled model: causal mask with -inf, dropout off, tail block, GELU and LayerNorm."""

import torch
from torch import nn

KIND = "healthy"
SOURCE = "pytorch/pytorch#154455"
CAUSE = "none"
MODE = "compile"
EXPECT = {
    "verdict": "healthy",
    "modules": ["ln", "attn", "mlp"],
    "eager": {"nan": 0, "inf": 0},
    "benign_inf": "attn scores",
}


class Attn(nn.Module):
    def forward(self, x):
        t, d = x.shape
        s = (x @ x.t()) / d**0.5
        s = s.masked_fill(
            torch.ones(t, t, dtype=torch.bool, device=x.device).triu(1), float("-inf")
        )
        return torch.softmax(s, -1) @ x


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln = nn.LayerNorm(24)
        self.attn = Attn()
        self.mlp = nn.Sequential(nn.Linear(24, 40), nn.GELU(), nn.Linear(40, 24))

    def forward(self, x):
        x = x + self.attn(self.ln(x))
        return x + self.mlp(x)


def build(device):
    torch.manual_seed(0)
    x = torch.sin(torch.arange(13 * 24.0)).reshape(13, 24)  # 13 rows: not a power of two
    return Net().eval().to(device), (x.to(device),)


def run(device="cuda", compile=False):
    net, args = build(device)
    with torch.no_grad():
        return {"out": (torch.compile(net) if compile else net)(*args)}


def verify(out):
    assert torch.isfinite(out["out"]).all()
