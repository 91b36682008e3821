"""Torch modes: the user's must not see what the tool does, nor change it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch


@contextlib.contextmanager
def unseen() -> Iterator[None]:
    """Torch operations of our own: no dispatch or function mode of the user sees or changes them,
    no graph records them, and tensors made under `inference_mode` stay usable outside of it."""
    with (
        torch._C._DisableTorchDispatch(),
        torch._C.DisableTorchFunction(),
        torch.inference_mode(False),
        torch.no_grad(),
    ):
        yield
