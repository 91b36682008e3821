"""Launches of Inductor's Triton kernels: `CachingAutotuner.run`, a class attribute.

Generated wrappers look the attribute up at every call, so models compiled before the session are
reached without a recompile, and restoring it leaves no trace. Relied on (torch/_inductor/runtime/
triton_heuristics.py: 2.11 :1407, 2.13 :2059, 2.14.1 :2440): `run(*args, stream, benchmark_run,
**kwargs)`, `launchers`, `precompile`, `autotune_to_one_config`, `_create_compile_meta`,
`_create_compile_options`, `TritonCompileResult(kernel, config, meta,
inductor_meta).make_launcher()`.

Note [Cold kernels]
Calling the original `run` first would launch in-place kernels twice. So a cold autotuner is
brought to one tuned launcher by the calls `run` itself makes before it launches, and only the twin
launches.
"""

from __future__ import annotations

import functools
import sys
from types import FrameType
from typing import Any

import torch

from flagprism_torch.hooks.ahead import Ahead
from flagprism_torch.hooks.collector import Collector
from flagprism_torch.hooks.patches import Patches
from flagprism_torch.instrument.twin import Building, Recipe, Twin


def install(patches: Patches, collector: Collector) -> None:
    """Patch Inductor's launch path."""
    from torch._inductor.runtime.triton_heuristics import CachingAutotuner

    ahead = Ahead()
    patches.replace(CachingAutotuner, "run", lambda original: _run(original, collector, ahead))
    patches.at_exit(ahead.close)


def _run(original: Any, collector: Collector, ahead: Ahead) -> Any:
    def run(self: Any, *args: Any, stream: Any, benchmark_run: bool = False, **kwargs: Any) -> Any:
        reason = collector.pass_reason()
        if benchmark_run:
            reason = "benchmark"
        elif getattr(self, "triton_interpret", False):
            reason = "TRITON_INTERPRET"
        if reason is not None:
            collector.coverage.passed(self.fn.__name__, reason)
            return original(self, *args, stream=stream, benchmark_run=benchmark_run, **kwargs)
        return _record(original, collector, ahead, self, args, stream, kwargs)

    return run


def _record(
    original: Any,
    collector: Collector,
    ahead: Ahead,
    autotuner: Any,
    args: Any,
    stream: Any,
    kwargs: Any,
) -> Any:
    name = _name(autotuner)
    with collector.benchmarking():
        _tune(autotuner, args, kwargs)
    (launcher,) = autotuner.launchers
    frame = sys._getframe(2)
    site = collector.site(name, frame)
    variant = _config_key(launcher.config)

    def make(recipe: Recipe) -> Twin:
        building = ahead.take(autotuner, (variant, recipe))
        _begin_others(collector, ahead, autotuner, frame)
        return _twin(autotuner, launcher, building or _building(autotuner, launcher, recipe))

    def run(twin: Any) -> Any:
        with _Surrounded(autotuner, launcher, args, stream, kwargs):
            return twin.launcher(*args, stream=stream, **kwargs)

    _set_allocator(autotuner)
    device = torch.device(autotuner.device_props.type, autotuner.device_props.index or 0)
    if device.type == "cpu":
        device = torch.device("cpu")
    named = (kwargs[name] for name in autotuner.fn.arg_names if name in kwargs)
    values = (*args, *named)
    done, result = collector.launch(
        autotuner, variant, name, site, device, stream or 0, values, make, run,
        generated=_is_generated(autotuner),
    )  # fmt: skip
    if done:
        return result
    return original(autotuner, *args, stream=stream, **kwargs)


def _name(autotuner: Any) -> str:
    return autotuner.inductor_meta.get("kernel_name") or autotuner.fn.__name__


def _is_generated(autotuner: Any) -> bool:
    """Whether Inductor wrote the kernel, and not a user whose kernel compiled code calls."""
    kind = getattr(autotuner, "heuristic_type", None)
    return getattr(kind, "name", "") != "USER_AUTOTUNE"


class _Surrounded:
    """Inductor's own scope around a launch: profiler ranges and DebugMode (2.13 and later)."""

    def __init__(self, autotuner: Any, launcher: Any, args: Any, stream: Any, kwargs: Any) -> None:
        self._call = (autotuner, launcher, args, stream, kwargs)
        self._on = hasattr(autotuner, "_pre_launch") and hasattr(autotuner, "_post_launch")

    def __enter__(self) -> None:
        if self._on:
            autotuner, launcher, args, stream, kwargs = self._call
            _tell_debug_mode(autotuner, args, kwargs)
            autotuner._pre_launch(launcher, *args, stream=stream, **kwargs)

    def __exit__(self, *_: object) -> None:
        if self._on:
            self._call[0]._post_launch()


def _tell_debug_mode(autotuner: Any, args: Any, kwargs: Any) -> None:
    """What `run` tells an active torch.utils._debug_mode.DebugMode; `_post_launch` finishes it."""
    from torch._inductor.runtime import triton_heuristics as heuristics

    active = getattr(heuristics, "get_active_debug_mode", None)
    mode = active() if active is not None and hasattr(autotuner, "_debug_call") else None
    if mode is not None:
        named = dict(zip(autotuner.triton_meta.get("signature", {}), args, strict=False))
        autotuner._debug_call = mode.record_triton_kernel(
            kernel_name=autotuner.fn.__name__, kwargs={**named, **kwargs}
        )


