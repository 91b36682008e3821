"""Launches of user `@triton.jit` kernels: `JITFunction.run`, a class attribute, inside the session.

Relied on (triton/runtime/jit.py: 3.6.0 :695, 3.7.1 :708, 3.8.0 :725, 3.9.0 :733): `run(*args, grid,
warmup, **kwargs)`; with `warmup=True` it compiles, runs the pre-run hooks and returns the kernel
without launching; `device_caches[device]` ends with (target, backend, binder); `_pack_args`.

`Autotuner.run` (triton/runtime/autotuner.py: 3.6.0 to 3.9.0) calls `_bench` for each configuration,
on the arguments of the launch, and then launches the best one; its own hooks restore what
`restore_value` names and zero `reset_to_zero`, unless the user gave others.
"""

from __future__ import annotations

import sys
import threading
from dataclasses import dataclass
from typing import Any

import torch

from flagprism_torch.hooks.collector import Collector
from flagprism_torch.hooks.parameters import Tuned
from flagprism_torch.hooks.patches import Patches
from flagprism_torch.instrument.twin import Building, Recipe, Twin

_OWN = "flagprism_torch."


def install(patches: Patches, collector: Collector) -> None:
    """Patch Triton's launch paths for user kernels."""
    from triton.compiler import CompiledKernel
    from triton.runtime.autotuner import Autotuner
    from triton.runtime.interpreter import InterpretedFunction
    from triton.runtime.jit import JITFunction

    tunings = _Tunings()
    patches.replace(Autotuner, "run", lambda original: _tuned_run(original, tunings))
    patches.replace(Autotuner, "_bench", lambda original: _bench(original, collector, tunings))
    patches.replace(CompiledKernel, "__getitem__", lambda original: _getitem(original, collector))
    patches.replace(JITFunction, "run", lambda original: _run(original, collector, tunings))
    if hasattr(InterpretedFunction, "run"):
        patches.replace(
            InterpretedFunction, "run", lambda original: _interpreted(original, collector)
        )


@dataclass
class _Tuning:
    """A call of an autotuner. `launches`: benchmarks so far."""

    autotuner: Any
    benchmarks: bool = False
    launches: int = 0

    def of(self, fn: Any) -> Tuned | None:
        """What was done to the arguments of `fn`'s launch; None: nothing, or unknown."""
        tuner = self.autotuner
        if not self.launches or _kernel_of(tuner) is not fn or len(tuner.configs) < 2:
            return None
        hooks = [getattr(config, "pre_hook", None) for config in tuner.configs]
        own = (getattr(tuner, f"user_defined_{which}_hook", True) for which in ("pre", "post"))
        kept = [getattr(tuner, name, None) for name in ("restore_value", "reset_to_zero")]
        if any(hooks) or any(own) or None in kept:
            return None
        return Tuned(self.launches, frozenset(name for names in kept for name in names or ()))


class _Tunings(threading.local):
    """The innermost call of an autotuner in this thread."""

    current: _Tuning | None = None


def _kernel_of(tuner: Any) -> Any:
    while hasattr(tuner, "fn") and not hasattr(tuner, "device_caches"):
        tuner = tuner.fn
    return tuner


def _tuned_run(original: Any, tunings: _Tunings) -> Any:
    def run(self: Any, *args: Any, **kwargs: Any) -> Any:
        outer = tunings.current
        tunings.current = _Tuning(self)
        try:
            return original(self, *args, **kwargs)
        finally:
            tunings.current = outer

    return run


