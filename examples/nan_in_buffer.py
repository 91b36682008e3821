"""A NaN that no kernel made: it is loaded, from a buffer of the model.

One bad sample in training spoils the running statistics of a batch norm for good. In evaluation the
compiled model loads them: the anomaly names the kernel's argument and the buffer.
"""

from __future__ import annotations

import torch
from torch import nn

import flagprism_torch

BROKEN_FEATURE = 2


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(nn.BatchNorm1d(8), nn.GELU())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.features(x)


def main(device: str) -> None:
    flagprism_torch.enable_cpu()  # without an accelerator: Triton kernels on the CPU
    torch.manual_seed(0)
    net = Net().to(device)
    x = torch.randn(16, 8, device=device)
    bad = x.clone()
    bad[0, BROKEN_FEATURE] = float("nan")
    net(bad)

    net.eval()
    compiled = torch.compile(net)
    with flagprism_torch.debug(model=net, logdir=False) as session, torch.no_grad():
        compiled(x)

    print(session.report("module"))
    for anomaly in session.anomalies:
        print(f"{anomaly.verdict} from {anomaly.details['name']}: {anomaly.counts['nan']} lanes")


if __name__ == "__main__":
    main("cuda" if torch.cuda.is_available() else "cpu")
