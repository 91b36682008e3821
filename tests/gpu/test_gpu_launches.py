"""Streams, autotuning, graph capture, histograms and memory on an accelerator."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import live_kernels as kernels
import numpy as np
import pytest
import torch
import triton
from live_cases import Seen, check_row, check_statistics, difference, find, large, normal

import flagprism_torch
from flagprism_torch import session as sessions
from flagprism_torch.records.layout import HIST_MAX_EXP, HIST_MIN_EXP


def _add(x: torch.Tensor, y: torch.Tensor, out: torch.Tensor, block: int = 512) -> None:
    n = x.numel()
    kernels.vector_add[(triton.cdiv(n, block),)](x, y, out, n, BLOCK=block)


def test_two_streams_at_once(device: str):
    """Both streams are behind with their work whenever step() is called on a third."""
    n = 1_000_001 if large(device) else 2_001
    left = [normal(device, n, seed=i) for i in range(4)]
    right = [normal(device, n, seed=10 + i) for i in range(4)]
    sums, other = [torch.empty(n, device=device) for _ in left], torch.empty(n, device=device)
    work = [torch.zeros(1 << (26 if large(device) else 4), device=device) for _ in range(2)]
    streams: list[Any] = [contextlib.nullcontext(), contextlib.nullcontext()]
    if device != "cpu":
        torch.accelerator.synchronize()
        streams = [torch.Stream(device=device) for _ in range(2)]

    def busy(tensor: torch.Tensor) -> None:
        for _ in range(100 if large(device) else 1):
            tensor.add_(1)

    def round_of(x: torch.Tensor, y: torch.Tensor, out: torch.Tensor) -> None:
        with streams[0]:
            busy(work[0])
            _add(x, y, out)
        with streams[1]:
            busy(work[1])
            kernels.integers[(triton.cdiv(n, 512),)](
                x.view(torch.int32), other.view(torch.int32), n, BLOCK=512
            )

    with flagprism_torch.debug(logdir=False) as session:
        for x, y, out in zip(left, right, sums, strict=True):
            round_of(x, y, out)
            session.step()
    for step, (x, y, out) in enumerate(zip(left, right, sums, strict=True)):
        table = session.table(step=step)
        added = table.where(kernel="vector_add")
        check_row(find(added, "x = tl.load"), Seen(x))
        check_row(find(added, "y = tl.load"), Seen(y))
        check_row(find(added, "tl.store"), Seen(out))
        assert difference(out, x + y) == 0.0
        bits = x.view(torch.int32) ^ 3
        check_row(find(table.where(kernel="integers"), "flipped"), Seen(bits))
    assert all(row.launches == len(left) for row in session.table())


def test_autotuning_is_not_recorded(device: str):
    n = 100_003 if large(device) else 1_003
    x = normal(device, n)
    out = torch.empty_like(x)
    kernels.tuned_double.cache.clear()

    def launch() -> None:
        kernels.tuned_double[lambda meta: (triton.cdiv(n, meta["BLOCK"]),)](x, out, n)

    with flagprism_torch.debug(logdir=False) as session:
        launch()  # tunes
        session.step()
        launch()
    coverage = session.coverage.to_dict()
    assert coverage["launches"] == 2
    assert [p["reason"] for p in coverage["passed"]] == ["benchmark"]
    for step in range(2):
        rows = session.table(step=step)
        check_row(find(rows, "x = tl.load"), Seen(x))
        check_row(find(rows, "tl.store"), Seen(x * 2))


def test_graph_capture_passes_through(device: str):
    x, y = normal(device, 4_000), normal(device, 4_000, seed=1)
    out = torch.zeros_like(x)
    _add(x, y, out)
    out.zero_()
    graph = torch.cuda.CUDAGraph()
    with flagprism_torch.debug(logdir=False) as session:
        with torch.cuda.graph(graph):
            _add(x, y, out)
        _add(y, y, torch.empty_like(x))
        graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(out, x + y)
    reasons = {entry["reason"] for entry in session.coverage.to_dict()["passed"]}
    assert {"stream capture", "graph replay"} <= reasons
    (row,) = session.table().where(role="store")
    check_statistics(row, y + y)


def _binades(values: torch.Tensor) -> list[int]:
    """Counts of finite, non-zero values per signed binade, as records.layout orders them."""
    numbers = values.double().cpu().numpy()
    numbers = numbers[np.isfinite(numbers) & (numbers != 0)]
    exponents = np.clip(np.frexp(np.abs(numbers))[1] - 1, HIST_MIN_EXP, HIST_MAX_EXP)
    index = exponents - HIST_MIN_EXP
    return np.bincount(np.where(numbers < 0, 31 - index, 32 + index), minlength=64).tolist()


class _NoFile:
    """Takes the place of the TensorBoard writer, so that histograms are on without its package."""

    left_out = 0

    def __init__(self, logdir: Path, detail: str) -> None:
        self.steps: list[int] = []

    def open(self) -> None: ...

    def write(self, step: int, rows: Any, anomalous: Any = ()) -> None:
        self.steps.append(step)

    def flush(self) -> None: ...

    def close(self) -> None: ...


@pytest.mark.parametrize("capacity", [65536, 16])
def test_histograms(
    device: str, capacity: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions, "TensorBoardWriter", _NoFile)
    n = 500_001 if large(device) else 5_001
    x, y = normal(device, n) * 20, normal(device, n, seed=1) * 1e-6
    x[:100] = 0
    x[100], x[101], x[102] = float("nan"), float("inf"), 1e30
    y[:100] = 0
    out = torch.empty_like(x)
    with flagprism_torch.debug(logdir=tmp_path, record_capacity=capacity) as session:
        _add(x, y, out)
        _add(y, x, out)
    (row,) = session.table().where(role="store")
    assert row.histogram == tuple(2 * count for count in _binades(out))
    check_statistics(row, out, repeats=2)


def test_tensorboard_files(device: str, tmp_path: Path):
    try:
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    except ImportError:
        pytest.xfail("tensorboard is not installed on this machine")
    x, y = normal(device, 5_000), normal(device, 5_000, seed=1)
    out = torch.empty_like(x)
    with flagprism_torch.debug(logdir=tmp_path, tensorboard_detail="statement") as session:
        for _ in range(3):
            _add(x, y, out)
            session.step()
    files = EventAccumulator(str(tmp_path), {"scalars": 0, "histograms": 0}).Reload()
    scalars = files.Tags()["scalars"]
    (largest,) = (tag for tag in scalars if tag.endswith(".total/max"))
    wanted = np.float32(out.max().item())
    assert [(e.step, np.float32(e.value)) for e in files.Scalars(largest)] == [
        (step, wanted) for step in range(3)
    ]
    assert len(files.Tags()["histograms"]) >= 1


def _held(device: str) -> int:
    """Bytes that the program holds: of the accelerator, resident ones on a CPU."""
    if device != "cpu":
        torch.accelerator.synchronize()
        return int(torch.get_device_module(device).memory_allocated())
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096


def test_memory_does_not_grow(device: str, say: Callable[[str], None]):
    n = 1_000_001 if large(device) else 2_001
    x, y = normal(device, n), normal(device, n, seed=1)
    out = torch.empty_like(x)
    held = []
    with flagprism_torch.debug(logdir=False) as session:
        for _ in range(50):
            for _ in range(20):
                _add(x, y, out)
            session.step()
            session.flush()
            held.append(_held(device))
    say(f"held after 10 steps {held[9]} bytes, after 50 steps {held[-1]} bytes")
    assert held[-1] <= held[9] + (0 if device != "cpu" else 8 << 20)
    assert difference(out, x + y) == 0.0
    (row,) = session.table().where(role="store")
    assert (row.launches, row.live) == (1000, 1000 * n)


def test_launching_does_not_wait_for_the_device(device: str):
    """Launches of twins are queued behind running work; so is the copy that step() asks for."""
    x, y = normal(device, 100_000), normal(device, 100_000, seed=1)
    out = torch.empty_like(x)
    work = torch.zeros(1 << 28, device=device)
    done = torch.Event(device=device)
    with flagprism_torch.debug(logdir=False) as session:
        for _ in range(2):  # builds the twin and the buffers, pinned ones too
            for _ in range(10):
                _add(x, y, out)
            session.step()
            session.flush()
        torch.accelerator.synchronize()
        for _ in range(300):
            work.add_(1)
        for _ in range(10):
            _add(x, y, out)
        session.step()
        done.record(torch.accelerator.current_stream())
        waited = done.query()
    assert not waited, "a launch or step() waited for the device"
