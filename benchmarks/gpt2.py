"""The GPT-2-small training step: batch 8 x 1024, bf16 autocast, AdamW; or all of it shrunk."""

from __future__ import annotations

import copy
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.ln1, self.ln2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.fc, self.out = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        parts = self.qkv(self.ln1(x)).split(width, 2)
        q, k, v = (p.view(batch, length, self.heads, -1).transpose(1, 2) for p in parts)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(y.transpose(1, 2).reshape(batch, length, width))
        return x + self.out(F.gelu(self.fc(self.ln2(x))))


class GPT(nn.Module):
    def __init__(self, vocabulary: int, width: int, heads: int, layers: int, length: int) -> None:
        super().__init__()
        self.wte, self.wpe = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.h = nn.ModuleList([Block(width, heads) for _ in range(layers)])
        self.lnf, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)

    def forward(self, tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        x = self.wte(tokens) + self.wpe(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.h:
            x = block(x)
        logits = self.head(self.lnf(x)).flatten(0, 1).float()
        return F.cross_entropy(logits, targets.flatten())


class Training:
    """A model with its batch and optimizer; `step()` is one training step, compiled or eager."""

    def __init__(self, device: str, small: bool, compiled: bool = True) -> None:
        sizes = (256, 32, 2, 1, 16) if small else (50304, 768, 12, 12, 1024)
        batch = 2 if small else 8
        vocabulary, width, _, layers, length = sizes
        torch.manual_seed(0)
        self.device = device
        self.shape = (
            f"{layers} layers x {width}, vocabulary {vocabulary}, batch {batch} x {length}, "
            "bf16 autocast, AdamW"
        )
        self.model = GPT(*sizes).to(device)
        high = min(vocabulary, 50000)
        self.tokens = torch.randint(0, high, (batch, length), device=device)
        self.targets = torch.randint(0, high, (batch, length), device=device)
        self._prepare(compiled)

    def _prepare(self, compiled: bool) -> None:
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4)
        self.forward: Any = torch.compile(self.model) if compiled else self.model

    def twin(self, compiled: bool) -> Training:
        """The same step with a copy of the model."""
        other = copy.copy(self)
        other.model = copy.deepcopy(self.model)
        other._prepare(compiled)
        return other

    def step(self) -> torch.Tensor:
        with torch.autocast(self.device, torch.bfloat16):
            loss = self.forward(self.tokens, self.targets)
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return loss
