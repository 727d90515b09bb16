"""Rows of files as pairs: TSV, CSV, two line-aligned files, JSON lines, Parquet.

Each reader yields (file:line, cells) with the cells of the chosen columns, or a RowProblem that says why the row has
none. A column `outer.inner` is a key within a key. Parquet is read a few thousand rows at a time.
"""

from __future__ import annotations

import csv as commas
import errno
import gzip
import json
import lzma
import os
import re
import zlib
from collections import Counter
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from itertools import chain, zip_longest
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Literal, get_args

from ..wording import count_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    Column = int | str
    Columns = tuple[Column, ...]
    Cells = list[Any]  # what stands in the chosen columns; a text where all is well


@dataclass(frozen=True, slots=True)
class Pair:
    """One row of a corpus.

    `alignment` holds gold links "i-j" between words of the source and the target (what spaces separate, from 0),
    separated by spaces; `possible` those that may also be right (Och and Ney 2003). None where they are not known.
    """

    source: str
    target: str
    row: int = -1  # of the corpus, from 0, bad rows counted
    where: str = ""  # file:line
    alignment: str | None = None
    possible: str | None = None


@dataclass(frozen=True, slots=True)
class RowProblem:
    """A row that is no pair: its kind, to count by, and what is wrong with it."""

    kind: str
    reason: str


if TYPE_CHECKING:
    Line = str | RowProblem
    Rows = Iterator[tuple[str, Cells | RowProblem]]

LONGEST = 1 << 20  # bytes; a longer line is no sentence, and a file without line ends must not fill the memory
LARGEST = 1 << 28  # bytes of running text
COMPRESSED: dict[str, Callable[..., Any]] = {".gz": gzip.open, ".xz": lzma.open}
DAMAGE = (EOFError, gzip.BadGzipFile, lzma.LZMAError, zlib.error)
BOM = b"\xef\xbb\xbf"

# --- Lines -----------------------------------------------------------------------------------------------------------


def text(path: Path) -> str:
    """A whole file, plain or compressed, with \\n at the end of every line."""
    try:
        with COMPRESSED.get(path.suffix, open)(path, "rb") as file:
            content = file.read(LARGEST + 1)
    except DAMAGE:
        for _ in raw_lines(path):  # an error that says in which line
            pass
        raise
    if len(content) > LARGEST:
        raise ValueError(f"{path} has more than {LARGEST:,} bytes, and running text is held whole; cut it up")
    try:
        return str(content.decode("utf-8-sig")).replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: byte {error.start + 1}, 0x{content[error.start]:02x}, is not UTF-8") from None


def lines(path: Path) -> Iterator[Line]:
    """The lines of a file, plain or compressed, as `read` gives them."""
    return map(decode, raw_lines(path))


def read(file: IO[bytes]) -> Iterator[Line]:
    """Each line without its end; a RowProblem for one that is too long or not UTF-8. Only \\n and \\r\\n end a line.

    A byte order mark at the beginning is left out; a file that is only this mark has no lines.
    """
    return map(decode, _cut(file))


def raw_lines(path: Path) -> Iterator[bytes]:
    """Each line with its end; of one that is too long, the first bytes. Damage is an error that names its line."""
    number = 0
    with COMPRESSED.get(path.suffix, open)(path, "rb") as file:
        try:
            for number, line in enumerate(_cut(file), 1):  # noqa: B007  it is used where the next line is damaged
                yield line
        except DAMAGE as error:
            raise ValueError(f"{path}:{number + 1}: the file is damaged from here on: {error}") from error


def _cut(file: IO[bytes]) -> Iterator[bytes]:
    first = True
    while line := file.readline(LONGEST + 2):  # the longest line and its end
        if len(line) == LONGEST + 2 and not line.endswith(b"\n"):
            while (rest := file.readline(LONGEST)) and not rest.endswith(b"\n"):
                pass
        elif first and not (line := line.removeprefix(BOM)):
            return
        first = False
        yield line


