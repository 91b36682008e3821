"""Checks of a session's rows against arrays that hold what a statement computed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from flagprism_torch.records.model import Row
from flagprism_torch.records.table import SummaryTable


def array(values: Any) -> np.ndarray:
    """Any tensor or array, floats as float64 (exact)."""
    if isinstance(values, torch.Tensor):
        values = values.detach().cpu()
        values = values.double().numpy() if values.is_floating_point() else values.numpy()
    values = np.asarray(values)
    return values.astype(np.float64) if values.dtype.kind == "f" else values


def row_of(table: SummaryTable, variable: str | None = None, **conditions: Any) -> Row:
    """The one row of a variable, or that meets the conditions."""
    if variable is not None:
        conditions["variable"] = variable
    found = table.where(**conditions)
    listed = [(r.variable, r.op, r.role, r.statement) for r in (found if len(found) else table)]
    assert len(found) == 1, (conditions, listed)
    return found[0]


def check(
    row: Row,
    values: Any,
    live: Any = None,
    *,
    executions: int | None = None,
    lanes: int | None = None,
    mask: str | None = None,
    rel: float = 1e-5,
    values_rel: float = 0.0,
) -> None:
    """Counts, min and max exactly, mean and l2 within `rel`.

    Args:
        values: every lane of every execution, in any order; or only the live ones, with `lanes`.
        live: which of them count; None for all.
        values_rel: how far the values themselves may be off (another order of summation); then
            min and max are compared with that.
    """
    data = array(values)
    alive = np.ones(data.shape, bool) if live is None else np.broadcast_to(array(live), data.shape)
    kept = data[alive]
    assert row.live == kept.size
    assert row.lanes == (data.size if lanes is None else lanes)
    if executions is not None:
        assert row.executions == executions
    if mask is not None:
        assert row.mask == mask
    if kept.dtype.kind == "b":
        kept = kept.astype(np.int64)
    real = kept.dtype.kind == "f"
    finite = kept[np.isfinite(kept)] if real else kept
    assert row.nan == (np.isnan(kept).sum() if real else 0)
    assert row.posinf == (np.isposinf(kept).sum() if real else 0)
    assert row.neginf == (np.isneginf(kept).sum() if real else 0)
    assert row.zero == (finite == 0).sum()
    if not finite.size:
        assert row.min is row.max is row.mean is row.l2 is None
        return
    wide = finite.astype(np.float64)
    scale = float(np.abs(wide).mean())
    if values_rel:
        assert row.min == pytest.approx(finite.min(), rel=values_rel, abs=values_rel * scale)
        assert row.max == pytest.approx(finite.max(), rel=values_rel, abs=values_rel * scale)
    else:
        assert row.min == finite.min() and row.max == finite.max()
    total = wide.sum() if real else sum(int(x) for x in finite.reshape(-1))
    assert row.mean == pytest.approx(total / finite.size, rel=rel, abs=1e-6 * scale)
    assert row.l2 == pytest.approx(float(np.linalg.norm(wide)), rel=rel)
