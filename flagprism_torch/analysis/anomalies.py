"""How a finding becomes an anomaly: what all kinds have in common."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

from ..records.model import Anomaly


class Where(Protocol):
    """Something with a place in a kernel's source: a row, an entry of an op table, a hint."""

    @property
    def statement(self) -> str: ...
    @property
    def file(self) -> str: ...
    @property
    def line(self) -> int: ...
    @property
    def op(self) -> str: ...


class Owned(Protocol):
    """Something with an owner in the model: a row, a `StatementOrigin`."""

    @property
    def module(self) -> str: ...
    @property
    def modules(self) -> tuple[str, ...]: ...
    @property
    def phase(self) -> str: ...
    @property
    def aten(self) -> str | None: ...
    @property
    def model_file(self) -> str | None: ...
    @property
    def model_line(self) -> int | None: ...


class First(NamedTuple):
    """The earliest launch with a finding and its first place there; None where that is not known.
    Fields as in `Anomaly`."""

    launch: int
    program: tuple[int, int, int] | None = None
    iteration: int | None = None
    lane: Any = None


def anomaly(
    step: int,
    site: str,
    kernel: str,
    where: Where,
    owner: Owned,
    first: First,
    *,
    kind: str,
    verdict: str = "found",
    severity: str = "info",
    op_id: int = -1,
    variable: str | None = None,
    counts: Mapping[str, int] = MappingProxyType({}),
    cause: str = "",
    details: Mapping[str, Any] = MappingProxyType({}),
) -> Anomaly:
    """An anomaly that was seen once, in one step.

    Args:
        site: key of the call site.
        counts: lanes, live, padding, nan, posinf, neginf; 0 where one is missing.
    """
    return Anomaly(
        kind=kind,
        verdict=verdict,
        severity=severity,
        step=step,
        last_step=step,
        occurrences=1,
        launch=first.launch,
        kernel=kernel,
        statement=where.statement,
        file=where.file,
        line=where.line,
        variable=variable,
        op=where.op,
        op_id=op_id,
        module=owner.module,
        modules=owner.modules,
        phase=owner.phase,
        aten=owner.aten,
        model_file=owner.model_file,
        model_line=owner.model_line,
        program=first.program,
        lane=first.lane,
        iteration=first.iteration,
        counts=MappingProxyType({**_NO_LANES, **counts}),
        site=site,
        cause=cause,
        details=MappingProxyType(dict(details)),
    )


_NO_LANES = dict.fromkeys(("lanes", "live", "padding", "nan", "posinf", "neginf"), 0)
