"""The groups of rows. A group runs in a process of its own and returns its rows: what was measured,
milliseconds, the ratio to the group's baseline, and how."""

from __future__ import annotations

import contextlib
import functools
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

import flagprism_torch
from benchmarks import kernels
from benchmarks.gpt2 import Training
from benchmarks.measure import (
    Step,
    Variant,
    geometric_mean,
    interleaved,
    kernel_times,
    level_1,
    plain,
    synchronize,
)
from flagprism_torch.hooks import ahead


@dataclass(frozen=True)
class Line:
    """One line of the table. `ratio`: to the baseline of its group, None for a baseline."""

    what: str
    ms: float
    ratio: float | None = None
    note: str = ""


Group = Callable[[str, bool], list[Line]]


def measured(group: str, device: str, small: bool) -> list[dict[str, Any]]:
    """The lines of one group as plain data."""
    return [asdict(line) for line in GROUPS[group](device, small)]


@functools.cache
def _training(device: str, small: bool) -> Training:
    made = Training(device, small)
    for _ in range(3):
        made.step()
    return made


def _step(device: str, small: bool) -> list[Line]:
    """The training step without a tool and under level 1."""
    training = _training(device, small)
    model, step = training.model, training.step
    variants: dict[str, Variant] = {
        "torch.compile, no tool": lambda: plain(step),
        "level 1": lambda: level_1(step, model=model, logdir=False),
    }
    lines = _against_first(variants, device, (2, 1) if small else (7, 10))
    with flagprism_torch.debug(model=model, logdir=False) as session:
        step()
    notes = [training.shape, session.coverage.line()]
    return [replace(line, note=note) for line, note in zip(lines, notes, strict=True)]


def _tensorboard(device: str, small: bool) -> list[Line]:
    """The training step under level 1 with its summaries written."""
    training = _training(device, small)
    with tempfile.TemporaryDirectory() as folder:
        variants: dict[str, Variant] = {
            "torch.compile, no tool (again)": lambda: plain(training.step),
            "level 1, TensorBoard": lambda: level_1(
                training.step, model=training.model, logdir=folder
            ),
        }
        return _against_first(variants, device, (2, 1) if small else (5, 5))


def _addresses(device: str, small: bool) -> list[Line]:
    """The training step with addresses and bounds, with a guard, and with records on the host."""
    training = _training(device, small)
    step, options = training.step, {"model": training.model, "logdir": False}
    variants: dict[str, Variant] = {
        "torch.compile, no tool (again)": lambda: plain(step),
        "level 1, addr_level 1": lambda: level_1(step, addr_level=1, **options),
        "level 1, guard": lambda: level_1(step, guard=True, **options),
        "level 1, export_on_error": lambda: level_1(step, export_on_error=True, **options),
    }
    return _against_first(variants, device, (2, 1) if small else (5, 5))


def _eager(device: str, small: bool) -> list[Line]:
    """The eager step, and with statistics of module outputs by hooks."""
    training = _training(device, small)
    eager, hooked = training.twin(compiled=False), training.twin(compiled=False)
    found: list[torch.Tensor] = []
    for module in hooked.model.modules():
        module.register_forward_hook(_six_statistics(found))

    def hooked_step() -> None:
        hooked.step()
        found.clear()

    variants: dict[str, Variant] = {
        "torch.compile, no tool (again)": lambda: plain(training.step),
        "eager, no tool": lambda: plain(eager.step),
        "eager, hooks with six statistics": lambda: plain(hooked_step),
    }
    lines = _against_first(variants, device, (2, 1) if small else (7, 10))
    note = "forward module outputs only, no synchronisation"
    return [*lines[:2], replace(lines[2], note=note)]


def _against_first(
    variants: Mapping[str, Variant], device: str, times: tuple[int, int]
) -> list[Line]:
    """Lines of variants, ratios to the first. times: rounds, steps in each."""
    got = interleaved(variants, device, *times)
    base = next(iter(got.values()))
    note = f"{times[0]} x {times[1]}"
    return [
        Line(name, ms, ms / base if number else None, note)
        for number, (name, ms) in enumerate(got.items())
    ]


def _six_statistics(found: list[torch.Tensor]) -> Callable[..., None]:
    def hook(module: torch.nn.Module, inputs: Any, output: Any) -> None:
        for out in output if isinstance(output, tuple) else (output,):
            if torch.is_tensor(out) and out.is_floating_point():
                wide = out.float()
                found.append(
                    torch.stack(
                        [
                            out.amin().float(),
                            out.amax().float(),
                            wide.mean(),
                            wide.norm(),
                            (~torch.isfinite(out)).sum().float(),
                            (out == 0).sum().float(),
                        ]
                    )
                )

    return hook


