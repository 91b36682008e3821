"""`debug(...)` -> Session: one ExitStack over hooks, buffers and exporters."""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import threading
import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import torch

from flagprism_torch.analysis import join, reach
from flagprism_torch.analysis.coverage import Coverage
from flagprism_torch.analysis.verdicts import AnomalyLog
from flagprism_torch.config import Config
from flagprism_torch.errors import InvalidPointerError, NestedSessionError, NoKernelWarning
from flagprism_torch.exporters import report as reports
from flagprism_torch.exporters.npy import NpyWriter
from flagprism_torch.exporters.tensorboard import TensorBoardWriter
from flagprism_torch.hooks import externs, inductor, jit
from flagprism_torch.hooks.collector import Collector
from flagprism_torch.hooks.patches import Patches
from flagprism_torch.provenance.modules import ModuleNames
from flagprism_torch.provenance.tensors import tensor_name
from flagprism_torch.records.full_values import FullValues
from flagprism_torch.records.model import Anomaly, Block
from flagprism_torch.records.table import AddressTable, SummaryTable

_active_lock = threading.Lock()
_active: Session | None = None


def debug(
    level: int = 1,
    *,
    addr_level: int = 0,
    model: torch.nn.Module | None = None,
    logdir: str | os.PathLike[str] | bool | None = None,
    tensorboard_detail: str = "module",
    record_capacity: int = 65536,
    max_values: int = 64,
    extern_checks: bool = True,
    guard: bool = False,
    export_on_error: bool = False,
    escalate: bool = False,
    kernels: str | Sequence[str] | None = None,
    modules: str | Sequence[str] | None = None,
    statements: str | Sequence[str] | None = None,
    programs: int | slice | Sequence[int | tuple[int, int, int]] | None = None,
    steps: int | Sequence[int] | None = None,
    full_value_budget: int = 2**30,
) -> Session:
    """Look inside every Triton kernel that runs in the block.

    ```python
    with flagprism_torch.debug(level=1, model=model, logdir="runs/hunt") as session:
        loss = model(batch); loss.backward(); optimizer.step()
        session.step()
    print(session.report())
    ```

    Args:
        level: 0, the watch: which statements meet a NaN or an infinity, at next to no cost; 1,
            statistics of every value that a statement produces; 2, also the full values of
            those that the filters below select (`Session.full_values`).
        addr_level: 1 records where each load, store and atomic goes and reports lanes that leave
            their tensor; 2, with level 2, also where each lane goes; 0 does not.
        model: names rows by this module's `named_modules()`; without it, by the outermost module.
        logdir: TensorBoard folder; None picks `runs/flagprism_<time>_<host>_<pid>`, False writes
            no files.
        tensorboard_detail: "module" | "kernel" | "statement".
        record_capacity: programs of one launch with a record of their own.
        max_values: probed values per kernel; what is left out is in the coverage.
        extern_checks: whether results of `extern_kernels.*` calls (GEMMs, convolutions) get a row.
        guard: lanes of loads, stores and atomics that would leave their tensor are masked off
            (loads give 0 there) and reported, so that the program lives on.
        export_on_error: records lie in host memory that outlives a crash of the device, and each
            program notes how far it came: after an illegal access, a failed assertion or an
            interrupted hang the report tells. Slower; for hunting a crash.
        escalate: with level 0, a kernel with a finding is looked at with level 1 from then on.
        kernels, modules, statements: what level 2 writes down, as a pattern (`*`, `?`, `[...]`) or
            several; a statement goes by its text or by its variable, a module stands for those
            inside of it too.
        programs: linear ids or (x, y, z); an int, a slice, or a sequence.
        steps: an int or a sequence.
        full_value_budget: bytes of full values in the session; a launch that does not fit is not
            written down at all, and the report says so.

    Raises:
        TypeError, ValueError: a wrong argument, naming it, its value and what is allowed.
        NestedSessionError: on entering inside another session, in any thread.
        OSError: on entering, if `logdir` cannot be written.
    """
    if torch.compiler.is_compiling():
        raise RuntimeError(
            "flagprism_torch.debug() was entered inside a compiled function; "
            "put the with block around the call of the compiled function"
        )
    config = Config(
        level,
        addr_level,
        logdir,
        tensorboard_detail,
        record_capacity,
        max_values,
        extern_checks,
        guard,
        export_on_error,
        escalate,
        kernels,
        modules,
        statements,
        programs,
        steps,
        full_value_budget,
    )
    if model is not None and not isinstance(model, torch.nn.Module):
        raise TypeError(
            f"model={type(model).__name__} object: allowed are a torch.nn.Module and None"
        )
    return Session(config, model)


