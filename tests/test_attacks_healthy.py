"""Healthy programs that look suspicious: nothing may be reported."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch._dynamo
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import nn

import flagprism_torch
import flagprism_torch.backends.cpu as cpu


@pytest.fixture(scope="module", autouse=True)
def inductor() -> Iterator[None]:
    assert cpu.enable_cpu()
    yield
    torch._dynamo.reset()
    cpu.disable_cpu()


@triton.jit
def flash(Q, K, V, Out, L, scale, M: tl.constexpr, N: tl.constexpr, D: tl.constexpr,
          CAUSAL: tl.constexpr):  # fmt: skip
    first = tl.program_id(0) * M
    m = first + tl.arange(0, M)
    d = tl.arange(0, D)
    q = tl.load(Q + m[:, None] * D + d[None, :], m[:, None] < L, other=0.0)
    top = tl.full((M,), float("-inf"), tl.float32)
    total = tl.zeros((M,), tl.float32)
    acc = tl.zeros((M, D), tl.float32)
    end = tl.minimum(first + M, L) if CAUSAL else L
    for start in range(0, end, N):
        n = start + tl.arange(0, N)
        k = tl.load(K + n[None, :] * D + d[:, None], n[None, :] < L, other=0.0)
        v = tl.load(V + n[:, None] * D + d[None, :], n[:, None] < L, other=0.0)
        s = tl.dot(q, k) * scale
        seen = n[None, :] < L
        if CAUSAL:
            seen = seen & (m[:, None] >= n[None, :])
        s = tl.where(seen, s, float("-inf"))
        new = tl.maximum(top, tl.max(s, 1))
        alpha = tl.exp2(top - new)
        p = tl.exp2(s - new[:, None])
        total = total * alpha + tl.sum(p, 1)
        acc = acc * alpha[:, None] + tl.dot(p, v)
        top = new
    acc = acc / total[:, None]
    tl.store(Out + m[:, None] * D + d[None, :], acc, m[:, None] < L)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("length", [32, 40])
def test_flash_attention(causal: bool, length: int):
    torch.manual_seed(0)
    q, k, v = (torch.randn(length, 16) for _ in range(3))
    out = torch.zeros(length, 16)
    with flagprism_torch.debug(logdir=False) as session:
        flash[(triton.cdiv(length, 16),)](q, k, v, out, length, 0.25, M=16, N=32, D=16,
                                          CAUSAL=causal)  # fmt: skip
    scores = q.double() @ k.double().T * 0.25 * torch.log(torch.tensor(2.0, dtype=torch.float64))
    if causal:
        scores = scores.masked_fill(torch.ones(length, length).triu(1).bool(), float("-inf"))
    assert torch.allclose(out.double(), scores.softmax(-1) @ v.double(), atol=1e-4)
    assert session.anomalies == ()


class Model(nn.Module):
    """Embedding with padding, causal attention with -inf, dropout, layer norm, ignored targets."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(50, 16, padding_idx=0)
        self.norm, self.qkv = nn.LayerNorm(16), nn.Linear(16, 48)

    def forward(self, tokens: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens)
        batch, length, _ = x.shape
        q, k, v = self.qkv(self.norm(x)).view(batch, length, 3, 2, 8).permute(2, 0, 3, 1, 4)
        mask = torch.full((length, length), float("-inf")).triu(1)
        weights = F.dropout(F.softmax(q @ k.transpose(-1, -2) / 3 + mask, -1), 0.1)
        x = x + (weights @ v).transpose(1, 2).reshape(batch, length, 16)
        return F.cross_entropy(x.flatten(0, 1), target.flatten(), ignore_index=-100)


def test_forward_and_backward():
    torch._dynamo.reset()
    torch.manual_seed(0)
    model = Model()
    compiled = torch.compile(model)
    tokens, target = torch.randint(0, 50, (3, 7)), torch.randint(0, 16, (3, 7))
    tokens[0, 4:] = 0
    target[0, :3] = -100
    with flagprism_torch.debug(logdir=False, model=model) as session:
        compiled(tokens, target).backward()
    assert session.coverage.to_dict()["launches"] > 5
    assert session.anomalies == ()


MASKED = torch.arange(7) > 3


@pytest.mark.parametrize(
    "function",
    [
        lambda x: F.softmax(x.masked_fill(MASKED, float("-inf")), -1),
        lambda x: (x.max(1)[0], x.argmin(0), x.amax(1), x.cummax(1)[0], x.cumsum(1)),
        lambda x: (x.var(1), x.std(), F.normalize(x, dim=1), x.prod(1)),
        lambda x: F.dropout(x, 0.5) + torch.rand_like(x) + torch.randn_like(x),
        lambda x: F.max_pool2d(F.pad(x, (0, 1))[None, None], 3, 2, 1),
    ],
    ids=["softmax", "extremes", "moments", "random", "pooling"],
)
def test_functions(function: Callable[[torch.Tensor], Any]):
    torch._dynamo.reset()
    x = torch.randn(5, 7, generator=torch.Generator().manual_seed(0))
    with flagprism_torch.debug(logdir=False) as session:
        torch.compile(function)(x)
    assert len(session.table()) > 0
    assert session.anomalies == ()
