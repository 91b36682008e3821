"""A whole training run under observation: one step of statistics per training step, read back by
step, as a table, and in TensorBoard down to single statements.
"""

from __future__ import annotations

import importlib.util

import torch
from torch import nn

import flagprism_torch

STEPS = 5


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.LayerNorm(32))
        self.head = nn.Linear(32, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(x))


def main(device: str) -> None:
    flagprism_torch.enable_cpu()  # without an accelerator: Triton kernels on the CPU
    torch.manual_seed(0)
    net = Net().to(device)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    x = torch.randn(64, 16, device=device)
    target = x.square().sum(1, keepdim=True)

    @torch.compile
    def loss_of(x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return (net(x) - target).square().mean()

    losses = []
    with flagprism_torch.debug(model=net, tensorboard_detail="statement") as session:
        for _ in range(STEPS):
            loss = loss_of(x, target)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.detach())
            session.step()  # closes step 0, 1, ...

    print(f"TensorBoard run: tensorboard --logdir {session.logdir}")
    for step in range(STEPS):
        row = session.table(step=step).where(aten="aten.tanh", phase="forward")[-1]
        print(
            f"step {step}: loss {losses[step].item():.4f}, tanh {row.live} lanes, "
            f"from {row.min:.4f} to {row.max:.4f}, mean {row.mean:+.4f}, l2 {row.l2:.3f}"
        )
    table = session.table(step=STEPS - 1)
    if importlib.util.find_spec("pandas") is not None:
        frame = table.to_pandas()
        print(frame.groupby(["module", "phase"])[["live", "nan", "posinf"]].sum())
    else:
        for row in table:
            print(row.module, row.phase, row.statement, row.live, row.nan, row.posinf)
    print(session.coverage.line())


if __name__ == "__main__":
    main("cuda" if torch.cuda.is_available() else "cpu")