def _nan_asserts(device: str, small: bool) -> list[Line]:
    """Inductor's own NaN check. The setting is global while a model compiles."""
    import torch._inductor.config as config

    training = _training(device, small)
    with config.patch(nan_asserts=True):
        checked = training.twin(compiled=True)
        for _ in range(3):
            checked.step()
    variants: dict[str, Variant] = {
        "torch.compile, no tool (again)": lambda: plain(training.step),
        "Inductor nan_asserts": lambda: plain(checked.step),
    }
    return _against_first(variants, device, (2, 1) if small else (5, 5))


def _per_kernel(device: str, small: bool) -> list[Line]:
    """Time of each Triton kernel of the step on the device, without and with level 1."""
    training = _training(device, small)
    rounds, repeats = (1, 2) if small else (3, 5)
    without, inside = [], []
    for _ in range(rounds):
        without.append(kernel_times(training.step, device, repeats))
        with level_1(training.step, model=training.model, logdir=False) as observed:
            observed()
            inside.append(kernel_times(observed, device, repeats))
    before, during = _medians(without), _medians(inside)
    names = [name for name in before if name.startswith("triton_") and name in during]
    base = {name: before[name] for name in names}
    ratios = {name: during[name] / base[name] for name in names}
    total, total_during = sum(base.values()), sum(during[n] for n in names)
    lines = [
        Line("Triton kernels of the step", total / 1e3, None, f"{len(names)} kernels"),
        Line(
            "  under level 1, together",
            total_during / 1e3,
            total_during / total,
            f"geometric mean {geometric_mean(list(ratios.values())):.2f}",
        ),
    ]
    others = {n: t for n, t in during.items() if n not in base}
    fold = sum(t for n, t in others.items() if n.startswith("fold_kernel"))
    if fold:
        lines.append(Line("  fold of the records", fold / 1e3, (total + fold) / total))
    if device != "cpu":
        busy, busy_during = sum(before.values()), sum(during.values())
        lines.append(Line("all device work of the step", busy / 1e3))
        lines.append(Line("  under level 1", busy_during / 1e3, busy_during / busy))
    worst = sorted(names, key=lambda n: -ratios[n])[:10]
    return lines + [Line(f"  worst: {n}", during[n] / 1e3, ratios[n]) for n in worst]


def _medians(rounds: list[dict[str, float]]) -> dict[str, float]:
    """Median over rounds of what is in all of them."""
    names = set.intersection(*map(set, rounds))
    return {name: statistics.median(found[name] for found in rounds) for name in names}


def _kernels(device: str, small: bool) -> list[Line]:
    """Single kernels: host and device together, and time on the device alone."""
    lines = []
    runs, inner = (2, 1) if small else (15, 50)
    for name, launch in kernels.launches(device, small).items():
        for _ in range(3):
            launch()
        got = interleaved(
            {"plain": lambda: plain(launch), "level 1": lambda: level_1(launch, logdir=False)},  # noqa: B023
            device,
            runs,
            inner,
        )
        lines.append(Line(name, got["plain"], None, f"{runs} x {inner} launches"))
        lines.append(Line("  under level 1", got["level 1"], got["level 1"] / got["plain"]))
        if device == "cpu":
            continue
        base = sum(kernel_times(launch, device, 20).values())
        with level_1(launch, logdir=False) as observed:
            observed()
            during = kernel_times(observed, device, 20)
        fold = sum(t for n, t in during.items() if n.startswith("fold_kernel"))
        own = sum(during.values()) - fold
        lines.append(Line("  on the device, plain", base / 1e3))
        lines.append(
            Line("  on the device, level 1", own / 1e3, own / base, f"fold {fold / 1e3:.4f} ms")
        )
    return lines


