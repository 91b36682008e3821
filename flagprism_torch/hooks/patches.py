"""One scope that replaces foreign attributes and puts them back, last in, first out."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable
from typing import Any

from flagprism_torch.errors import PatchConflictWarning

_MISSING = object()


class Patches:
    """Replaced attributes of classes and modules, owned by an ExitStack.

    The raw `__dict__` entry is restored, so staticmethods, properties and inherited attributes
    survive. If another tool replaced our attribute meanwhile, it is left in place and
    PatchConflictWarning names it: our function below it passes launches through once we are gone.
    """

    def __init__(self, stack: contextlib.ExitStack) -> None:
        self._stack = stack

    def replace(self, owner: Any, name: str, make: Callable[[Any], Any]) -> None:
        """Set `owner.name` to `make(original)` until the stack unwinds."""
        raw = vars(owner).get(name, _MISSING)
        setattr(owner, name, make(getattr(owner, name)))
        self._stack.callback(_restore, owner, name, raw, vars(owner)[name])


def _restore(owner: Any, name: str, raw: Any, ours: Any) -> None:
    if vars(owner).get(name) is not ours:
        where = getattr(owner, "__qualname__", getattr(owner, "__name__", repr(owner)))
        warnings.warn(
            f"{where}.{name} was patched by another tool inside flagprism_torch.debug() and is left "
            "as it is; leave the two tools in the reverse order of entering",
            PatchConflictWarning,
            stacklevel=2,
        )
    elif raw is _MISSING:
        delattr(owner, name)
    else:
        setattr(owner, name, raw)
