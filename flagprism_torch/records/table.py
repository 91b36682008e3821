"""The table between collection and presentation: an immutable sequence of rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import fields
from typing import Any, overload

from .model import Row

FIELDS = tuple(field.name for field in fields(Row))


class SummaryTable(Sequence[Row]):
    """Rows of one step, or of all steps merged; equal if its rows are equal.

    Indexing with an int gives a `Row`, with a slice a `SummaryTable`.
    """

    __slots__ = ("_rows",)
    _rows: tuple[Row, ...]

    def __init__(self, rows: Iterable[Row] = ()) -> None:
        object.__setattr__(self, "_rows", tuple(rows))

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError("a SummaryTable cannot be changed")

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[Row]:
        return iter(self._rows)

    @overload
    def __getitem__(self, index: int) -> Row: ...

    @overload
    def __getitem__(self, index: slice) -> SummaryTable: ...

    def __getitem__(self, index: int | slice) -> Row | SummaryTable:
        if isinstance(index, slice):
            return SummaryTable(self._rows[index])
        return self._rows[index]

    def __eq__(self, other: object) -> bool:
        return self._rows == other._rows if isinstance(other, SummaryTable) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._rows)

    def __reduce__(self) -> tuple[Any, ...]:
        return SummaryTable, (self._rows,)

    def __repr__(self) -> str:
        return f"SummaryTable({len(self)} rows, {len(self.kernels())} kernels)"

    def where(self, **conditions: Any) -> SummaryTable:
        """The rows that meet every condition, in the same order.

        A condition names a field of `Row` (or `nonfinite`). A callable is a predicate on the
        field's value, anything else must be equal to it:
        `table.where(module="layers.0.attn", nan=lambda count: count > 0)`.

        Raises:
            TypeError: a condition names no field.
        """
        for name in conditions:
            if name not in FIELDS and name != "nonfinite":
                raise TypeError(f"where({name}=...): rows have no field {name!r}; fields: {FIELDS}")
        return SummaryTable(
            row
            for row in self._rows
            if all(_meets(getattr(row, name), wanted) for name, wanted in conditions.items())
        )

    def modules(self) -> tuple[str, ...]:
        """Module names, in order of first appearance."""
        return tuple(dict.fromkeys(row.module for row in self._rows))

    def kernels(self) -> tuple[str, ...]:
        """Kernel names, in order of first appearance."""
        return tuple(dict.fromkeys(row.kernel for row in self._rows))

    def to_dicts(self) -> list[dict[str, Any]]:
        """One dict per row with the fields of `Row`; values are not converted."""
        return [{name: getattr(row, name) for name in FIELDS} for row in self._rows]

    def to_pandas(self) -> Any:
        """A `pandas.DataFrame` with one line per row and one column per field of `Row`.

        Raises:
            ImportError: pandas is not installed.
        """
        try:
            import pandas  # type: ignore[import-untyped,unused-ignore]
        except ImportError as error:
            raise ImportError(
                "SummaryTable.to_pandas() needs pandas (pip install pandas); "
                "to_dicts() gives the same data without it"
            ) from error
        return pandas.DataFrame(self.to_dicts(), columns=list(FIELDS))


def _meets(value: Any, wanted: Any) -> bool:
    return bool(wanted(value)) if callable(wanted) else bool(value == wanted)
