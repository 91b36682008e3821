"""One scope that replaces foreign attributes and puts them back, last in, first out."""

from __future__ import annotations

import contextlib
import functools
import warnings
from collections.abc import Callable
from typing import Any

from flagprism_torch.errors import PatchConflictWarning

_MISSING = object()


class Patches:
    """Replaced attributes of classes and modules, owned by an ExitStack.

    The raw `__dict__` entry is restored, so staticmethods, properties and inherited attributes
    survive. If another tool replaced our attribute meanwhile, it is left in place and
    PatchConflictWarning names it: our function below it calls the original once we are gone.
    """

    def __init__(self, stack: contextlib.ExitStack) -> None:
        self._stack = stack
        self._on = True
        stack.callback(self._over)

    def replace(self, owner: Any, name: str, make: Callable[[Any], Any]) -> None:
        """Set `owner.name` to `make(original)`, a function, until the stack unwinds."""
        raw = vars(owner).get(name, _MISSING)
        original = getattr(owner, name)
        ours = make(original)

        @functools.wraps(original)
        def call(*args: Any, **kwargs: Any) -> Any:
            return (ours if self._on else original)(*args, **kwargs)

        setattr(owner, name, call)
        self._stack.callback(_restore, owner, name, raw, call)

    def at_exit(self, call: Callable[[], Any]) -> None:
        """Run `call` when the stack unwinds, before what was replaced earlier is restored."""
        self._stack.callback(call)

    def _over(self) -> None:
        self._on = False


def _restore(owner: Any, name: str, raw: Any, ours: Any) -> None:
    if vars(owner).get(name) is not ours:
        where = getattr(owner, "__qualname__", getattr(owner, "__name__", repr(owner)))
        warnings.warn(
            f"{where}.{name} was patched by another tool inside flagprism_torch.debug() and is "
            "left as it is; leave the two tools in the reverse order of entering",
            PatchConflictWarning,
            stacklevel=2,
        )
    elif raw is _MISSING:
        delattr(owner, name)
    else:
        setattr(owner, name, raw)
