"""ResultTable: named columns of one length, as a data frame, CSV or Parquet."""

from __future__ import annotations

import csv
import io
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..atomic_write import write_text

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


def check_table_path(path: str | Path) -> Path:
    """The path, if a table can be written there. Call it before a long computation."""
    path = Path(path)
    if path.suffix not in (".csv", ".parquet"):
        raise ValueError(f"{path}: a table is written as .csv or .parquet; end the name in one of them")
    if not path.parent.is_dir():
        raise ValueError(f"{path}: there is no folder {path.parent}")
    return path


class ResultTable:
    """Columns by name; `to_frame()` gives a pandas or polars data frame, `save(path)` writes CSV or Parquet."""

    def __init__(self, columns: Mapping[str, Sequence[Any]]) -> None:
        self.columns = {name: list(values) for name, values in columns.items()}
        lengths = {name: len(values) for name, values in self.columns.items()}
        if len(set(lengths.values())) > 1:
            raise ValueError(f"the columns of a table have one length, got {lengths}")

    def __len__(self) -> int:
        return len(next(iter(self.columns.values()), []))

    def to_frame(self) -> Any:
        """A pandas data frame if pandas is installed, otherwise one of polars."""
        for package in ("pandas", "polars"):
            if find_spec(package) is not None:
                return import_module(package).DataFrame(self.columns)
        raise ImportError("a data frame needs pandas or polars; install one (pip install pandas), or save a CSV file")

    def save(self, path: str | Path) -> None:
        """Write .csv, or .parquet with pyarrow or polars."""
        path = check_table_path(path)
        if path.suffix == ".csv":
            write_text(path, self.to_csv())
        else:
            self._save_parquet(path)

    def to_csv(self) -> str:
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(self.columns)
        writer.writerows(zip(*self.columns.values(), strict=True))
        return text.getvalue()

    def _save_parquet(self, path: Path) -> None:
        if find_spec("pyarrow") is not None:
            import pyarrow
            import pyarrow.parquet

            pyarrow.parquet.write_table(pyarrow.table(self.columns), path)
        elif find_spec("polars") is not None:
            import_module("polars").DataFrame(self.columns).write_parquet(path)
        else:
            raise ImportError("Parquet needs pyarrow or polars; install one (pip install pyarrow), or save a CSV file")
