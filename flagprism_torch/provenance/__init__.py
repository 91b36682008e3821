"""Where a launch and each value in it come from: module, ATen op, model line, phase.

`statements` records while Inductor compiles, `callsites` reads it back at a launch, `modules` names
the running module of eager launches.
"""

from __future__ import annotations

from collections.abc import Callable

_uninstallers: list[Callable[[], None]] = []


def on_uninstall(callback: Callable[[], None]) -> None:
    """Have `uninstall()` call `callback`. hooks registers its patches here, because this package
    may not import hooks."""
    if callback not in _uninstallers:
        _uninstallers.append(callback)


def uninstall() -> None:
    """Remove the compile-time recorder from torch, if it is installed. Wrappers that were generated
    with it keep their comments."""
    while _uninstallers:
        _uninstallers.pop()()
