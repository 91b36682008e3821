"""A zero in the scale of block 1 gives inf; block 2 subtracts infinities, so NaN. Name block 1."""

import torch
from torch import nn

KIND = "module_attribution"
SOURCE = "microsoft/onnxruntime#28442"
CAUSE = "division by a zero parameter in blocks.1; blocks.2 only spreads it"
MODE = "compile"
EXPECT = {
    "verdict": "anomaly",
    "anomaly": "inf",
    "where": "both",
    "module": "blocks.1",
    "aten": "div.Tensor",
    "cause": "x / 0",
    "later": [{"module": "blocks.2", "aten": "sub.Tensor", "anomaly": "nan"}],
    "eager": {
        "blocks.0": {"nan": 0, "inf": 0},
        "blocks.1": {"nan": 0, "inf": 4},
        "blocks.2": {"nan": 4, "inf": 28},
    },
    "compiled_cpu": {"nan": 4, "inf": 28},
    "healthy_modules": ["blocks.0"],
}


class Block(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(d))

    def forward(self, x):
        h = (x + 1.0) / self.scale
        return h - h.amax(-1, keepdim=True)


class Divide(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(d))

    def forward(self, x):
        return (x + 9.0) / self.scale


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.Sequential(Block(8), Divide(8), Block(8))
        with torch.no_grad():
            self.blocks[1].scale[3] = 0.0

    def forward(self, x):
        return self.blocks(x)


def build(device):
    return Net().to(device), (torch.arange(32.0, device=device).reshape(4, 8),)


def run(device="cuda", compile=False):
    net, args = build(device)
    with torch.no_grad():
        return {"out": (torch.compile(net) if compile else net)(*args)}


def per_module(device="cpu"):
    net, args = build(device)
    got = {}
    for n, m in net.named_modules():
        if n.startswith("blocks."):
            m.register_forward_hook(
                lambda mod, i, o, n=n: got.__setitem__(
                    n, {"nan": int(o.isnan().sum()), "inf": int(o.isinf().sum())}
                )
            )
    with torch.no_grad():
        net(*args)
    return got


def verify(out):
    got = per_module()
    # h in blocks.2 is +inf in column 3 and so is its row maximum: inf - inf is NaN there, and
    # finite - inf is -inf elsewhere
    assert got == EXPECT["eager"], got
