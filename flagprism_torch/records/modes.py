"""Torch modes: the user's must not see what the tool does, nor change it."""

from __future__ import annotations

from typing import Any

import torch


class unseen:  # a scope, used like torch.no_grad
    """Torch operations of our own: no dispatch or function mode of the user sees or changes them.

    A class of two C++ guards, because it is entered twice for every recorded launch.
    """

    __slots__ = ("_dispatch", "_function")

    def __enter__(self) -> None:
        self._dispatch = torch._C._DisableTorchDispatch()
        self._function = torch._C.DisableTorchFunction()
        self._dispatch.__enter__()
        self._function.__enter__()

    def __exit__(self, *error: Any) -> None:
        self._function.__exit__(*error)
        self._dispatch.__exit__(*error)