def _tune(autotuner: Any, args: Any, kwargs: Any) -> None:
    """Bring a cold autotuner to one launcher (Note [Cold kernels])."""
    if len(autotuner.launchers) == 0:
        autotuner.precompile()
    if len(autotuner.launchers) > 1:
        autotuner.autotune_to_one_config(*args, **kwargs)
    if _wants(autotuner, *_COMBO):
        autotuner.launchers = [
            autotuner._combo_sequential_autotune(autotuner.launchers[0], *args, **kwargs)
        ]
    if _wants(autotuner, *_DESCENT):
        autotuner.launchers = [
            autotuner.coordinate_descent_tuning(autotuner.launchers[0], *args, **kwargs)
        ]


# of tunings that start from one launcher: the setting that asks, the mark of a result
_COMBO = "combo_tuning_groups", "found_by_combo_autotune"
_DESCENT = "coordinate_descent_tuning", "found_by_coordesc"


def _wants(autotuner: Any, setting: str, mark: str) -> bool:
    found = getattr(autotuner.launchers[0].config, mark, False)
    return bool(autotuner.inductor_meta.get(setting)) and not found


def _tuned(autotuner: Any) -> bool:
    """Whether a launch would tune nothing any more."""
    return (
        len(autotuner.launchers) == 1
        and not _wants(autotuner, *_COMBO)
        and not _wants(autotuner, *_DESCENT)
    )


def _begin_others(collector: Collector, ahead: Ahead, autotuner: Any, frame: FrameType) -> None:
    """Begin twins of the kernels beside `autotuner`, if none of them is left to tune: busy threads
    would disturb its benchmarks, and Inductor keeps what it finds."""
    beside = _beside(autotuner, frame)
    if not all(_tuned(other) for other in beside):
        return
    for other in beside:
        launcher = other.launchers[0]
        recipe = collector.recipe_for(other, _name(other))
        twin = _config_key(launcher.config), recipe
        if not collector.settled(other, *twin):
            ahead.begin(other, twin, functools.partial(_building, other, launcher, recipe))


def _beside(autotuner: Any, frame: FrameType | None) -> list[Any]:
    """The kernels of the generated module that launches `autotuner`, in the order of their first
    launch; the module is the first from `frame` outwards that knows it."""
    while frame is not None:
        known = list(frame.f_globals.values())
        if any(value is autotuner for value in known):
            return [value for value in known if isinstance(value, type(autotuner))]
        frame = frame.f_back
    return []


def _building(autotuner: Any, launcher: Any, recipe: Recipe) -> Building:
    """The twin of a tuned launcher, to be compiled."""
    from torch._inductor.runtime import triton_heuristics as heuristics

    if autotuner.fn.fn is None:  # from a compile worker or a bundle: the function was not pickled
        autotuner.fn = _reloaded(autotuner)
    meta = autotuner._create_compile_meta(launcher.config)
    options = autotuner._create_compile_options(launcher.config, meta)
    target = heuristics.GPUTarget(meta["device_type"], meta["cc"], _warp_size(autotuner))
    return Building(
        autotuner.fn, meta["signature"], meta["constants"], meta["configs"][0], target,
        options, recipe,
    )  # fmt: skip


def _twin(autotuner: Any, launcher: Any, building: Building) -> Twin:
    """The loaded twin of a tuned launcher, with a launcher of Inductor's own making."""
    from torch._dynamo.device_interface import DeviceGuard
    from torch._inductor.runtime import triton_heuristics as heuristics

    bundler: Any = getattr(heuristics, "TritonBundler", None)
    if hasattr(bundler, "put_winner"):  # as `run` does: the original stays in Inductor's caches
        bundler.put_winner(launcher.cache_hash)
    meta = autotuner._create_compile_meta(launcher.config)
    guard = DeviceGuard(autotuner.get_device_interface(), autotuner.triton_meta["device"])
    with guard:
        twin = building.finish()
        plain = {**autotuner.inductor_meta, "store_cubin": False}
        kernel = twin.kernel
        names = kernel.src.fn.arg_names
        # hidden arguments are appended by the twin itself
        kernel.src.fn.arg_names = names[: -len(kernel.src.hidden)]
        try:
            result = heuristics.TritonCompileResult(kernel, launcher.config, meta, plain)
            twin.launcher = result.make_launcher()
        finally:
            kernel.src.fn.arg_names = names
    kernel.src.forget()
    return twin


def _reloaded(autotuner: Any) -> Any:
    reload = getattr(autotuner, "_reload_kernel", None)
    if reload is not None:
        return reload().fn
    from torch._inductor.codecache import PyCodeCache

    with open(autotuner.filename) as file:  # noqa: PTH123
        module = PyCodeCache.load(file.read())
    return getattr(module, autotuner.inductor_meta["kernel_name"]).fn


def _warp_size(autotuner: Any) -> int:
    return getattr(autotuner.device_props, "warp_size", None) or 32


def _config_key(config: Any) -> Any:
    return (tuple(sorted(config.kwargs.items())), config.num_warps, config.num_stages)


def _set_allocator(autotuner: Any) -> None:
    """What `run` does before a launch: kernels may ask for global scratch memory."""
    import triton

    if not hasattr(triton, "set_allocator"):
        return
    kind = autotuner.device_props.type

    def allocate(size: int, align: int, stream: int | None) -> torch.Tensor:
        return torch.empty(size, dtype=torch.int8, device=kind)

    triton.set_allocator(allocate)
