"""How rows lie in files: TSV, CSV, two line-aligned files, JSON lines, Parquet, a folder of the `datasets` library.

Each reader yields (file:line, cells) with the cells of the chosen columns, or why the row has none.
"""

from __future__ import annotations

import csv as commas
import json
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

from ..noun_count import count_of
from .arrow_rows import column_names, datasets_folder, is_saved_dataset, parquet, row_cells
from .pair import Pair, RowProblem
from .text_lines import COMPRESSED, LONGEST, lines

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from pathlib import Path

    Column = int | str
    Columns = tuple[Column, ...]
    Cells = list[Any]  # what stands in the chosen columns; a text where all is well
    Rows = Iterator[tuple[str, Cells | RowProblem]]
    Numbered = Iterable[tuple[int, str | RowProblem]]  # lines and their numbers, from 1

SUFFIXES = ".tsv, .txt, .csv, .jsonl (each also with .gz or .xz), .parquet, or a folder that `datasets` saved"

LANGUAGES = ("english", "french", "german", "spanish", "italian", "en", "fr", "de", "es", "it")
NAMES = frozenset(
    [
        *("source", "target", "src", "tgt", "text", "label", "sentence", "translation", "input", "output"),
        *("question", "answer", "class", "category", "sentiment", "file", "path", "picture", "image", "sound"),
        *("caption", "transcript", *LANGUAGES),
    ]
)
"""What columns are often called."""


def reader(path: Path) -> Callable[[Path, Columns | None], Rows]:
    """The reader for a file with both sides in it, by its name."""
    if path.is_dir():
        if not is_saved_dataset(path):
            raise ValueError(
                f"{path} is a folder, and no dataset that `save_to_disk` of `datasets` wrote; name a file in it, or "
                "for sounds and pictures a TSV: the name of a file, a tab, its label or text"
            )
        return datasets_folder
    name = path.with_suffix("") if path.suffix in COMPRESSED else path
    readers = {".tsv": tsv, ".txt": tsv, ".csv": csv, ".jsonl": jsonl, ".parquet": parquet}
    if name.suffix not in readers or (name.suffix == ".parquet" and name != path):
        raise ValueError(f"{path}: no reader knows this kind of file; known are {SUFFIXES}")
    return readers[name.suffix]


def tsv(path: Path, columns: Columns | None) -> Rows:
    """Lines whose cells tabs separate."""
    return _column_cells(path, columns, _tab_cells(_line_numbers(path)), "tabs")


def tsv_places(path: Path, columns: Columns | None) -> tuple[tuple[int, ...], bool]:
    """The places of the columns of a TSV file, and whether its first line is a header."""
    columns = (0, 1) if columns is None else columns
    places = _column_places(path, columns, _tab_cells(_line_numbers(path)))
    return places or (0, 1), not isinstance(columns[0], int)


def tsv_rows(path: Path, places: tuple[int, ...], numbered: Numbered) -> Rows:
    """The cells of some lines of a TSV file, which come with their numbers."""
    return _at_places(path, places, _tab_cells(numbered), "tabs")


def _tab_cells(numbered: Numbered) -> Iterator[tuple[int, list[str] | RowProblem]]:
    return ((number, line if isinstance(line, RowProblem) else line.split("\t")) for number, line in numbered)


def csv(path: Path, columns: Columns | None) -> Rows:
    """Rows whose cells commas separate (RFC 4180): one in quotes may hold commas, line breaks and, doubled, quotes."""
    return _column_cells(path, columns, _Records(path), "commas")


class _Records:
    """The rows of a CSV file, each with the number of the line it begins in.

    The csv module is fed line by line from here, so that a bad line spoils its own row alone: an error that leaves
    `_feed` ends the row, and the next begins afresh.
    """

    def __init__(self, path: Path) -> None:
        self.lines = _line_numbers(path)
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


def _line_numbers(path: Path) -> Iterator[tuple[int, str | RowProblem]]:
    return enumerate(lines(path), start=1)


def _column_cells(
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
            wanted = f"column {max(places)} was asked for (they count from 0, and {separators} separate them)"
            yield where, RowProblem("missing column", f"the line has {count_of(len(cells), 'column')}, and {wanted}")
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
            end = count_of(number - 1, "line")
            reason = f"{short} ends after {end}, {long} does not; line n of each must be one pair"
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
    return jsonl_rows(path, columns, _line_numbers(path))


def jsonl_rows(path: Path, columns: Columns | None, numbered: Numbered) -> Rows:
    """Some lines of such a file, with their numbers."""
    names = column_names(path, columns)
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
        yield where, row_cells(row, names)


def header_remark(first: Pair, columns: Sequence[Column], option: str, names: Iterable[str] = ()) -> str | None:
    """What to say if both sides of the first pair of a file are names of columns; `names` are others that are known.

    `option` is how columns are named: `--columns {}` or `data.columns = [{}]`.
    """
    known = NAMES | {name.lower() for name in names}
    sides = [first.source, first.target]
    if not isinstance(columns[0], int) or not first.where.endswith(":1") or not known.issuperset(map(str.lower, sides)):
        return None
    return (
        f"{first.where} looks like a header ({first.source!r}, {first.target!r}), and it is read as a row, since "
        f"columns are numbered; if it is one, name them: {option.format(*sides)}"
    )
