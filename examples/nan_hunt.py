"""A NaN hunt: the loss of a compiled transformer turns NaN at step 3. Which line is to blame?

The second layer attends to a window of the last 4 tokens. At step 2 a batch holds a short sentence
for the first time, padded to 16 tokens. Behind its end a window sees padding only: all weights of
the row are 0, and normalising them divides 0 by 0. Padding has no loss, so the loss stays finite;
but in the backward pass 0 * NaN reaches the weights.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

import flagprism_torch

VOCABULARY, WIDTH, LENGTH, WINDOW = 64, 32, 16, 4
PADDING, NO_LOSS = 0, -100
STEPS, SHORT_SENTENCE_STEP = 4, 2


class Attention(nn.Module):
    def __init__(self, window: int) -> None:
        super().__init__()
        self.window = window
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.proj = nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, x: torch.Tensor, is_token: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        scores = q @ k.transpose(-1, -2) * WIDTH**-0.5
        position = torch.arange(x.shape[1], device=x.device)
        distance = position[:, None] - position
        visible = (distance >= 0) & (distance < self.window) & is_token[:, None, :]
        weights = (scores - scores.amax(-1, keepdim=True)).exp() * visible
        weights = weights / weights.sum(-1, keepdim=True)  # the fault: a row may have no key
        return self.proj(weights @ v)


class Layer(nn.Module):
    def __init__(self, window: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.attn = Attention(window)
        self.mlp = nn.Sequential(
            nn.Linear(WIDTH, 2 * WIDTH, bias=False),
            nn.GELU(),
            nn.Linear(2 * WIDTH, WIDTH, bias=False),
        )

    def forward(self, x: torch.Tensor, is_token: torch.Tensor) -> torch.Tensor:
        x = x + self.attn(self.norm(x), is_token)
        return x + self.mlp(x)


class Transformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.ModuleList([Layer(window=LENGTH), Layer(window=WINDOW)])
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        is_token = tokens != PADDING
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x, is_token)
        logits = self.head(x)
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=NO_LOSS)


def batches(device: str) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """(tokens, targets) of each step; one batch has a sentence of 9 tokens."""
    generator = torch.Generator().manual_seed(0)
    made = []
    for step in range(STEPS):
        text = torch.randint(1, VOCABULARY, (4, LENGTH + 1), generator=generator)
        tokens, targets = text[:, :-1].clone(), text[:, 1:].clone()
        if step == SHORT_SENTENCE_STEP:
            tokens[1, 9:], targets[1, 9:] = PADDING, NO_LOSS
        made.append((tokens.to(device), targets.to(device)))
    return made


def main(device: str) -> None:
    flagprism_torch.enable_cpu()  # without an accelerator: Triton kernels on the CPU
    torch.manual_seed(0)
    model = Transformer().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    compiled = torch.compile(model)

    losses = []
    with flagprism_torch.debug(level=1, model=model) as session:
        for tokens, targets in batches(device):
            loss = compiled(tokens, targets)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.detach())
            session.step()

    first = session.anomalies[0]
    print(first)
    print(f"first seen at step {first.step}, {first.phase}: {first.model_file}:{first.model_line}")
    print("loss by step:", ", ".join(f"{loss.item():.3f}" for loss in losses))
    print(f"TensorBoard run: tensorboard --logdir {session.logdir}")
    print()
    print(session.report("module"))


if __name__ == "__main__":
    main("cuda" if torch.cuda.is_available() else "cpu")