class Session:
    """A debugging session: a context manager whose results stay readable after the block.

    Reading `table`, `report`, `anomalies`, `hidden` or `coverage` waits for copies in flight.
    """

    def __init__(self, config: Config, model: torch.nn.Module | None) -> None:
        self.config = config
        self.logdir: Path | None = None
        self._coverage = Coverage()
        self._collector = Collector(config, ModuleNames(model), self._coverage)
        self._log = AnomalyLog()
        self._collector.on_crash = self._log.add_crash
        self._writer: TensorBoardWriter | None = None
        self._stack = contextlib.ExitStack()
        self._entered = self._closed = False
        self._exported = 0  # steps before this one are in the log and in the files
        self._lock = threading.RLock()

    # -- the block

    @torch.compiler.disable
    def __enter__(self) -> Session:
        global _active
        if self._entered:
            raise RuntimeError("a Session can be entered once; call flagprism_torch.debug() again")
        with _active_lock:
            if _active is not None:
                raise NestedSessionError
            _active = self
        try:
            self._open()
        except BaseException:
            self._stack.close()
            self._release()
            raise
        self._entered = True
        return self

    def _open(self) -> None:
        if self.config.logdir is not False:
            # absolute: the program may change its folder inside the block
            self.logdir = _logdir(self.config.logdir).absolute()
            self._writer = TensorBoardWriter(self.logdir, self.config.tensorboard_detail)
            self._writer.open()
            npy = NpyWriter(self.logdir)
            self._collector.full.sink, self._collector.full.end = npy.write, npy.finish
        if not torch.accelerator.is_available():
            from flagprism_torch.backends import cpu

            holder = f"session {id(self)}"
            cpu.register(holder)
            self._stack.callback(cpu.unregister, holder)
        patches = Patches(self._stack)
        jit.install(patches, self._collector)
        inductor.install(patches, self._collector)
        if self.config.level:
            externs.install(patches, self._collector)

    @torch.compiler.disable
    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            self._stack.close()
        finally:
            self._release()
        self._closed = True
        try:
            self._finish_step(last=True)
        except Exception as failure:
            if error is None:
                raise
            warnings.warn(f"flagprism_torch could not export: {failure}", RuntimeWarning, 2)
        finally:
            if self._writer is not None:
                self._writer.close()
        if error is None:
            self._warn_if_blind()
        elif not self.config.export_on_error and _is_crash(error):
            warnings.warn(
                "a kernel crashed and took its records along: run again with flagprism_torch.debug("
                "export_on_error=True) to see which statement it did, or guard=True to go on",
                RuntimeWarning,
                stacklevel=3,
            )

    @staticmethod
    def _release() -> None:
        global _active
        with _active_lock:
            _active = None

    @torch.compiler.disable
    def step(self) -> None:
        """Close the current step (0-based). Never waits for the device.

        Raises:
            RuntimeError: before the session was entered.
        """
        self._check_entered()
        with self._lock:
            self._collector.submit()
            self._collector.step += 1
            self._collector.poll()
            self._collector.full.poll()
            self._export(self._collector.done_before())

    # -- results

    @torch.compiler.disable
    def flush(self) -> None:
        """Wait for every copy in flight and write finished steps to the files.

        Raises:
            RuntimeError: before the session was entered: it can have seen nothing.
        """
        self._check_entered()
        with self._lock:
            self._collector.drain()
            self._collector.full.drain()
            self._export(self._collector.step)
            if self._writer is not None and not self._closed:
                self._writer.flush()

    @torch.compiler.disable
    def table(self, step: int | None = None) -> SummaryTable:
        """Rows of one of the last 16 steps, or of all steps merged.

        Raises:
            TypeError, ValueError: if `step` is not None or one of the kept steps.
        """
        return SummaryTable(join.rows(step, self._blocks(step)))

    def _blocks(self, step: int | None) -> list[Block]:
        """Blocks of a step, or of all."""
        self.flush()
        if step is None:
            return self._collector.ledger.blocks()
        if not isinstance(step, int) or isinstance(step, bool):
            raise TypeError(
                f"step={step!r} has type {type(step).__name__}; allowed: an int or None"
            )
        kept = self._collector.ledger.steps()
        if step in kept:
            return self._collector.ledger.blocks(step)
        if kept and 0 <= step <= self._collector.step and step > kept[0]:
            return []  # a step without a Triton launch
        allowed = ", ".join(map(str, kept)) or "none yet"
        raise ValueError(
            f"step={step} is not kept; allowed: {allowed} (the last 16), or None for all"
        )

    @torch.compiler.disable
    def addresses(self, step: int | None = None) -> AddressTable:
        """Where loads, stores and atomics went in one of the last 16 steps, or in all of them; no
        rows with `addr_level=0`.

        Raises:
            TypeError, ValueError: if `step` is not None or one of the kept steps.
        """
        return AddressTable(reach.rows(step, self._blocks(step)))

    @torch.compiler.disable
    def report(self, detail: str = "kernel") -> str:
        """The text report: anomalies, then per module, kernel and statement, then coverage."""
        table = self.table()
        log = self._complete_log()
        return reports.text(
            table,
            log.anomalies(),
            self._coverage,
            steps=self.steps,
            detail=detail,
            hidden=log.hidden(),
        )

    @torch.compiler.disable
    def to_json(self, detail: str = "statement") -> dict[str, Any]:
        """The report as JSON types; schema in docs/report-schema.md."""
        table = self.table()
        log = self._complete_log()
        return reports.to_json(
            table,
            log.anomalies(),
            self._coverage,
            steps=self.steps,
            detail=detail,
            hidden=log.hidden(),
        )

    @property
    @torch.compiler.disable
    def steps(self) -> int:
        """Steps closed, plus the open one if it has launches."""
        current = self._collector.step
        return current + (current in self._collector.ledger.steps())

    @property
    @torch.compiler.disable
    def full_values(self) -> FullValues:
        """The full values of all launches that the filters select, none with `level=1`."""
        self.flush()
        return self._collector.full.results()

    @property
    @torch.compiler.disable
    def anomalies(self) -> tuple[Anomaly, ...]:
        """Chains of findings: those with a NaN first, then inf, then others; by launch order."""
        return self._complete_log().anomalies()

    @property
    @torch.compiler.disable
    def hidden(self) -> tuple[Anomaly, ...]:
        """Chains of non-finite values that never left their kernel."""
        return self._complete_log().hidden()

    @property
    @torch.compiler.disable
    def coverage(self) -> Coverage:
        """What was seen, instrumented, stepped down, passed through and left out."""
        self.flush()
        return self._coverage

    # -- inside

    def _complete_log(self) -> AnomalyLog:
        """The log of all steps, the open one included."""
        with self._lock:
            self.flush()
            log = self._log.copy()
            current = self._collector.step
            if current in self._collector.ledger.steps() and self._exported <= current:
                self._add(log, current, self._collector.ledger.blocks(current))
            return log

    def _add(self, log: AnomalyLog, step: int, blocks: list[Block]) -> None:
        names = self._collector.names
        remarks = self._collector.parameters.remarks.of(step)
        log.add(step, blocks, self._collector.tensors, lambda at: tensor_name(at, names), remarks)

    def _finish_step(self, last: bool) -> None:
        with self._lock:
            self._collector.drain()
            self._collector.full.drain()
            if last:
                self._collector.full.finish()
            self._export(self._collector.step + 1 if last else self._collector.step)

    def _export(self, before: int) -> None:
        """Hand every complete step below `before` to the log and the files, once."""
        ledger = self._collector.ledger
        for step in ledger.steps():
            if self._exported <= step < before:
                blocks = ledger.blocks(step)
                self._add(self._log, step, blocks)
                self._write(step, blocks)
        if self.config.escalate:
            self._collector.closer |= self._log.kernels()
        self._exported = max(self._exported, before)
        if self._log.left_out:
            self._coverage.note(f"more than {self._log.capacity} findings: some are not listed")
        if self._writer is not None and self._writer.left_out:
            self._coverage.note("more TensorBoard series than the limit: some are not written")

    def _write(self, step: int, blocks: list[Block]) -> None:
        """Write a step to TensorBoard; a disk that fails must not end the user's training."""
        if self._writer is None:
            return
        try:
            self._writer.write(step, join.rows(step, blocks), self._log.values())
        except OSError as error:
            self._writer = None
            text = f"TensorBoard files stop before step {step}: {error}"
            self._coverage.note(text)
            warnings.warn(f"flagprism_torch: {text}", RuntimeWarning, stacklevel=2)

    def _check_entered(self) -> None:
        if not self._entered:
            raise RuntimeError(
                "the session was not entered and has seen nothing; "
                "use: with flagprism_torch.debug(...) as session:"
            )

    def _warn_if_blind(self) -> None:
        coverage = self._coverage.to_dict()
        if coverage["launches"] or coverage["kernels"]:
            return
        why = "nothing launched a Triton kernel"
        if not torch.accelerator.is_available():
            why += (
                "; without an accelerator Inductor emits C++ kernels: call "
                "flagprism_torch.enable_cpu() before torch.compile"
            )
        elif "torch._dynamo" not in sys.modules or not _compiled_anything():
            why += "; the model ran eagerly: torch.compile it, or launch @triton.jit kernels"
        warnings.warn(f"flagprism_torch saw no Triton kernel: {why}", NoKernelWarning, stacklevel=4)


def _is_crash(error: BaseException) -> bool:
    """Whether a kernel ended in an illegal access or a failed assertion."""
    if isinstance(error, InvalidPointerError):
        return True
    text = str(error).lower()
    return isinstance(error, RuntimeError) and any(
        word in text
        for word in ("illegal memory access", "misaligned address", "device-side assert",
                     "device assertion failed", "illegal instruction", "hip error")
    )  # fmt: skip


def _compiled_anything() -> bool:
    counters = torch._dynamo.utils.counters
    return bool(counters["stats"].get("unique_graphs"))


def _logdir(wanted: str | os.PathLike[str] | bool | None) -> Path:
    if wanted is None or isinstance(wanted, bool):
        stamp = time.strftime("%Y%m%d-%H%M%S")
        return Path("runs") / f"flagprism_{stamp}_{socket.gethostname()}_{os.getpid()}"
    return Path(wanted)
