"""Rows with named columns: Parquet files, folders that `datasets` saved, and datasets of the Hugging Face Hub.

A column `outer.inner` is a key within a key. All are read a few thousand rows at a time. No dataset's own code is run.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

from .pair import RowProblem

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from .row_readers import Cells, Columns, Rows

BATCH_ROWS = 4096
COMMIT = re.compile("[0-9a-f]{40}")


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


def parquet(path: Path, columns: Columns | None) -> Rows:
    """The rows of a Parquet file."""
    names = column_names(path, columns)
    with _parquet_file(path) as file:
        require_columns(path, names, file.schema_arrow.names)
        batches = file.iter_batches(batch_size=BATCH_ROWS, columns=_top_level_columns(names))
        yield from _rows(path, names, batches)


def is_saved_dataset(path: Path) -> bool:
    """Whether a folder is one that `save_to_disk` wrote, of one split or of several."""
    return any((path / name).is_file() for name in ("state.json", "dataset_dict.json"))


def datasets_folder(path: Path, columns: Columns | None) -> Rows:
    """One split as `Dataset.save_to_disk` wrote it; memory-mapped."""
    names = column_names(path, columns)
    dataset = _saved_dataset(path)
    require_columns(path, names, dataset.column_names)
    tables = dataset.with_format("arrow").iter(batch_size=BATCH_ROWS)
    yield from _rows(path, names, (batch for table in tables for batch in table.to_batches()))


def count_rows(path: Path) -> int | None:
    """How many rows a Parquet file or a folder of `datasets` says it has; None for text, which does not say."""
    if path.is_dir():
        return len(_saved_dataset(path))
    if path.suffix != ".parquet":
        return None
    with _parquet_file(path) as file:
        return int(file.metadata.num_rows)


@dataclass(frozen=True)
class DatasetSplit:
    """A split of a dataset of the Hugging Face Hub, or of a folder with data files, as `load_dataset` reads it."""

    name: str
    split: str
    configuration: str = ""
    revision: str = ""

    def open(self) -> Any:
        """An `IterableDataset`: nothing is downloaded but what is read."""
        datasets = _library(self, "datasets")
        # Before version 4, `datasets` ran the script of a dataset if the user agreed; since then it runs none.
        no_script = {"trust_remote_code": False} if int(datasets.__version__.partition(".")[0]) < 4 else {}
        try:
            return datasets.load_dataset(
                self.name,
                self.configuration or None,
                split=self.split,
                revision=self.revision or None,
                streaming=True,
                **no_script,
            )
        except (OSError, ValueError, RuntimeError) as error:  # no such name, no network; no such split; its own code
            raise ValueError(f"{self} cannot be read: {error}") from error

    def commit(self) -> str:
        """The commit of the Hub that `revision` stands for now; "" where the Hub does not answer."""
        if COMMIT.fullmatch(self.revision):
            return self.revision
        hub = _library(self, "huggingface_hub")
        try:
            return str(hub.HfApi().dataset_info(self.name, revision=self.revision or None).sha or "")
        except Exception:  # offline: the library's own errors, or those of its HTTP client, which depend on the version
            return ""

    def rows(self, columns: Columns | None, start: int = 0) -> Rows:
        """The rows from number `start` on."""
        names = column_names(self, columns)
        dataset = self.open()
        if dataset.column_names is not None:  # not known before the first row, of some formats
            require_columns(self, names, dataset.column_names)
            dataset = dataset.select_columns(_top_level_columns(names))
        tables = dataset.skip(start).with_format("arrow").iter(batch_size=BATCH_ROWS)
        yield from _rows(self, names, (batch for table in tables for batch in table.to_batches()), start)

    def __str__(self) -> str:
        configuration = f" ({self.configuration})" if self.configuration else ""
        return f"dataset {self.name}{configuration}, split {self.split}"


def _top_level_columns(names: list[str]) -> list[str]:
    """The columns that keys within keys are in."""
    return list(dict.fromkeys(name.split(".")[0] for name in names))


def _parquet_file(path: Path) -> Any:
    parquet_library = _library(path, "pyarrow.parquet")
    try:
        return parquet_library.ParquetFile(path)
    except _library(path, "pyarrow").ArrowInvalid as error:
        raise ValueError(f"{path} is not a Parquet file: {error}") from error


def _saved_dataset(path: Path) -> Any:
    datasets = _library(path, "datasets")
    try:
        dataset = datasets.load_from_disk(str(path))
    except FileNotFoundError as error:
        raise ValueError(f"{path} is not a folder that `save_to_disk` of `datasets` wrote") from error
    if isinstance(dataset, datasets.DatasetDict):
        raise ValueError(f"{path} holds several splits; name one: {', '.join(str(path / split) for split in dataset)}")
    return dataset


def _library(place: object, name: str) -> Any:
    try:
        return import_module(name)
    except ModuleNotFoundError as missing:
        package = name.partition(".")[0]
        raise ValueError(f"{place}: reading it needs {package}: pip install 'regard[formats]'") from missing


def _rows(place: object, names: list[str], batches: Iterable[Any], number: int = 0) -> Rows:
    for batch in batches:
        columns = {name: batch.column(name) for name in batch.schema.names}
        try:
            lists = {name: column.to_pylist() for name, column in columns.items()}
        except UnicodeDecodeError:  # some row is not UTF-8: look at each by itself
            for i in range(batch.num_rows):
                number += 1
                try:
                    row = {name: column[i].as_py() for name, column in columns.items()}
                except UnicodeDecodeError:
                    yield f"{place}:{number}", RowProblem("undecodable bytes", "the row is not UTF-8")
                else:
                    yield f"{place}:{number}", row_cells(row, names)
            continue
        for i in range(batch.num_rows):
            number += 1
            yield f"{place}:{number}", row_cells({name: values[i] for name, values in lists.items()}, names)