def decode(line: bytes) -> Line:
    text = line.removesuffix(b"\n").removesuffix(b"\r")
    if len(text) > LONGEST:
        return RowProblem("over-long line", f"the line is longer than {LONGEST:,} bytes")
    try:
        return text.decode("utf-8")
    except UnicodeDecodeError as error:
        place = f"byte {error.start + 1} of the line, 0x{text[error.start]:02x}"
        return RowProblem("undecodable bytes", f"{place}, is not UTF-8")


# --- Files by their names --------------------------------------------------------------------------------------------

SUFFIXES = ".tsv, .txt, .csv, .jsonl (each also with .gz or .xz), .parquet"


def suffix(path: Path) -> str:
    """What a file's name ends with, without .gz or .xz."""
    return path.with_suffix("").suffix if path.suffix in COMPRESSED else path.suffix


def reader(path: Path) -> Callable[[Path, Columns | None], Rows]:
    """The reader for a file with both sides in it, by its name."""
    if path.is_dir():
        raise ValueError(
            f"{path} is a folder; name a file in it (of a dataset of the Hub, its Parquet files), or for sounds and "
            "pictures a TSV: the name of a file, a tab, its label or text"
        )
    readers = {".tsv": tsv, ".txt": tsv, ".csv": csv, ".jsonl": jsonl, ".parquet": parquet}
    if suffix(path) not in readers or (suffix(path) == ".parquet" != path.suffix):
        raise ValueError(f"{path}: no reader knows this kind of file; known are {SUFFIXES}")
    return readers[suffix(path)]


# --- TSV and CSV -----------------------------------------------------------------------------------------------------


def tsv(path: Path, columns: Columns | None) -> Rows:
    """Lines whose cells tabs separate."""
    rows = (line if isinstance(line, RowProblem) else line.split("\t") for line in lines(path))
    return _chosen_cells(path, columns, enumerate(rows, 1), "tabs")


def csv(path: Path, columns: Columns | None) -> Rows:
    """Rows whose cells commas separate (RFC 4180): one in quotes may hold commas, line breaks and, doubled, quotes."""
    return _chosen_cells(path, columns, iter(_Records(path)), "commas")


def _chosen_cells(
    path: Path, columns: Columns | None, rows: Iterator[tuple[int, list[str] | RowProblem]], separators: str
) -> Rows:
    """The cells of rows that come with their numbers. Columns are counted from 0, or named by the first row."""
    first = next(rows, None)
    header = first[1] if first is not None and isinstance(first[1], list) else []
    columns, width = (0, 1) if columns is None else columns, len(header)
    named = {isinstance(column, str) for column in columns}
    if len(named) > 1:
        raise ValueError(f"columns are all numbers or all names, got {columns}")
    if first is None:
        return
    if named == {True}:
        missing = [column for column in columns if column not in header]
        if missing:
            raise ValueError(f"{path}:1: the header has no column {missing[0]!r}; it has {', '.join(header)}")
        places = [header.index(str(column)) for column in columns]
    else:
        places = [int(column) for column in columns]
        rows = chain([first], rows)
    if min(places) < 0:
        raise ValueError(f"columns are counted from 0, got {columns}")
    last = max(places)
    for number, row in rows:
        where = f"{path}:{number}"
        if isinstance(row, RowProblem):
            yield where, row
        elif last >= len(row):
            wanted = f"column {last} was asked for (they count from 0, and {separators} separate them)"
            yield where, RowProblem("missing column", f"the line has {count_of(len(row), 'column')}, and {wanted}")
        elif len(row) > width > 0:
            wider = f"the line has {count_of(len(row), 'column')}, and line 1 has {width}"
            yield where, RowProblem("ragged row", f"{wider} ({separators} separate them)")
        else:
            yield where, [row[place] for place in places]


