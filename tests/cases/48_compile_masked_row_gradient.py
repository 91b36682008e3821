"""The NaN row is cut off before the loss, yet its zero gradient times NaN reaches the weights."""

import torch
from torch import nn

KIND = "nan_in_backward"
SOURCE = "pytorch/pytorch#41508"
CAUSE = "softmax of an all -inf row; backward multiplies a zero gradient by NaN probabilities"
MODE = "compile"
EXPECT = {
    "verdict": "anomaly",
    "anomaly": "nan",
    "where": "both",
    "module": "attn",
    "aten": "_softmax",
    "op": "arith.subf",
    "cause": "inf - inf",
    "nan_count": 5,
    "phase_first_seen": "forward",
    "loss": "finite",
    "forward_nan": {"attn": 4},
    "grad_nan": {"proj.weight": 16},
}
PLACE = {k: EXPECT[k] for k in ("anomaly", "module", "aten", "op", "cause", "phase_first_seen")}
COLUMN = PLACE | {"nan_count": 1}
# Inductor sums a row of five in a kernel of its own, with a subtraction for each column, none of
# which enters another; the kernel after it subtracts again, in all columns at once.
ON_GPU = COLUMN | {"further": [COLUMN] * 4 + [PLACE | {"nan_count": 5}]}


class Attn(nn.Module):
    def forward(self, x, keep):
        s = (x @ x.t()).masked_fill(~keep, float("-inf"))
        return torch.softmax(s, -1) @ x


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.proj = nn.Linear(4, 4, bias=False)
        self.attn = Attn()
        with torch.no_grad():
            self.proj.weight.copy_(torch.eye(4))

    def forward(self, x, keep):
        return self.attn(self.proj(x), keep)[:-1].sum()


def build(device):
    x = torch.arange(20.0).reshape(5, 4) / 20
    keep = torch.ones(5, 5, dtype=torch.bool).tril()
    keep[4] = False
    return Net().to(device), (x.to(device), keep.to(device))


def run(device="cuda", compile=False):
    net, args = build(device)
    loss = (torch.compile(net) if compile else net)(*args)
    loss.backward()
    return {"loss": loss.detach(), "grad": net.proj.weight.grad}


def verify(out):
    assert torch.isfinite(out["loss"]) and int(out["grad"].isnan().sum()) == 16
    net, args = build("cpu")
    seen = []
    net.attn.register_forward_hook(lambda m, i, o: seen.append(int(o.isnan().sum())))
    net(*args)
    assert seen == [4], seen
