"""The tables between collection and presentation: immutable sequences of rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar, overload

from .address_model import AddressRow
from .model import Row

if TYPE_CHECKING:
    from typing_extensions import Self

FIELDS = tuple(field.name for field in fields(Row))
R = TypeVar("R", Row, AddressRow)


class Table(Sequence[R], Generic[R]):
    """Rows of one step, or of all steps merged; equal if its rows are equal.

    Indexing with an int gives a row, with a slice a table.
    """

    __slots__ = ("_rows",)
    _rows: tuple[R, ...]
    names: ClassVar[tuple[str, ...]]  # of the fields of its rows
    derived: ClassVar[tuple[str, ...]] = ()  # more that `where` knows

    def __init__(self, rows: Iterable[R] = ()) -> None:
        object.__setattr__(self, "_rows", tuple(rows))

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"a {type(self).__name__} cannot be changed")

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[R]:
        return iter(self._rows)

    @overload
    def __getitem__(self, index: int) -> R: ...

    @overload
    def __getitem__(self, index: slice) -> Self: ...

    def __getitem__(self, index: int | slice) -> R | Self:
        if isinstance(index, slice):
            return type(self)(self._rows[index])
        return self._rows[index]

    def __eq__(self, other: object) -> bool:
        return self._rows == other._rows if isinstance(other, type(self)) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._rows)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._rows,)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({len(self)} rows, {len(self.kernels())} kernels)"

    def where(self, **conditions: Any) -> Self:
        """The rows that meet every condition, in the same order.

        A condition names a field of a row (or a property of it). A callable is a predicate on the
        field's value, anything else must be equal to it:
        `table.where(module="layers.0.attn", nan=lambda count: count > 0)`.

        Raises:
            TypeError: a condition names no field.
        """
        for name in conditions:
            if name not in (*self.names, *self.derived):
                raise TypeError(
                    f"where({name}=...): rows have no field {name!r}; fields: {self.names}"
                )
        return type(self)(
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
        """One dict per row with its fields; values are not converted."""
        return [{name: getattr(row, name) for name in self.names} for row in self._rows]

    def to_pandas(self) -> Any:
        """A `pandas.DataFrame` with one line per row and one column per field.

        Raises:
            ImportError: pandas is not installed.
        """
        try:
            import pandas  # type: ignore[import-untyped,unused-ignore]
        except ImportError as error:
            raise ImportError(
                f"{type(self).__name__}.to_pandas() needs pandas (pip install pandas); "
                "to_dicts() gives the same data without it"
            ) from error
        return pandas.DataFrame(self.to_dicts(), columns=list(self.names))


class SummaryTable(Table[Row]):
    """Statistics of values: rows are `records.model.Row`."""

    __slots__ = ()
    names = FIELDS
    derived = ("nonfinite",)


class AddressTable(Table[AddressRow]):
    """Where accesses went: rows are `records.model.AddressRow`."""

    __slots__ = ()
    names = tuple(field.name for field in fields(AddressRow))
    derived = ("span",)


def _meets(value: Any, wanted: Any) -> bool:
    return bool(wanted(value)) if callable(wanted) else bool(value == wanted)