class _Records:
    """The rows of a CSV file, each with the number of the line it begins in.

    The csv module is fed line by line from here, so that a bad line spoils its own row alone: an error that leaves
    `_feed` ends the row, and the next begins afresh.
    """

    def __init__(self, path: Path) -> None:
        self.lines = enumerate(lines(path), 1)
        self.number = self.size = 0
        self.bad: RowProblem | None = None
        self.rows = commas.reader(iter(self._feed, None), strict=True)

    def _feed(self) -> str | None:
        self.number, line = next(self.lines, (self.number, None))
        if line is None:
            return None
        if isinstance(line, RowProblem):
            self.bad = line
            raise commas.Error
        self.size += len(line)
        if self.size > LONGEST:
            # A quote that never closes would take in all that follows.
            raise commas.Error(f"it has more than {LONGEST:,} characters")
        return f"{line}\n"

    def __iter__(self) -> Iterator[tuple[int, list[str] | RowProblem]]:
        while True:
            began, self.size, self.bad = self.number + 1, 0, None
            try:
                yield began, next(self.rows)
            except StopIteration:
                return
            except commas.Error as error:
                hint = "a quote that opens must close, and one within quotes is doubled"
                not_csv = RowProblem("not CSV", f"the row is not CSV: {error} ({hint})")
                yield (self.number, self.bad) if self.bad else (began, not_csv)


# --- Two files, and JSON lines ---------------------------------------------------------------------------------------


def aligned(source: Path, target: Path) -> Rows:
    """Line n of one file is the translation of line n of the other."""
    for number, (left, right) in enumerate(zip_longest(lines(source), lines(target)), 1):
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
    """One JSON object a line; columns are keys."""
    names = column_names(path, columns)
    for number, line in enumerate(lines(path), 1):
        row: Cells | RowProblem
        try:
            row = line if isinstance(line, RowProblem) else row_cells(json.loads(line), names)
        except (ValueError, RecursionError) as error:
            row = RowProblem("not JSON", f"the line is not JSON: {error}")
        yield f"{path}:{number}", row


# --- Parquet ---------------------------------------------------------------------------------------------------------

BATCH_ROWS = 4096


def column_names(place: object, columns: Columns | None) -> list[str]:
    """The columns, which must be names; `place` is the file or dataset, for the message."""
    if columns is None or not all(isinstance(column, str) for column in columns):
        raise ValueError(
            f"{place}: say the names of its columns, source first, as in columns=('en', 'fr'); got {columns}"
        )
    return [str(column) for column in columns]


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
    parquet_library = _library(path, "pyarrow.parquet")
    try:
        opened = parquet_library.ParquetFile(path)
    except _library(path, "pyarrow").ArrowInvalid as error:
        raise ValueError(f"{path} is not a Parquet file: {error}") from error
    with opened as file:
        chosen = _top_level_columns(path, names, file.schema_arrow.names)
        yield from _arrow_rows(path, names, file.iter_batches(batch_size=BATCH_ROWS, columns=chosen))


def _top_level_columns(place: object, names: list[str], known: list[str]) -> list[str]:
    """The columns that keys within keys are in."""
    for name in names:
        if name not in known and name.split(".")[0] not in known:
            raise ValueError(f"{place} has no column {name!r}; it has {', '.join(known)}")
    return list(dict.fromkeys(name.split(".")[0] for name in names))


def _library(place: object, name: str) -> Any:
    try:
        return import_module(name)
    except ModuleNotFoundError as missing:
        package = name.partition(".")[0]
        raise ValueError(f"{place}: reading it needs {package}: pip install 'regard[formats]'") from missing


def _arrow_rows(place: object, names: list[str], tables: Iterable[Any]) -> Rows:
    """The rows of tables or batches of Arrow."""
    number = 0
    for table in tables:
        try:
            rows: list[Any] = table.to_pylist()
        except UnicodeDecodeError:  # some row is not UTF-8: look at each by itself
            rows = [_arrow_row(table.slice(i, 1)) for i in range(table.num_rows)]
        for number, row in enumerate(rows, number + 1):  # noqa: B020  counts on over all tables
            yield f"{place}:{number}", row if isinstance(row, RowProblem) else row_cells(row, names)