def _run(original: Any, collector: Collector, tunings: _Tunings) -> Any:
    def run(self: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Any:
        name = self.fn.__name__
        if str(self.module).startswith(_OWN):
            return original(self, *args, grid=grid, warmup=warmup, **kwargs)
        reason = "warmup" if warmup else collector.pass_reason()
        if reason is None and grid is None:
            reason = "no grid"
        if reason is not None:
            collector.coverage.passed(name, reason)
            if tunings.current is not None and tunings.current.benchmarks and not warmup:
                tunings.current.launches += 1
            return original(self, *args, grid=grid, warmup=warmup, **kwargs)
        tuned = tunings.current.of(self) if tunings.current is not None else None
        return _record(original, collector, self, args, grid, kwargs, tuned)

    return run


def _record(
    original: Any,
    collector: Collector,
    fn: Any,
    args: Any,
    grid: Any,
    kwargs: dict[str, Any],
    tuned: Tuned | None,
) -> Any:
    from triton import knobs
    from triton.compiler import CompiledKernel
    from triton.runtime.driver import driver

    kernel = original(fn, *args, grid=grid, warmup=True, **kwargs)
    name = fn.fn.__name__
    if not isinstance(kernel, CompiledKernel):  # a cache hook vetoed, or compilation is deferred
        collector.coverage.not_instrumented(name, "no compiled kernel at launch")
        return original(fn, *args, grid=grid, warmup=False, **kwargs)
    device = driver.active.get_current_device()
    stream = driver.active.get_current_stream(device)
    target, backend, binder = fn.device_caches[device][-3:]
    options = {
        **kwargs,
        "debug": kwargs.get("debug", fn.debug) or knobs.runtime.debug,
        "instrumentation_mode": knobs.compilation.instrumentation_mode,
    }
    bound, specialization, rest = binder(*args, **options)

    def make(recipe: Recipe) -> Twin:
        packed = fn._pack_args(backend, options, bound, specialization, rest)[0]
        source = kernel.src
        building = Building(fn, source.signature, source.constants, source.attrs, target,
                            packed.__dict__, recipe)  # fmt: skip
        twin = building.finish()
        twin.kernel.src.forget()
        return twin

    sizes = grid(bound) if callable(grid) else grid
    dims = len(sizes)  # as Triton reads it, so that a wrong grid raises the same error
    g0, g1, g2 = sizes[0], sizes[1] if dims > 1 else 1, sizes[2] if dims > 2 else 1
    values = bound.values()

    def run(twin: Twin) -> Any:
        metadata = kernel.launch_metadata(sizes, stream, *values)
        return twin.kernel.run(
            g0, g1, g2, stream, twin.kernel.function, twin.kernel.packed_metadata, metadata,
            knobs.runtime.launch_enter_hook, knobs.runtime.launch_exit_hook, *values,
        )  # fmt: skip

    frame = _user_frame(sys._getframe(2))
    site = collector.site(name, frame)
    where = torch_device(driver.active)
    done, _ = collector.launch(
        kernel, None, name, site, where, stream, values, make, run, tuned=tuned
    )
    if not done:
        # the pre-run hooks ran already: launch the compiled kernel itself
        kernel.run(
            g0, g1, g2, stream, kernel.function, kernel.packed_metadata,
            kernel.launch_metadata(sizes, stream, *values),
            knobs.runtime.launch_enter_hook, knobs.runtime.launch_exit_hook, *values,
        )  # fmt: skip
    return kernel


def torch_device(active: Any) -> torch.device:
    """The torch device of Triton's active driver, with its index."""
    device = torch.device(active.get_active_torch_device())
    if device.type != "cpu" and device.index is None:
        return torch.device(device.type, active.get_current_device())
    return device


def _user_frame(frame: Any) -> Any:
    """The innermost frame outside Triton and this package."""
    found = frame
    while found is not None:
        name = found.f_globals.get("__name__", "")
        if not name.startswith(("triton.", _OWN)):
            return found
        found = found.f_back
    return frame


def _bench(original: Any, collector: Collector, tunings: _Tunings) -> Any:
    def _bench(self: Any, *args: Any, **kwargs: Any) -> Any:
        tuning = tunings.current
        if tuning is not None:
            tuning.benchmarks = True
        try:
            with collector.benchmarking():
                return original(self, *args, **kwargs)
        finally:
            if tuning is not None:
                tuning.benchmarks = False

    return _bench


def _getitem(original: Any, collector: Collector) -> Any:
    def __getitem__(self: Any, grid: Any) -> Any:
        runner = original(self, grid)

        def run(*args: Any, **kwargs: Any) -> Any:
            collector.coverage.passed(self.name, "compiled_kernel[grid]")
            return runner(*args, **kwargs)

        return run

    return __getitem__


def _interpreted(original: Any, collector: Collector) -> Any:
    def run(self: Any, *args: Any, **kwargs: Any) -> Any:
        collector.coverage.passed(getattr(self.fn, "__name__", "?"), "TRITON_INTERPRET")
        return original(self, *args, **kwargs)

    return run
