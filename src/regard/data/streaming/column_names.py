"""Columns by name, `outer.inner` for a key within a key: of JSON lines and of Arrow tables."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..pair import RowProblem

if TYPE_CHECKING:
    from ..row_readers import Cells, Columns


def column_names(place: object, columns: Columns | None) -> list[str]:
    """The columns, which must be names; `place` is the file or dataset, for the message."""
    if columns is None or not all(isinstance(column, str) for column in columns):
        raise ValueError(
            f"{place}: say the names of its columns, source first, as in columns=('en', 'fr'); got {columns}"
        )
    return [str(column) for column in columns]


def require_columns(place: object, names: list[str], known: list[str]) -> None:
    for name in names:
        if name not in known and name.split(".")[0] not in known:
            raise ValueError(f"{place} has no column {name!r}; it has {', '.join(known)}")


def row_cells(row: Any, names: list[str]) -> Cells | RowProblem:
    """The cells of a row that is a dictionary."""
    cells = []
    for name in names:
        value = row
        for key in [name] if isinstance(row, dict) and name in row else name.split("."):
            if not isinstance(value, dict) or key not in value:
                return RowProblem("missing column", f"the row has no {name!r}")
            value = value[key]
        cells.append(value)
    return cells
