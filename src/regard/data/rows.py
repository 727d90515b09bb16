"""A pair of source and target, and the problem of a row that is no pair.

Rows with named columns: Parquet files, folders that `datasets` saved, and datasets of the Hugging Face Hub.

A column `outer.inner` is a key within a key. All are read a few thousand rows at a time. No dataset's own code is run.

How rows lie in files: TSV, CSV, two line-aligned files, JSON lines, Parquet, a folder of the `datasets` library.

Each reader yields (file:line, cells) with the cells of the chosen columns, or why the row has none.
"""

from __future__ import annotations

import csv as commas
import gzip
import json
import lzma
import re
import zlib
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib import import_module
from itertools import zip_longest
from typing import IO, TYPE_CHECKING, Any

from ..messages import count_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path


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


LONGEST = 1 << 20  # bytes; a longer line is no sentence, and a file without line ends must not fill the memory
LARGEST = 1 << 28  # bytes of running text
COMPRESSED: dict[str, Callable[..., Any]] = {".gz": gzip.open, ".xz": lzma.open}
DAMAGE = (EOFError, gzip.BadGzipFile, lzma.LZMAError, zlib.error)
BOM = b"\xef\xbb\xbf"


@contextmanager
def opened(path: Path) -> Iterator[IO[bytes]]:
    """A file opened for reading, decompressed; damage is an error that names the line where it begins."""
    with _open_binary(path) as file:
        try:
            yield file
        except DAMAGE as error:
            raise ValueError(f"{path}:{_damaged_line(path)}: the file is damaged from here on: {error}") from error


def _open_binary(path: Path) -> Any:
    return COMPRESSED.get(path.suffix, open)(path, "rb")


def _damaged_line(path: Path) -> int:
    """The number of the first line that cannot be read."""
    number = 0
    with _open_binary(path) as file, suppress(*DAMAGE):
        for number, _ in enumerate(read(file), 1):  # noqa: B007  the number is the result
            pass
    return number + 1


def lines(path: Path) -> Iterator[str | RowProblem]:
    """The lines of a file, as `read` gives them."""
    with opened(path) as file:
        yield from read(file)


def text(path: Path) -> str:
    """A whole file, plain or compressed, with \\n at the end of every line."""
    with opened(path) as file:
        content = file.read(LARGEST + 1)
    if len(content) > LARGEST:
        raise ValueError(f"{path} has more than {LARGEST:,} bytes, and running text is held whole; cut it up")
    try:
        return str(content.decode("utf-8-sig")).replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: byte {error.start + 1}, 0x{content[error.start]:02x}, is not UTF-8") from None


def read(file: IO[bytes]) -> Iterator[str | RowProblem]:
    """Each line without its end; a RowProblem for one that is too long or not UTF-8. Only \\n and \\r\\n end a line.

    A byte order mark at the beginning is left out; a file that is only this mark has no lines.
    """
    return map(decode, raw_lines(file))


def raw_lines(file: IO[bytes]) -> Iterator[bytes]:
    """Each line with its end; of one that is too long, the first bytes."""
    first = True
    while line := file.readline(LONGEST + 2):  # the longest line and its end
        if len(line) == LONGEST + 2 and not line.endswith(b"\n"):
            _skip_rest(file)
        elif first and not (line := line.removeprefix(BOM)):
            return
        first = False
        yield line


def decode(line: bytes) -> str | RowProblem:
    text = line.removesuffix(b"\n").removesuffix(b"\r")
    if len(text) > LONGEST:
        return RowProblem("over-long line", f"the line is longer than {LONGEST:,} bytes")
    try:
        return text.decode("utf-8")
    except UnicodeDecodeError as error:
        return RowProblem(
            "undecodable bytes", f"byte {error.start + 1} of the line, 0x{text[error.start]:02x}, is not UTF-8"
        )


def _skip_rest(file: IO[bytes]) -> None:
    while (part := file.readline(LONGEST)) and not part.endswith(b"\n"):
        pass


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