def _arrow_row(table: Any) -> Any:
    try:
        return table.to_pylist()[0]
    except UnicodeDecodeError:
        return RowProblem("undecodable bytes", "the row is not UTF-8")


# --- Pairs -----------------------------------------------------------------------------------------------------------

OnBad = Literal["error", "skip"]
File = str | os.PathLike[str]

_SIDES = ("the source side", "the target side")  # what has no columns to be named by
_LINK = re.compile(r"(\d+)-(\d+)")
_SURROGATE = re.compile("[\ud800-\udfff]")


class BadRowError(ValueError):
    """A row that is no pair: file:line, and why."""


def skipped_rows(reasons: Counter[str]) -> str:
    """How many rows were left out, and why, as a sentence."""
    kinds = ", ".join(f"{count:,} {kind}" for kind, count in reasons.most_common())
    return f"{count_of(reasons.total(), 'row')} skipped" + (f" ({kinds})" if kinds else "")


class PairReader:
    """Pairs from files, in order; each iteration reads them anew, a row at a time.

        PairReader("train.tsv.xz", columns=(0, 2))                    # columns by number, from 0
        PairReader("train.tsv", columns=("english", "french"))        # by name: the first line is a header
        PairReader("train.csv", columns=("text", "label"))            # the same of CSV
        PairReader("train.en.gz", target="train.fr.gz")               # two files, line by line
        PairReader("train.jsonl", columns=("translation.en", "translation.fr"))
        PairReader(["old.parquet", "new.parquet"], columns=("en", "fr"))
        PairReader(phrasebook.pairs(1000, seed=1))                    # whatever gives pairs

    A third column holds gold alignment links ("0-0 1-2"), a fourth the links that are possible but not sure.

    A row that is no pair (a column is missing, there are more than in line 1, a side is empty, bytes are not UTF-8, one
    file ends before the other, a line is endless) is an error that says file:line and why; with on_bad="skip" it is
    left out and counted: `skipped`, `reasons` by kind, `first` message of each kind, `report()` as a sentence, all of
    the latest iteration.
    """

    def __init__(
        self,
        files: File | Iterable[File] | Iterable[Pair],
        *,
        target: File | Iterable[File] | None = None,
        columns: tuple[Column, ...] | list[Column] | None = None,
        on_bad: OnBad = "error",
    ) -> None:
        if on_bad not in get_args(OnBad):
            raise ValueError(f"on_bad is 'error' or 'skip', got {on_bad!r}")
        if columns is not None and (isinstance(columns, str) or not 2 <= len(columns) <= 4):
            raise ValueError(f"columns are those of the source, the target and perhaps two of links, got {columns!r}")
        self.on_bad = on_bad
        self.reasons: Counter[str] = Counter()
        self.first: dict[str, str] = {}
        self._parts: list[Callable[[], Rows]]
        self._sides: tuple[str, ...] = _SIDES
        paths, pairs = _files_or_pairs(files)
        if target is not None:
            targets, _ = _files_or_pairs(target)
            if paths is None or targets is None or len(paths) != len(targets):
                raise ValueError(f"target= names one file for each source file, got {files} and {target}")
            if columns is not None:
                raise ValueError("columns= is for files that hold both sides; leave it out where there is target=")
            self._parts = [partial(aligned, *two) for two in zip(paths, targets, strict=True)]
        elif paths is not None:
            chosen = None if columns is None else tuple(columns)
            self._parts = [partial(reader(path), path, chosen) for path in paths]
            self._sides = tuple(f"column {column!r}" for column in (chosen or (0, 1))[:2])
        else:
            self._parts = [partial(_pair_rows, pairs)]

    @property
    def skipped(self) -> int:
        return self.reasons.total()

    def report(self) -> str:
        """How many rows were left out, and why."""
        return skipped_rows(self.reasons)

    def __iter__(self) -> Iterator[Pair]:
        return self.check_rows(self.rows())

    def rows(self) -> Rows:
        """All rows as they are in the files, unchecked."""
        return chain.from_iterable(part() for part in self._parts)

    def check_rows(self, rows: Iterable[tuple[str, Cells | RowProblem]]) -> Iterator[Pair]:
        """The pairs among these rows; what the others are is counted anew."""
        self.reasons, self.first = Counter(), {}
        for row, (where, cells) in enumerate(rows):
            pair = cells if isinstance(cells, RowProblem) else _pair(cells, row, where, self._sides)
            if isinstance(pair, Pair):
                yield pair
                continue
            message = f"{where}: {pair.reason}"
            if self.on_bad == "error":
                error = BadRowError(message)
                error.add_note("on_bad='skip' leaves such rows out")  # a note: commands name an option of their own
                raise error
            self.reasons[pair.kind] += 1
            self.first.setdefault(pair.kind, message)


