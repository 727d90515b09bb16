"""How rows lie in files: TSV, CSV, two line-aligned files, JSON lines, Parquet, a folder of the `datasets` library.

Each reader yields (file:line, cells) with the cells of the chosen columns, or why the row has none.
"""

from __future__ import annotations

import csv as commas
import json
from importlib import import_module
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

from .pair import RowProblem
from .text_lines import COMPRESSED, LONGEST, lines

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    Column = int | str
    Columns = tuple[Column, ...]
    Cells = list[Any]  # what stands in the chosen columns; a text where all is well
    Rows = Iterator[tuple[str, Cells | RowProblem]]
    Numbered = Iterable[tuple[int, str | RowProblem]]  # lines and their numbers, from 1

SUFFIXES = ".tsv, .txt, .csv, .jsonl (each also with .gz or .xz), .parquet, or a folder that `datasets` saved"


def reader(path: Path) -> Callable[[Path, Columns | None], Rows]:
    """The reader for a file with both sides in it, by its name."""
    if path.is_dir():
        return datasets_folder
    name = path.with_suffix("") if path.suffix in COMPRESSED else path
    readers = {".tsv": tsv, ".txt": tsv, ".csv": csv, ".jsonl": jsonl, ".parquet": parquet}
    if name.suffix not in readers or (name.suffix == ".parquet" and name != path):
        raise ValueError(f"{path}: no reader knows this kind of file; known are {SUFFIXES}")
    return readers[name.suffix]


def tsv(path: Path, columns: Columns | None) -> Rows:
    """Lines whose cells tabs separate."""
    return _chosen(path, columns, _tab_cells(_numbered(path)), "tabs")


def tsv_places(path: Path, columns: Columns | None) -> tuple[tuple[int, ...], bool]:
    """The places of the columns of a TSV file, and whether its first line is a header."""
    columns = (0, 1) if columns is None else columns
    places = _column_places(path, columns, _tab_cells(_numbered(path)))
    return places or (0, 1), not isinstance(columns[0], int)


def tsv_rows(path: Path, places: tuple[int, ...], numbered: Numbered) -> Rows:
    """The cells of some lines of a TSV file, which come with their numbers."""
    return _at_places(path, places, _tab_cells(numbered), "tabs")


def _tab_cells(numbered: Numbered) -> Iterator[tuple[int, list[str] | RowProblem]]:
    return ((number, line if isinstance(line, RowProblem) else line.split("\t")) for number, line in numbered)


def csv(path: Path, columns: Columns | None) -> Rows:
    """Rows whose cells commas separate (RFC 4180): one in quotes may hold commas, line breaks and, doubled, quotes."""
    return _chosen(path, columns, _Records(path), "commas")


class _Records:
    """The rows of a CSV file, each with the number of the line it begins in.

    The csv module is fed line by line from here, so that a bad line spoils its own row alone: an error that leaves
    `_feed` ends the row, and the next begins afresh.
    """

    def __init__(self, path: Path) -> None:
        self.lines = _numbered(path)
        self.number = self.size = 0
        self.rows = commas.reader(iter(self._feed, None), strict=True)

    def _feed(self) -> str | None:
        self.number, line = next(self.lines, (self.number, None))
        if line is None:
            return None
        if isinstance(line, RowProblem):
            raise _BadLine(line)
        self.size += len(line)
        if self.size > LONGEST:
            # A quote that never closes would take in all that follows.
            raise commas.Error(f"it has more than {LONGEST:,} characters")
        return f"{line}\n"

    def __iter__(self) -> Iterator[tuple[int, list[str] | RowProblem]]:
        while True:
            began, self.size = self.number + 1, 0
            try:
                row = next(self.rows)
            except StopIteration:
                return
            except _BadLine as error:
                yield self.number, error.bad
            except commas.Error as error:
                hint = "a quote that opens must close, and one within quotes is doubled"
                yield began, RowProblem("not CSV", f"the row is not CSV: {error} ({hint})")
            else:
                yield began, row


class _BadLine(Exception):
    """Carries what is wrong with a line through the csv module."""

    def __init__(self, bad: RowProblem) -> None:
        super().__init__(bad.reason)
        self.bad = bad


def count_rows(path: Path) -> int | None:
    """How many rows a Parquet file or a folder of `datasets` says it has; None for text, which does not say."""
    if path.is_dir():
        return len(_dataset(path))
    if path.suffix != ".parquet":
        return None
    with _parquet_file(path) as file:
        return int(file.metadata.num_rows)


def _numbered(path: Path) -> Iterator[tuple[int, str | RowProblem]]:
    return enumerate(lines(path), start=1)


def _chosen(
    path: Path, columns: Columns | None, numbered: Iterable[tuple[int, list[str] | RowProblem]], separators: str
) -> Rows:
    """Columns by number, from 0; or by name, where the first line is a header."""
    rows = iter(numbered)
    places = _column_places(path, (0, 1) if columns is None else columns, rows)
    if places:
        yield from _at_places(path, places, rows, separators)


def _column_places(path: Path, columns: Columns, rows: Iterator[tuple[int, list[str] | RowProblem]]) -> tuple[int, ...]:
    """Where the columns are. Those with names take the first of the rows, the header; none where there is no row."""
    places = tuple(column for column in columns if isinstance(column, int))
    if len(places) < len(columns):
        if places:
            raise ValueError(f"columns are all numbers or all names, got {columns}")
        _, header = next(rows, (1, None))
        if header is None:  # an empty file has no rows, and no need of names
            return ()
        names = [] if isinstance(header, RowProblem) else header
        missing = [column for column in columns if column not in names]
        if missing:
            raise ValueError(f"{path}:1: the header has no column {missing[0]!r}; it has {', '.join(names)}")
        places = tuple(names.index(str(column)) for column in columns)
    if min(places) < 0:
        raise ValueError(f"columns are counted from 0, got {columns}")
    return places


