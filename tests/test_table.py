"""SummaryTable: a sequence that cannot be changed, with filters and conversions."""

from __future__ import annotations

import pickle
import sys

import numpy as np
import pytest
from oracle import block_of, entry_of

from flagprism_torch.analysis import join
from flagprism_torch.records.model import Origin, Row
from flagprism_torch.records.table import SummaryTable


def _table() -> SummaryTable:
    x = np.array([1.0, np.nan, -2.0], np.float32)
    y = np.array([3.0, 4.0], np.float32)
    first = block_of(
        [
            (entry_of(0, "tt.load", x, "fp32", role="load"), x, None),
            (entry_of(1, "arith.addf", y, "fp32"), y, None),
        ],
        kernel="alpha",
        origin=Origin(module="layers.1"),
    )
    second = block_of(
        [(entry_of(0, "tt.load", y, "fp32", role="load"), y, None)],
        kernel="beta",
        origin=Origin(module="layers.0"),
    )
    return SummaryTable(join.rows(3, [first, second, first]))


def test_it_is_a_sequence() -> None:
    table = _table()
    assert len(table) == 5
    assert [row.kernel for row in table] == ["alpha", "alpha", "beta", "alpha", "alpha"]
    assert isinstance(table[0], Row)
    assert table[-1].op == "arith.addf"
    assert isinstance(table[1:3], SummaryTable)
    assert [row.kernel for row in table[1:3]] == ["alpha", "beta"]
    assert table[2] in table
    assert table == SummaryTable(list(table))
    assert hash(table) == hash(SummaryTable(list(table)))
    assert table != table[1:]
    assert pickle.loads(pickle.dumps(table)) == table


def test_it_cannot_be_changed() -> None:
    table = _table()
    with pytest.raises(AttributeError, match="cannot be changed"):
        table._rows = ()
    with pytest.raises(AttributeError):
        table.extra = 1  # type: ignore[attr-defined]
    with pytest.raises(TypeError):
        table[0] = table[1]  # type: ignore[index]
    rows = list(table)
    taken = SummaryTable(rows)
    rows.clear()
    assert len(taken) == 5


def test_where() -> None:
    table = _table()
    assert len(table.where(kernel="alpha")) == 4
    assert len(table.where(kernel="alpha", role="load")) == 2
    assert [row.op_id for row in table.where(nan=lambda n: n > 0)] == [0, 0]
    assert len(table.where(nonfinite=1)) == 2
    assert table.where() == table
    assert len(table.where(kernel="gamma")) == 0
    with pytest.raises(TypeError, match="kernl"):
        table.where(kernl="alpha")
    with pytest.raises(TypeError, match="count"):
        table.where(count=1)  # a method of every sequence, not a field


def test_names_in_order_of_appearance() -> None:
    assert _table().modules() == ("layers.1", "layers.0")
    assert _table().kernels() == ("alpha", "beta")
    assert SummaryTable().modules() == ()


def test_to_dicts_round_trips() -> None:
    table = _table()
    assert SummaryTable(Row(**fields) for fields in table.to_dicts()) == table


def test_to_pandas() -> None:
    pytest.importorskip("pandas")
    frame = _table().to_pandas()
    assert frame["nan"].tolist() == [1, 0, 0, 1, 0]
    assert frame["max"].tolist() == [1.0, 4.0, 4.0, 1.0, 4.0]
    empty = SummaryTable().to_pandas()
    assert len(empty) == 0
    assert list(empty.columns) == list(frame.columns)


def test_to_pandas_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ImportError, match="pip install pandas"):
        _table().to_pandas()