def _pair_rows(pairs: Iterable[Pair]) -> Rows:
    for i, pair in enumerate(pairs):
        yield pair.where or f"pair {i + 1}", [pair.source, pair.target, pair.alignment, pair.possible]


def _files_or_pairs(files: File | Iterable[File] | Iterable[Pair]) -> tuple[list[Path] | None, Iterable[Pair]]:
    """The files, or None and the pairs; the first item decides."""
    several: Iterable[Any] = [files] if isinstance(files, str | os.PathLike) else files
    if iter(several) is several:  # a generator gives what it has only once
        several = list(several)
    first = next(iter(several), None)
    if isinstance(first, Pair | None):
        return None, several
    if not isinstance(first, str | os.PathLike):
        raise ValueError(f"PairReader reads files or takes pairs (regard.data.Pair), got {first!r:.60}")
    paths = [Path(file) for file in several]
    for path in paths:
        if not path.exists():
            raise FileNotFoundError(errno.ENOENT, "there is no such file or folder", str(path))
    return paths, []


def _pair(cells: Cells, row: int, where: str, names: tuple[str, ...]) -> Pair | RowProblem:
    """The row as a pair, if it is one."""
    sides: list[str] = []
    for side, name, text in zip(("source", "target"), names, cells, strict=False):
        if text is not None and not isinstance(text, str):
            return RowProblem("not text", f"{name} is {text!r:.40}, not text")
        if not text or not text.strip():
            return RowProblem(f"empty {side}", f"{name} is empty")
        if _SURROGATE.search(text):
            return RowProblem("undecodable bytes", f"{name} holds one half of a surrogate pair")
        sides.append(text.strip())
    if len(sides) == len(cells):
        return Pair(sides[0], sides[1], row, where)
    links = [None if cell is None else str(cell).split() for cell in cells[2:]]
    wrong = _link_problem(links, *(len(side.split(" ")) for side in sides))
    written = [None if some is None else " ".join(some) for some in links] + [None, None]
    return wrong or Pair(sides[0], sides[1], row, where, written[0], written[1])


def _link_problem(links: list[list[str] | None], source: int, target: int) -> RowProblem | None:
    """What is wrong with gold links between sentences of so many words, if anything."""
    for link in chain.from_iterable(some or [] for some in links):
        ends: Any = _LINK.fullmatch(link)
        if ends is None:
            return RowProblem("bad links", f"{link!r:.40} is no link; links look like 0-0 1-2")
        if int(ends[1]) >= source or int(ends[2]) >= target:
            sizes = f"{count_of(source, 'word')} and {count_of(target, 'word')}"
            return RowProblem("bad links", f"link {link} points past the end: the sides have {sizes}")
    return None


# --- Headers ---------------------------------------------------------------------------------------------------------

_NAMES = """source target src tgt text label sentence translation input output question answer class category sentiment
file path picture image sound caption transcript english french german spanish italian en fr de es it"""
NAMES = frozenset(_NAMES.split())
"""What columns are often called."""


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