def _launch(device: str, small: bool) -> list[Line]:
    """Host time of a launch: calls are queued, the device does next to nothing."""
    flagprism_torch.enable_cpu()
    compiled = torch.compile(lambda x: x + 1)
    x = torch.zeros(64, device=device)
    cases: dict[str, Step] = {
        "host time, user kernel": kernels.tiny(device),
        "host time, Inductor kernel": lambda: compiled(x),
    }
    runs, inner = (2, 10) if small else (15, 400)
    lines = []
    for name, launch in cases.items():
        for _ in range(5):
            launch()

        @contextlib.contextmanager
        def observed(launch: Step = launch) -> Iterator[Step]:
            with flagprism_torch.debug(logdir=False):
                yield launch

        got = interleaved(
            {"plain": lambda: plain(launch), "level 1": observed},  # noqa: B023
            device,
            runs,
            inner,
        )
        more = (got["level 1"] - got["plain"]) * 1e3
        lines.append(Line(name, got["plain"], None, f"{runs} x {inner} launches"))
        lines.append(
            Line("  under level 1", got["level 1"], None, f"{more:.1f} us more for each launch")
        )
    return lines


def _outside(device: str, small: bool) -> list[Line]:
    """What is left after a session: nothing is to be expected."""
    training, tiny = _training(device, small), kernels.tiny(device)
    tiny()
    runs, inner, many = (2, 1, 10) if small else (15, 10, 1000)

    def many_tiny() -> None:
        for _ in range(many):
            tiny()

    cases: dict[str, Step] = {"training step": training.step, f"{many} tiny launches": many_tiny}
    lines = []
    for name, step in cases.items():
        before = interleaved({name: lambda: plain(step)}, device, runs, inner)[name]  # noqa: B023
        with flagprism_torch.debug(logdir=False, model=training.model) as session:
            step()
            session.step()
            step()
        after = interleaved({name: lambda: plain(step)}, device, runs, inner)[name]  # noqa: B023
        lines.append(Line(f"{name}, before a session", before, None, f"{runs} x {inner}"))
        lines.append(Line("  after it", after, after / before))
    return lines


def _compile(device: str, small: bool) -> list[Line]:
    """Building the twins of the step, as a user waits for it: the first step inside a session
    against a later one, by the clock on the wall.

    Raises:
        RuntimeError: the twins were there before.
    """
    training = _training(device, small)
    with tempfile.TemporaryDirectory() as folder:
        shared = "TRITON_CACHE_DIR" in os.environ  # of all groups of a run, empty at its start
        with contextlib.nullcontext() if shared else _triton_cache(folder):
            times, built, compiled = _first_steps(training, device)
    if compiled < built:
        raise RuntimeError(f"{built} twins were used, but only {compiled} were compiled")
    note = (
        f"{compiled} twins of {built} kernels, {ahead.workers()} threads beside the launching one"
    )
    return [Line("building twins, cold", times[0] - min(times[1:]), None, note)]


def _reuse(device: str, small: bool) -> list[Line]:
    """The first step inside a session of a new process, with twins in Triton's cache.

    Raises:
        RuntimeError: they were not there.
    """
    times, built, compiled = _first_steps(_training(device, small), device)
    if compiled:
        raise RuntimeError("the twins were not there: measure it together with compile")
    return [Line("first step, twins in Triton's cache", times[0], None, f"{built} kernels")]


def _first_steps(training: Training, device: str) -> tuple[list[float], int, int]:
    """Milliseconds of the first three steps of a session, how many kernels have twins, and how many
    twins were compiled."""
    cache = Path(os.environ.get("TRITON_CACHE_DIR", "~/.triton/cache")).expanduser()
    before = len(list(cache.glob("*/flagprism.json")))
    times = []
    synchronize(device)
    with flagprism_torch.debug(logdir=False, model=training.model) as session:
        for _ in range(3):
            start = time.perf_counter()
            training.step()
            session.step()
            synchronize(device)
            times.append((time.perf_counter() - start) * 1e3)
    compiled = len(list(cache.glob("*/flagprism.json"))) - before
    return times, session.coverage.to_dict()["instrumented"], compiled


@contextlib.contextmanager
def _triton_cache(folder: str) -> Iterator[None]:
    """Triton's cache is in `folder`: it reads the variable at every compilation."""
    before = os.environ.get("TRITON_CACHE_DIR")
    os.environ["TRITON_CACHE_DIR"] = folder
    try:
        yield
    finally:
        if before is None:
            del os.environ["TRITON_CACHE_DIR"]
        else:
            os.environ["TRITON_CACHE_DIR"] = before


GROUPS: dict[str, Group] = {
    "compile": _compile,  # first: later groups find its twins
    "reuse": _reuse,
    "step": _step,
    "per_kernel": _per_kernel,
    "launch": _launch,
    "outside": _outside,
    "kernels": _kernels,
    "eager": _eager,
    "nan_asserts": _nan_asserts,
    "tensorboard": _tensorboard,
    "addresses": _addresses,
}
