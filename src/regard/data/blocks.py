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
from .encoding import RowChunk
from .pair_reader import OnBad, PairReader
from .rows import (
    LONGEST,
    DatasetSplit,
    Layout,
    Pair,
    aligned_cells,
    count_rows,
    decode,
    json_cells,
    raw_lines,
    suffix,
    tab_cells,
    tsv_layout,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from jaxtyping import Bool

    from .rows import Column, Rows

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
    """What one pass over a file tells: its hash, and its lines, 0 of Parquet and of a folder.

    `stamp` tells later whether the file was changed since.
    """

    sha256: str
    lines: int
    stamp: str

    @classmethod
    def of(cls, path: Path) -> FileScan:
        stamp = _stamp(path)
        if path.is_dir():
            files = {file.relative_to(path).as_posix(): sha256(file) for file in path.rglob("*") if file.is_file()}
            return cls(hashlib.sha256(json.dumps(files, sort_keys=True).encode()).hexdigest(), 0, stamp)
        return cls(sha256(path), 0 if path.suffix == ".parquet" else sum(1 for _ in raw_lines(path)), stamp)


def _stamp(path: Path) -> str:
    """The inode, size and time of modification of a file, or of all files in a folder."""
    stats = [file.stat() for file in (sorted(path.rglob("*")) if path.is_dir() else [path]) if file.is_file()]
    return json.dumps([[stat.st_ino, stat.st_size, stat.st_mtime_ns] for stat in stats])


@dataclass(frozen=True)
class CorpusPart:
    """A file, two files with a sentence a line, or a dataset; the columns of it; and a tag that begins every source."""

    files: tuple[str, ...] = ()
    columns: tuple[Column, ...] | None = None
    on_bad: OnBad = "error"
    tag: str = ""
    dataset: DatasetSplit | None = None

    @cached_property
    def format(self) -> str:
        """ "tsv", "jsonl", "aligned", or "" where a row is not a line: CSV, Parquet, datasets."""
        if self.dataset or Path(self.files[0]).is_dir():
            return ""
        known = {".tsv": "tsv", ".txt": "tsv", ".jsonl": "jsonl"}
        return "aligned" if len(self.files) == 2 else known.get(suffix(Path(self.files[0])), "")

    @cached_property
    def reader(self) -> PairReader:
        if self.dataset:
            return PairReader.from_rows(partial(self._dataset_rows, 0), self.on_bad)
        if len(self.files) == 2:
            return PairReader(self.files[0], target=self.files[1], on_bad=self.on_bad)
        return PairReader(self.files[0], columns=self.columns, on_bad=self.on_bad)

    @cached_property
    def layout(self) -> Layout:
        """Of a TSV file; of two files, each of one column, that of both together."""
        tsv = self.format == "tsv"
        return tsv_layout(Path(self.files[0]), self.columns) if tsv else Layout((0, 1), 2, header=False)

    def scan(self) -> tuple[FileScan, ...]:
        return tuple(FileScan.of(Path(file)) for file in self.files)

    def count_rows(self, scans: Sequence[FileScan]) -> int:
        """How many rows it has, bad ones included; of CSV, at most."""
        stated = count_rows(Path(self.files[0]))
        return max(scan.lines for scan in scans) - self.layout.header if stated is None else stated

    def blocks(self, start: int = 0) -> Iterator[Block]:
        """All rows from block `start` on, in order; a block of lines is parsed when it is asked for its pairs."""
        if self.format:
            return islice(self._line_blocks(), start, None)
        rows = self._dataset_rows(start * BLOCK_LINES) if self.dataset else self.reader.rows()
        blocks = (Block(self, 1, cells) for cells in iter(lambda: list(islice(rows, BLOCK_LINES)), []))
        return blocks if self.dataset else islice(blocks, start, None)

    def _dataset_rows(self, start: int) -> Rows:
        assert self.dataset is not None
        return self.dataset.rows(self.columns, start)

    def _line_blocks(self) -> Iterator[Block]:
        number, lines, size = 1, list[tuple[bytes | None, ...]](), 0
        both = zip_longest(*(raw_lines(Path(file)) for file in self.files))
        while some := list(islice(both, min(LOOK, BLOCK_LINES - len(lines)))):
            lines += some
            size += sum(sum(map(len, filter(None, side))) for side in zip(*some, strict=True))
            if len(lines) == BLOCK_LINES or size > BLOCK_BYTES:
                yield Block(self, number, lines)
                number, lines, size = number + len(lines), [], 0
        if lines:
            yield Block(self, number, lines)

    def settings(self) -> dict[str, Any]:
        """How the files are read."""
        return {"columns": self.columns, "on_bad": self.on_bad, "tag": self.tag}


@dataclass(frozen=True)
class Block:
    """Rows of a part: of each line its bytes in each file, and the number of the first line, from 1; or cells."""

    part: CorpusPart
    number: int
    rows: Sequence[Any]

    def check(self) -> CheckedRows:
        """The pairs among the rows."""
        part = self.part
        checked = self._well_formed()
        if checked is None:
            pairs = list(part.reader.check_rows(self._cells()))
            sources, targets = ([getattr(pair, side) for pair in pairs] for side in ("source", "target"))
            chunk = RowChunk(sources, targets, np.arange(len(pairs)), lambda i: pairs[i].where)
            checked = CheckedRows(chunk, part.reader.reasons, part.reader.first)
        if part.tag:
            checked.chunk = replace(checked.chunk, sources=[f"{part.tag} {text}" for text in checked.chunk.sources])
        return checked

    def _well_formed(self) -> CheckedRows | None:
        """The rows, if every line is a pair: the common case, without a look at each line by itself."""
        part, layout = self.part, self.part.layout
        header = int(self.number == 1 and layout.header)
        rows = self.rows[header:]
        if part.format not in ("tsv", "aligned") or len(layout.places) > 2 or not rows:
            return None
        files = list(zip(*rows, strict=True))
        try:
            if max(max(map(len, lines)) for lines in files) > LONGEST:
                return None
            texts = [[line.decode("utf-8") for line in lines] for lines in files]
            if part.format == "tsv":
                cells = [line.split("\t") for line in texts[0]]
                if max(map(len, cells)) > layout.width:
                    return None
                texts = [[row[place] for row in cells] for place in layout.places]
        except (TypeError, UnicodeDecodeError, IndexError):  # None where a file has ended
            return None
        source, target = ([text.strip() for text in side] for side in texts)
        if not (all(source) and all(target)):
            return None
        first = self.number + header
        chunk = RowChunk(source, target, np.arange(len(rows)), lambda i: f"{part.files[0]}:{first + i}")
        return CheckedRows(chunk, Counter(), {})

    def _cells(self) -> Rows:
        part = self.part
        if not part.format:
            return iter(self.rows)
        paths = [Path(file) for file in part.files]
        decoded = [[None if line is None else decode(line) for line in row] for row in self.rows]
        if part.format == "aligned":
            return aligned_cells(paths[0], paths[1], enumerate(decoded, self.number))  # type: ignore[arg-type]
        numbered: Any = enumerate((line for (line,) in decoded), self.number)
        if part.format == "jsonl":
            return json_cells(paths[0], part.columns, numbered)
        return part.layout.cells(paths[0], tab_cells(numbered))


def is_held_out(row: int, every: int) -> bool:
    """One row of each `every` rows, chosen by a hash: evenly over a sorted file, but not at regular intervals.

    Only the number of the row decides, so every process, resumed run and training seed holds out the same rows.
    """
    return bool(held_out_rows(row, 1, every)[0])


def held_out_rows(first: int, count: int, every: int) -> Bool[np.ndarray, "count"]:
    """`is_held_out` of `count` rows from `first` on."""
    blocks = range(first // every, (first + count) // every + 1)
    drawn = [blake2b(str(block).encode(), digest_size=8).digest() for block in blocks]
    places = np.array([int.from_bytes(each, "little") % every for each in drawn])
    rows = np.arange(first, first + count)
    held: Bool[np.ndarray, "count"] = rows % every == places[rows // every - first // every]
    return held


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
        """Raise an error where a file was changed since it was hashed: the cache would have it under a wrong name."""
        files = [Path(file) for part in self.parts for file in part.files]
        for path, scan in zip(files, chain.from_iterable(self.scans), strict=True):
            if _stamp(path) != scan.stamp:
                raise ValueError(f"{path} changed while it was read; start again when no other program writes it")

    def blocks(self, worker: int = 0, workers: int = 1) -> Iterator[tuple[int, int, CheckedRows]]:
        """Of every `workers`-th block: the number of its part, how many pairs it has, those that are of the split."""
        first = 0  # number of the block's first pair in the corpus, which decides what is held out
        blocks = ((number, block) for number, part in enumerate(self.parts) for block in part.blocks())
        for place, (number, block) in enumerate(blocks):
            if place % workers != worker and not self.hold_out:
                continue
            checked = block.check()
            count = len(checked.chunk.rows)
            if self.hold_out:
                held = held_out_rows(first, count, self.hold_out)
                checked.chunk = checked.chunk.select(np.flatnonzero(held == self.valid).tolist())
                first += count
            if place % workers == worker:
                yield number, count, checked


@dataclass(frozen=True)
class SampledPairs:
    """About `size` pairs of a split, evenly spread over it; each iteration reads the files again.

    Row i of n is one of them if ⌊(i + 1) · size / n⌋ > ⌊i · size / n⌋.
    """

    split: Split
    size: int

    def __iter__(self) -> Iterator[Pair]:
        first, total = 0, self.split.rows
        for _, count, checked in self.split.blocks():
            before = np.arange(first, first + count + 1) * self.size // total  # so many of the rows before are chosen
            chunk = checked.chunk
            chosen = (before[1:] > before[:-1])[np.asarray(chunk.rows, np.int64)]
            chunk = chunk.select(np.flatnonzero(chosen).tolist())
            yield from map(Pair, chunk.sources, chunk.targets)
            first += count


@dataclass(frozen=True)
class PairStream:
    """A corpus in blocks of at most BLOCK_LINES rows. The number of a block in its epoch is a position.

    Files are read one after the other, in every epoch in another order; a dataset is one part, and keeps its order.
    `held_out` pairs of the first block are not trained on.
    """

    parts: tuple[CorpusPart, ...]
    seed: int = 0
    held_out: int = 0

    def blocks(self, epoch: int, start: int = 0) -> Iterator[CheckedRows]:
        """Those of one pass over the corpus, from number `start` on."""
        numbered: Iterator[tuple[bool, Block]]
        if len(self.parts) == 1:
            numbered = ((start + i == 0, block) for i, block in enumerate(self.parts[0].blocks(start)))
        else:
            order = np.random.default_rng([self.seed, epoch]).permutation(len(self.parts)).tolist()
            every = ((part == i == 0, block) for part in order for i, block in enumerate(self.parts[part].blocks()))
            numbered = islice(every, start, None)  # those before are not parsed
        for is_first, block in numbered:
            checked = block.check()
            if is_first and self.held_out:
                checked.chunk = checked.chunk.select(range(len(checked.chunk.rows))[self.held_out :])
            yield checked

    def readers(self) -> list[PairReader]:
        """One for each file."""
        return [part.reader for part in self.parts]


def held_out_pairs(stream: PairStream) -> list[Pair]:
    """The first pairs of a stream, which are not trained on."""
    first = next((block.check() for block in stream.parts[0].blocks()), None)
    if first is None:
        return []
    pairs = zip(first.chunk.sources, first.chunk.targets, strict=True)
    return [Pair(source, target, row) for row, (source, target) in enumerate(islice(pairs, stream.held_out))]
