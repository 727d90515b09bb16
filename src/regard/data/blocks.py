"""Corpora in files, read in blocks of rows: what processes encode, streams deal out, and samples are drawn from."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from dataclasses import dataclass, replace
from functools import cached_property, partial
from hashlib import blake2b
from itertools import chain, islice, zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..files import sha256
from .encoding import RowChunk, row_chunks
from .pair_reader import OnBad, PairReader
from .rows import (
    COMPRESSED,
    LONGEST,
    Pair,
    aligned_rows,
    count_rows,
    decode,
    jsonl_rows,
    opened,
    raw_lines,
    tsv_places,
    tsv_rows,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from jaxtyping import Bool, Int64

    from .rows import Cells, Column, DatasetSplit, RowProblem, Rows

BLOCK_LINES = 50_000
"""Rows of a block. Positions in a stream count blocks."""
BLOCK_BYTES = 1 << 26
"""A block ends after so many bytes, if its lines are long; they are counted after LOOK lines."""
LOOK = 100


@dataclass
class CheckedRows:
    """The pairs of a block, numbered from 0, and what was wrong with its other rows."""

    chunk: RowChunk
    reasons: Counter[str]
    first: dict[str, str]  # the first message of each kind


@dataclass(frozen=True)
class FileScan:
    """What one pass over a file tells; `stamp` tells later whether the file was changed since."""

    sha256: str
    lines: int
    stamp: str

    @classmethod
    def of(cls, path: Path) -> FileScan:
        """The hash of a file, and its lines after decompression; of Parquet and of a folder, the hash only."""
        stamp = _stamp(path)
        if path.is_dir():
            files = {file.relative_to(path).as_posix(): sha256(file) for file in path.rglob("*") if file.is_file()}
            scan = cls(hashlib.sha256(json.dumps(files, sort_keys=True).encode()).hexdigest(), 0, stamp)
        else:
            scan = cls(sha256(path), 0 if path.suffix == ".parquet" else _count_lines(path), stamp)
        require_unchanged(path, stamp)
        return scan


def require_unchanged(path: Path, stamp: str) -> None:
    """Raise an error where a file was written or replaced since its scan: it may not have the content of its hash."""
    if _stamp(path) != stamp:
        raise ValueError(f"{path} changed while it was read; start again when no other program writes it")


def _stamp(path: Path) -> str:
    """The inode, size and time of modification of a file, or of all files in a folder."""
    stats = [file.stat() for file in (sorted(path.rglob("*")) if path.is_dir() else [path]) if file.is_file()]
    return json.dumps([[stat.st_ino, stat.st_size, stat.st_mtime_ns] for stat in stats])


def _count_lines(path: Path) -> int:
    lines, last = 0, b"\n"
    with opened(path) as file:
        while piece := file.read(1 << 20):
            lines, last = lines + piece.count(b"\n"), piece[-1:]
    return lines + (last != b"\n")


@dataclass(frozen=True)
class CorpusPart:
    """A file, or two files with a sentence a line; the columns of it; and a tag that begins every source."""

    files: tuple[str, ...]
    columns: tuple[Column, ...] | None = None
    on_bad: OnBad = "error"
    tag: str = ""

    @cached_property
    def format(self) -> str:
        """ "tsv", "jsonl", "aligned", or "" where a row is not a line: CSV, Parquet, a folder of `datasets`."""
        path = Path(self.files[0])
        name = path.with_suffix("") if path.suffix in COMPRESSED else path
        if len(self.files) == 2:
            return "aligned"
        return "" if path.is_dir() else {".tsv": "tsv", ".txt": "tsv", ".jsonl": "jsonl"}.get(name.suffix, "")

    @cached_property
    def reader(self) -> PairReader:
        if len(self.files) == 2:
            return PairReader(self.files[0], target=self.files[1], on_bad=self.on_bad)
        return PairReader(self.files[0], columns=self.columns, on_bad=self.on_bad)

    @cached_property
    def layout(self) -> tuple[tuple[int, ...], bool]:
        """Of a TSV file, the places of its columns and whether its first line is a header."""
        return tsv_places(Path(self.files[0]), self.columns) if self.format == "tsv" else ((0, 1), False)

    def scan(self) -> tuple[FileScan, ...]:
        return tuple(FileScan.of(Path(file)) for file in self.files)

    def count_rows(self, scans: Sequence[FileScan]) -> int:
        """How many rows it has, bad ones included; of CSV, at most."""
        stated = count_rows(Path(self.files[0]))
        return max(scan.lines for scan in scans) - self.layout[1] if stated is None else stated

    def blocks(self) -> Iterator[Block]:
        """All rows, in order; a block of lines is parsed when it is asked for its pairs."""
        if not self.format:
            rows = self.reader.rows()
            while cells := list(islice(rows, BLOCK_LINES)):
                yield Block(self, 1, cells)
            return
        number, lines, size = 1, list[tuple[bytes | None, ...]](), 0
        both = zip_longest(*(_file_lines(Path(file)) for file in self.files))
        while some := list(islice(both, min(LOOK, BLOCK_LINES - len(lines)))):
            lines += some
            size += sum(sum(map(len, filter(None, side))) for side in zip(*some, strict=True))
            if len(lines) == BLOCK_LINES or size > BLOCK_BYTES:
                yield Block(self, number, lines)
                number, lines, size = number + len(lines), [], 0
        if lines:
            yield Block(self, number, lines)

    def checked(self, rows: Iterable[tuple[str, Cells | RowProblem]]) -> CheckedRows:
        """The pairs among rows, which are looked at one by one."""
        pairs = list(self.reader.check_rows(rows))
        sources, targets = ([getattr(pair, side) for pair in pairs] for side in ("source", "target"))
        chunk = RowChunk(sources, targets, np.arange(len(pairs)), lambda i: pairs[i].where)
        return CheckedRows(self.tagged(chunk), self.reader.reasons, self.reader.first)

    def tagged(self, chunk: RowChunk) -> RowChunk:
        return replace(chunk, sources=[f"{self.tag} {text}" for text in chunk.sources]) if self.tag else chunk

    def settings(self) -> dict[str, Any]:
        """How the files are read."""
        return {"columns": self.columns, "on_bad": self.on_bad, "tag": self.tag}

    def __reduce__(self) -> tuple[Any, ...]:
        return CorpusPart, (self.files, self.columns, self.on_bad, self.tag)  # a process opens the files itself


@dataclass(frozen=True)
class Block:
    """Rows of a part: of each line its bytes in each file, and the number of the first line, from 1; or cells."""

    part: CorpusPart
    number: int
    rows: Sequence[Any]

    def check(self, places: Iterable[int] | None = None) -> CheckedRows:
        """The pairs among all rows, or among those at some places of the block."""
        part = self.part
        rows = self.rows
        numbers: Sequence[int] = range(self.number, self.number + len(rows))
        header = int(self.number == 1 and part.layout[1])
        if places is not None or header:
            chosen = range(header, len(rows)) if places is None else [i for i in places if i >= header]
            rows, numbers = [rows[i] for i in chosen], [self.number + i for i in chosen]
        if not part.format:
            return part.checked(rows)
        return self._well_formed(rows, numbers) or part.checked(self._cells(rows, numbers))

    def _well_formed(self, rows: Sequence[tuple[bytes, ...]], numbers: Sequence[int]) -> CheckedRows | None:
        """The rows, if every line is a pair: the common case, without a look at each line by itself."""
        part, (places, _) = self.part, self.part.layout
        if part.format == "jsonl" or len(places) > 2 or not rows:
            return None
        files = list(zip(*rows, strict=True))
        try:
            if max(max(map(len, lines)) for lines in files) > LONGEST:
                return None
            texts = [[line.decode("utf-8") for line in lines] for lines in files]
            if part.format == "tsv":
                cells = [line.split("\t") for line in texts[0]]
                texts = [[row[place] for row in cells] for place in places]
        except (TypeError, UnicodeDecodeError, IndexError):  # None where a file has ended
            return None
        source, target = ([text.strip() for text in side] for side in texts)
        if not (all(source) and all(target)):
            return None
        chunk = RowChunk(source, target, np.arange(len(rows)), lambda i: f"{part.files[0]}:{numbers[i]}")
        return CheckedRows(part.tagged(chunk), Counter(), {})

    def _cells(self, rows: Sequence[tuple[bytes | None, ...]], numbers: Sequence[int]) -> Rows:
        part, paths = self.part, [Path(file) for file in self.part.files]
        sides = [[None if line is None else decode(line) for line in row] for row in rows]
        if part.format == "aligned":
            return aligned_rows(paths[0], paths[1], zip(numbers, sides, strict=True))  # type: ignore[arg-type]
        numbered: Any = zip(numbers, (line for (line,) in sides), strict=True)
        if part.format == "jsonl":
            return jsonl_rows(paths[0], part.columns, numbered)
        return tsv_rows(paths[0], part.layout[0], numbered)


def _file_lines(path: Path) -> Iterator[bytes]:
    with opened(path) as file:
        yield from raw_lines(file)


def is_held_out(row: int, every: int) -> bool:
    """One row of each `every` rows, chosen by a hash: evenly over a sorted file, but not at regular intervals.

    Only the number of the row decides, so every process, resumed run and training seed holds out the same rows.
    """
    block, place = divmod(row, every)
    return _held_place(block, every) == place


def held_out_rows(first: int, count: int, every: int) -> Bool[np.ndarray, "count"]:
    """`is_held_out` of `count` rows from `first` on."""
    places = np.array([_held_place(block, every) for block in range(first // every, (first + count) // every + 1)])
    rows = np.arange(first, first + count)
    held: Bool[np.ndarray, "count"] = rows % every == places[rows // every - first // every]
    return held


def _held_place(block: int, every: int) -> int:
    drawn = blake2b(str(block).encode(), digest_size=8).digest()
    return int.from_bytes(drawn, "little") % every


@dataclass(frozen=True)
class Split:
    """What is to be encoded: all rows of the parts, or with `hold_out` one row of so many (`valid`) or the others.

    `scans` has a FileScan for each file of each part. With `keeps_pairs` the text of the pairs is kept beside the ids.
    """

    parts: tuple[CorpusPart, ...]
    scans: tuple[tuple[FileScan, ...], ...]
    longest: int | None = None
    hold_out: int = 0
    valid: bool = False
    keeps_pairs: bool = False

    @property
    def rows(self) -> int:
        """Of the files, bad ones and those of other splits included; of CSV, at most."""
        return sum(part.count_rows(scans) for part, scans in zip(self.parts, self.scans, strict=True))

    @property
    def content(self) -> dict[str, Any]:
        """What decides its pairs: the hashes of the files and how they are read, not their names.

        Messages about bad rows name files: where such rows are skipped, the names count too.
        """
        parts = []
        for part, scans in zip(self.parts, self.scans, strict=True):
            names = part.files if part.on_bad == "skip" else [Path(file).suffixes[-2:] for file in part.files]
            parts.append([[scan.sha256 for scan in scans], list(names), part.settings()])
        return {"parts": parts, "hold_out": self.hold_out, "valid": self.valid, "keeps_pairs": self.keeps_pairs}

    @property
    def bytes(self) -> int:
        return sum(Path(file).stat().st_size for part in self.parts for file in part.files)

    def require_unchanged(self) -> None:
        """Raise an error where a file was changed since it was hashed."""
        for part, scans in zip(self.parts, self.scans, strict=True):
            for file, scan in zip(part.files, scans, strict=True):
                require_unchanged(Path(file), scan.stamp)


def sample_indices(begin: int, count: int, size: int, total: int) -> Int64[np.ndarray, "chosen"]:
    """Of the rows begin ≤ i < begin + count of `total`, those of an even sample of `size`, less `begin`.

    Row i is in the sample if ⌊(i + 1) · size / total⌋ > ⌊i · size / total⌋.
    """
    rows = np.arange(begin, begin + count + 1, dtype=np.int64) * size // total
    return np.flatnonzero(rows[1:] > rows[:-1])


class SampledPairs:
    """About `size` pairs of a split, evenly spread over it; each iteration reads the files again."""

    def __init__(self, split: Split, size: int) -> None:
        self.split = split
        self._indices = partial(sample_indices, size=size, total=split.rows)

    def __iter__(self) -> Iterator[Pair]:
        row, split = 0, self.split
        for block in (block for part in split.parts for block in part.blocks()):
            if split.hold_out:  # which row is held out depends on the pairs before it, so all rows are read
                chunk = block.check().chunk
                count = len(chunk.rows)
                held = held_out_rows(row, count, split.hold_out)
                chunk = chunk.select([i for i in self._indices(row, count).tolist() if held[i] == split.valid])
            else:
                count = len(block.rows)
                chunk = block.check(self._indices(row, count).tolist()).chunk
            row += count
            yield from map(Pair, chunk.sources, chunk.targets)


@dataclass(frozen=True)
class FileStream:
    """Files, read one after the other; each epoch has them in another order."""

    parts: tuple[CorpusPart, ...]
    seed: int = 0
    held_out: int = 0

    def blocks(self, epoch: int, start: int = 0) -> Iterator[CheckedRows]:
        order = np.random.default_rng([self.seed, epoch]).permutation(len(self.parts)).tolist()
        blocks = chain.from_iterable(
            ((part == 0 and place == 0, block) for place, block in enumerate(self.parts[part].blocks()))
            for part in order
        )
        # A block of lines is parsed when its rows are asked for, so those before `start` cost little.
        for is_first, block in islice(blocks, start, None):
            yield _drop_first(block.check(), self.held_out) if is_first else block.check()

    def first_block(self) -> CheckedRows:
        return next((block.check() for block in self.parts[0].blocks()), _no_rows())

    def readers(self) -> list[PairReader]:
        return [part.reader for part in self.parts]


@dataclass(frozen=True)
class DatasetStream:
    """A split of a dataset, in its own order in every epoch."""

    split: DatasetSplit
    columns: tuple[Column, ...]
    on_bad: OnBad = "error"
    held_out: int = 0

    def blocks(self, epoch: int, start: int = 0) -> Iterator[CheckedRows]:
        rows = self.split.rows(self.columns, start * BLOCK_LINES)
        while cells := list(islice(rows, BLOCK_LINES)):
            reader = PairReader([], on_bad=self.on_bad)
            chunk = next(row_chunks(reader.check_rows(cells), BLOCK_LINES), _no_rows().chunk)
            checked = CheckedRows(chunk, reader.reasons, reader.first)
            yield checked if start else _drop_first(checked, self.held_out)
            start += 1

    def first_block(self) -> CheckedRows:
        return next(replace(self, held_out=0).blocks(0), _no_rows())

    def readers(self) -> list[PairReader]:
        return [PairReader.from_rows(lambda: self.split.rows(self.columns), self.on_bad)]


PairStream = FileStream | DatasetStream
"""A corpus in blocks of at most BLOCK_LINES rows. The number of a block in its epoch is a position.

`held_out` pairs of the first block are not trained on. `blocks(epoch, start)` are those of one pass over the corpus,
from number `start` on, `readers()` one reader for each file.
"""


def held_out_pairs(stream: PairStream) -> list[Pair]:
    """The first pairs of a stream, which are not trained on."""
    chunk = stream.first_block().chunk
    pairs = zip(chunk.sources, chunk.targets, strict=True)
    return [Pair(source, target, row) for row, (source, target) in enumerate(islice(pairs, stream.held_out))]


def _drop_first(checked: CheckedRows, count: int) -> CheckedRows:
    """The rows of a block but the first `count` pairs."""
    if not count:
        return checked
    return replace(
        checked, chunk=checked.chunk.select(range(min(count, len(checked.chunk.rows)), len(checked.chunk.rows)))
    )


def _no_rows() -> CheckedRows:
    return CheckedRows(RowChunk([], [], [], str), Counter(), {})
