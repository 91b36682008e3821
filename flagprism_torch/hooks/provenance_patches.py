"""The permanent patch set: the compile-time recorder, put into Inductor when Inductor loads.

`install()` costs nothing until something compiles: it leaves one finder in `sys.meta_path` that
waits for Inductor's Triton code generator. It does not import torch. What it changes afterwards is
text in generated wrappers (comments); kernel sources and cache keys stay as they are.
"""

from __future__ import annotations

import contextlib
import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
import threading
from collections import Counter
from collections.abc import Sequence
from types import ModuleType
from typing import Any

from flagprism_torch import provenance
from flagprism_torch.hooks.patches import Patches

SWITCH = "FLAGPRISM_PROVENANCE"

# The modules that provenance.statements wraps something in.
_TARGETS = (
    "torch._inductor.codecache",
    "torch._inductor.ir",
    "torch._inductor.loop_body",
    "torch._inductor.codegen.common",
    "torch._inductor.codegen.triton",
    "torch._inductor.codegen.wrapper",
)


class _Waiting(importlib.abc.MetaPathFinder):
    """Tells `patches` when one of `_TARGETS` has been executed; finds nothing itself."""

    def __init__(self, patches: _Patches) -> None:
        self.patches = patches
        self._busy = threading.local()

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname not in _TARGETS or getattr(self._busy, "active", False):
            return None
        self._busy.active = True  # the other finders answer
        try:
            spec = importlib.util.find_spec(fullname)
        finally:
            self._busy.active = False
        if spec is not None and spec.loader is not None:
            spec.loader = _Announcing(spec.loader, self.patches)
        return spec


class _Announcing(importlib.abc.Loader):
    """Runs the real loader, leaves no trace on the module, then tells `patches`."""

    def __init__(self, loader: Any, patches: _Patches) -> None:
        self.loader = loader
        self.patches = patches

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        result: ModuleType | None = self.loader.create_module(spec)
        return result

    def exec_module(self, module: ModuleType) -> None:
        module.__loader__ = self.loader
        if module.__spec__ is not None:
            module.__spec__.loader = self.loader
        self.loader.exec_module(module)
        self.patches.loaded(module.__name__)


class _Patches:
    """The recorder's patches in this process."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._finder: _Waiting | None = None
        self._executed: set[str] = set()
        self._stack = contextlib.ExitStack()
        self.applied = 0
        self.recorder: Any = None
        self.reason: str | None = "not installed"

    def install(self) -> bool:
        with self._lock:
            if os.environ.get(SWITCH) == "0":
                self.reason = f"{SWITCH}=0"
                return False
            if self._finder is not None or self.applied:
                return True
            self.reason = "waiting for torch._inductor.codegen"
            self._executed = {name for name in _TARGETS if _complete(name)}
            if not self._apply_if_ready():
                self._finder = _Waiting(self)
                sys.meta_path.insert(0, self._finder)
            provenance.on_uninstall(self.uninstall)
            return True

    def uninstall(self) -> None:
        with self._lock:
            self._stop_waiting()
            self._stack.close()
            self.applied = 0
            self.reason = "not installed"

    def loaded(self, name: str) -> None:
        """A target was executed."""
        with self._lock:
            self._executed.add(name)
            if self._finder is not None:
                self._apply_if_ready()

    def _apply_if_ready(self) -> bool:
        if not self._executed.issuperset(_TARGETS):
            return False
        self._stop_waiting()
        try:
            self._apply()
        except Exception as error:  # importing Inductor must work whatever happens here
            self.uninstall()
            self.reason = f"{type(error).__name__}: {error}"
        return True

    def _apply(self) -> None:
        from flagprism_torch.provenance import extern_markers, statements

        self.recorder = statements.Recorder()
        patches = Patches(self._stack)
        points = self.recorder.points()
        for point in points + (extern_markers.points(self.recorder) if points else []):
            patches.replace(point.owner, point.name, point.wrap)
            self.applied += 1
        self.reason = None if self.applied else "; ".join(self.recorder.missing)

    def _stop_waiting(self) -> None:
        if self._finder in sys.meta_path:
            sys.meta_path.remove(self._finder)
        self._finder = None


def _complete(name: str) -> bool:
    """Whether a module is loaded and not in the middle of its import."""
    module = sys.modules.get(name)
    spec = getattr(module, "__spec__", None)
    return module is not None and not getattr(spec, "_initializing", False)


_patches = _Patches()


def install() -> bool:
    """Install the recorder: at once if Inductor's code generator is loaded, else when it loads.

    Idempotent. Returns False if the environment says FLAGPRISM_PROVENANCE=0.
    """
    return _patches.install()


def uninstall() -> None:
    """Restore every attribute in reverse order and stop waiting. Idempotent.

    An attribute that somebody else replaced meanwhile is left alone with a PatchConflictWarning.
    Also reachable as `flagprism_torch.provenance.uninstall()`.
    """
    _patches.uninstall()


def applied() -> int:
    """Number of attributes of torch that are wrapped now."""
    return _patches.applied


def reason() -> str | None:
    """Why nothing is recorded now, or None."""
    return _patches.reason


def missing() -> list[str]:
    """Maps (launch, statement) that this torch does not allow to record, each with a reason."""
    return [] if _patches.recorder is None else list(_patches.recorder.missing)


def failures() -> Counter[str]:
    """Reason -> how often the recorder failed. A failure loses provenance, never a compilation."""
    return Counter() if _patches.recorder is None else Counter(_patches.recorder.failures)
