"""Putting the backend into Triton and Inductor, and taking it out again."""

from __future__ import annotations

import sys
import threading
from typing import Any

_LOCK = threading.RLock()
_HOLDERS: set[str] = set()
_SAVED_DRIVERS: list[tuple[Any, Any]] = []  # (default, active) before registration
_SAVED_CONFIG: dict[str, Any] = {}


def register(holder: str = "user") -> bool:
    """Register the Triton backend `cpu` in this process, for plain Triton kernels on CPU tensors.

    `holder` names who needs it: several may, and it stays until the last one unregisters. Doing so
    twice for one holder is the same as once. Inductor's settings are not touched.

    Returns whether the backend is usable: False, and nothing is changed, where torch sees a CUDA,
    ROCm or XPU device.
    """
    import triton.backends
    from triton.runtime import driver

    from .compiler import CPUBackend
    from .driver import CPUDriver

    if not CPUDriver.is_active():
        return False
    with _LOCK:
        if not _HOLDERS:
            triton.backends.backends["cpu"] = triton.backends.Backend(CPUBackend, CPUDriver)
            # DriverConfig caches what it resolved before (triton/runtime/driver.py)
            kept = isinstance(driver._active, CPUDriver)  # by an earlier `unregister`
            _SAVED_DRIVERS.append((driver._default, None if kept else driver._active))
            driver._default = driver._active = None
            _forget_triton_answers()
        _HOLDERS.add(holder)
    return True


def unregister(holder: str = "user") -> None:
    """Undo `register(holder)`; without one, does nothing.

    Nothing new can be compiled then. Kernels that are still alive ask `driver.active` when they are
    launched, and from Triton 3.8 on when they are freed (CompiledKernel.__del__), so as long as
    there are some the driver stays the active one unless another was active before.
    """
    with _LOCK:
        if holder not in _HOLDERS:
            return
        _HOLDERS.discard(holder)
        if _HOLDERS:
            return
        import triton.backends
        from triton.runtime import driver

        from .driver import CPUDriver, CPULauncher

        triton.backends.backends.pop("cpu", None)
        driver._default, driver._active = _SAVED_DRIVERS.pop()
        if driver._default is None and driver._active is None and CPULauncher.alive:
            driver._active = CPUDriver()
        _forget_triton_answers()


def _forget_triton_answers() -> None:
    """torch remembers whether a Triton driver exists (torch/utils/_triton.py, functools.cache)."""
    answers = sys.modules.get("torch.utils._triton")
    for name in ("has_triton", "triton_backend", "triton_hash_with_backend"):
        clear = getattr(getattr(answers, name, None), "cache_clear", None)
        if clear is not None:
            clear()


def enable_cpu() -> bool:
    """Make torch.compile generate Triton kernels for CPU tensors and execute them with NumPy.

    Call it before torch.compile runs. Registers the backend and sets Inductor's settings
    `cpu_backend = "triton"` and `compile_threads = 1` (a warm pool of compile workers does not know
    the backend). Calling it twice is the same as once; `disable_cpu` undoes it.

    Returns False, and changes nothing, where torch sees a CUDA, ROCm or XPU device.
    """
    with _LOCK:
        if not register("enable_cpu"):
            return False
        import torch._inductor.config as config

        if not _SAVED_CONFIG:
            for name, value in (("cpu_backend", "triton"), ("compile_threads", 1)):
                _SAVED_CONFIG[name] = getattr(config, name)
                setattr(config, name, value)
    return True


def disable_cpu() -> None:
    """Undo `enable_cpu`: restores Inductor's settings and unregisters the backend. Functions that
    are compiled already keep working."""
    with _LOCK:
        if _SAVED_CONFIG:
            import torch._inductor.config as config

            for name, value in _SAVED_CONFIG.items():
                setattr(config, name, value)
            _SAVED_CONFIG.clear()
        unregister("enable_cpu")


def is_registered() -> bool:
    """Whether the backend is in Triton's table now."""
    return bool(_HOLDERS)