def _at_places(
    path: Path, places: tuple[int, ...], rows: Iterable[tuple[int, list[str] | RowProblem]], separators: str
) -> Rows:
    for number, cells in rows:
        where = f"{path}:{number}"
        if isinstance(cells, RowProblem):
            yield where, cells
        elif max(places) >= len(cells):
            has = "1 column" if len(cells) == 1 else f"{len(cells)} columns"
            wanted = f"column {max(places)} was asked for (they count from 0, and {separators} separate them)"
            yield where, RowProblem("missing column", f"the line has {has}, and {wanted}")
        else:
            yield where, [cells[place] for place in places]


def aligned(source: Path, target: Path) -> Rows:
    """Line n of one file is the translation of line n of the other."""
    return aligned_rows(source, target, enumerate(zip_longest(lines(source), lines(target)), start=1))


def aligned_rows(
    source: Path, target: Path, numbered: Iterable[tuple[int, tuple[str | RowProblem | None, str | RowProblem | None]]]
) -> Rows:
    """Some lines of both, with their numbers; None where a file has ended."""
    for number, (left, right) in numbered:
        if left is None or right is None:
            short, long = (source, target) if left is None else (target, source)
            reason = f"{short} ends after {number - 1} lines, {long} does not; line n of each must be one pair"
            yield f"{long}:{number}", RowProblem("differing line counts", reason)
        elif isinstance(left, RowProblem):
            yield f"{source}:{number}", left
        elif isinstance(right, RowProblem):
            yield f"{target}:{number}", right
        else:
            empty = left.strip() and not right.strip()  # so that the message names the file to mend
            yield f"{target if empty else source}:{number}", [left, right]


def jsonl(path: Path, columns: Columns | None) -> Rows:
    """One JSON object a line; columns are keys, `outer.inner` for a key within a key."""
    return jsonl_rows(path, columns, _numbered(path))


def jsonl_rows(path: Path, columns: Columns | None, numbered: Numbered) -> Rows:
    """Some lines of such a file, with their numbers."""
    names = _names(path, columns)
    for number, line in numbered:
        where = f"{path}:{number}"
        if isinstance(line, RowProblem):
            yield where, line
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            yield where, RowProblem("not JSON", f"the line is not JSON: {error}")
            continue
        yield where, _cells(row, names)


def parquet(path: Path, columns: Columns | None) -> Rows:
    """A Parquet file, read a few thousand rows at a time."""
    names = _names(path, columns)
    with _parquet_file(path) as file:
        _known(path, names, file.schema_arrow.names)
        outer = list(dict.fromkeys(name.split(".")[0] for name in names))
        batches = file.iter_batches(batch_size=4096, columns=outer)
        yield from _arrow(path, names, batches)


def _parquet_file(path: Path) -> Any:
    parquet_library = _library(path, "pyarrow.parquet")
    try:
        return parquet_library.ParquetFile(path)
    except _library(path, "pyarrow").ArrowInvalid as error:
        raise ValueError(f"{path} is not a Parquet file: {error}") from error


def datasets_folder(path: Path, columns: Columns | None) -> Rows:
    """One split as `Dataset.save_to_disk` wrote it; memory-mapped."""
    names = _names(path, columns)
    dataset = _dataset(path)
    _known(path, names, dataset.column_names)
    tables = dataset.with_format("arrow").iter(batch_size=4096)
    yield from _arrow(path, names, (batch for table in tables for batch in table.to_batches()))


def _dataset(path: Path) -> Any:
    datasets = _library(path, "datasets")
    try:
        dataset = datasets.load_from_disk(str(path))
    except FileNotFoundError as error:
        raise ValueError(f"{path} is not a folder that `save_to_disk` of `datasets` wrote") from error
    if isinstance(dataset, datasets.DatasetDict):
        raise ValueError(f"{path} holds several splits; name one: {', '.join(str(path / split) for split in dataset)}")
    return dataset


def _library(path: Path, name: str) -> Any:
    try:
        return import_module(name)
    except ModuleNotFoundError as missing:
        package = name.partition(".")[0]
        raise ValueError(f"{path}: reading it needs {package}: pip install 'regard[formats]'") from missing


def _arrow(path: Path, names: list[str], batches: Iterable[Any]) -> Rows:
    number = 0
    for batch in batches:
        cells = {name: batch.column(name) for name in batch.schema.names}
        for i in range(batch.num_rows):
            number += 1
            try:
                row = {name: column[i].as_py() for name, column in cells.items()}
            except UnicodeDecodeError:
                yield f"{path}:{number}", RowProblem("undecodable bytes", "the row is not UTF-8")
                continue
            yield f"{path}:{number}", _cells(row, names)


def _names(path: Path, columns: Columns | None) -> list[str]:
    if columns is None or not all(isinstance(column, str) for column in columns):
        raise ValueError(
            f"{path}: say the names of its columns, source first, as in columns=('en', 'fr'); got {columns}"
        )
    return [str(column) for column in columns]


def _known(path: Path, names: list[str], known: list[str]) -> None:
    for name in names:
        if name not in known and name.split(".")[0] not in known:
            raise ValueError(f"{path} has no column {name!r}; it has {', '.join(known)}")


def _cells(row: Any, names: list[str]) -> Cells | RowProblem:
    cells = []
    for name in names:
        value = row
        for key in [name] if isinstance(row, dict) and name in row else name.split("."):
            if not isinstance(value, dict) or key not in value:
                return RowProblem("missing column", f"the row has no {name!r}")
            value = value[key]
        cells.append(value)
    return cells
