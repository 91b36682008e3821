"""10 layers multiply by 4 in fp16; eager overflows at layers.7, fused code at the final store."""

import torch
from torch import nn

KIND = "overflow_half"
SOURCE = "microsoft/onnxruntime#29043"
CAUSE = "activations grow past 65504 in fp16"
MODE = "compile"
EXPECT = {
    "verdict": "anomaly",
    "anomaly": "inf",
    "where": "both",
    "module": "layers.7",
    "aten": "mul.Tensor",
    "cause": "cast overflows fp16",
    "compiled_cpu": {"nan": 0, "inf": 8},
    "eager_first_inf_layer": 7,
    "eager_inf_per_layer": [0, 0, 0, 0, 0, 0, 0, 8, 8, 8],
    # fused: the whole chain is one fp32 kernel; the first non-finite value is made by the fp16
    # conversion of the output
    "compiled_first": {
        "module": "layers.9",
        "op": "arith.truncf",
        "max_before_cast": 1048576.0,
        "inf": 8,
    },
}


class Grow(nn.Module):
    def forward(self, x):
        return x * 4.0


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(*[Grow() for _ in range(10)])

    def forward(self, x):
        return self.layers(x)


def build(device):
    return Net().to(device), (torch.ones(8, dtype=torch.float16, device=device),)


def run(device="cuda", compile=False):
    net, args = build(device)
    return {"out": (torch.compile(net) if compile else net)(*args)}


def verify(out):
    net, args = build("cpu")
    got = []
    for m in net.layers:
        m.register_forward_hook(lambda mod, i, o: got.append(int(o.isinf().sum())))
    net(*args)
    assert got == EXPECT["eager_inf_per_layer"], got
    assert EXPECT["compiled_first"]["max_before_cast"] == 4.0**10
