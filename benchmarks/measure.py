"""Medians of interleaved runs, device times of kernels, and the conditions of a measurement."""

from __future__ import annotations

import contextlib
import datetime
import math
import os
import platform
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
import triton

import flagprism_torch

Step = Callable[[], Any]
Variant = Callable[[], contextlib.AbstractContextManager[Step]]


def synchronize(device: str) -> None:
    if device != "cpu":
        torch.accelerator.synchronize()


@contextlib.contextmanager
def plain(step: Step) -> Iterator[Step]:
    """The variant without a tool."""
    yield step


@contextlib.contextmanager
def level_1(step: Step, **options: Any) -> Iterator[Step]:
    """Inside a session; `session.step()` belongs to the measured step."""
    with flagprism_torch.debug(level=1, **options) as session:

        def observed() -> None:
            step()
            session.step()

        yield observed


def interleaved(
    variants: Mapping[str, Variant], device: str, runs: int, inner: int
) -> dict[str, float]:
    """Median milliseconds per step of each variant.

    In each of `runs` rounds every variant is entered, does one step that is not measured, then
    `inner` steps in a row between two synchronisations.
    """
    times: dict[str, list[float]] = {name: [] for name in variants}
    for _ in range(runs):
        for name, enter in variants.items():
            with enter() as step:
                step()
                synchronize(device)
                start = time.perf_counter()
                for _ in range(inner):
                    step()
                synchronize(device)
                times[name].append((time.perf_counter() - start) * 1e3 / inner)
    return {name: statistics.median(found) for name, found in times.items()}


def kernel_times(step: Step, device: str, repeats: int) -> dict[str, float]:
    """Kernel name -> microseconds per step, of Triton kernels (Inductor's, and the fold of records)
    by torch's profiler. On a CPU, which it does not see, the time of Inductor's launch calls."""
    totals: dict[str, float] = defaultdict(float)
    if device == "cpu":
        with _timed_launches(totals):
            for _ in range(repeats):
                step()
        return {name: t / repeats for name, t in totals.items()}
    from torch.profiler import ProfilerActivity, profile

    synchronize(device)
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as found:
        for _ in range(repeats):
            step()
        synchronize(device)
    for event in found.events():
        if event.device_type != torch.autograd.DeviceType.CUDA:
            continue
        if getattr(event, "is_user_annotation", False):
            continue
        totals[event.name] += event.time_range.elapsed_us() / repeats
    return dict(totals)


@contextlib.contextmanager
def _timed_launches(totals: dict[str, float]) -> Iterator[None]:
    from torch._inductor.runtime.triton_heuristics import CachingAutotuner

    original = CachingAutotuner.run

    def run(self: Any, *args: Any, **kwargs: Any) -> Any:
        start = time.perf_counter()
        result = original(self, *args, **kwargs)
        totals[self.fn.__name__] += (time.perf_counter() - start) * 1e6
        return result

    CachingAutotuner.run = run  # type: ignore[method-assign]
    try:
        yield
    finally:
        CachingAutotuner.run = original  # type: ignore[method-assign]


def geometric_mean(ratios: list[float]) -> float:
    return math.exp(statistics.fmean(map(math.log, ratios)))


def conditions(device: str) -> dict[str, str]:
    """What a number means nothing without."""
    name = platform.processor() or platform.machine()
    if device != "cpu":
        name = torch.get_device_module(device).get_device_name()
    return {
        "device": f"{name} ({os.cpu_count()} CPU cores)",
        "torch": torch.__version__,
        "triton": triton.__version__,
        "python": platform.python_version(),
        "flagprism_torch": flagprism_torch.__version__,
        "date": datetime.date.today().isoformat(),
    }
