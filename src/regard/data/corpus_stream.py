"""Corpora in files, read in blocks of rows: what processes encode, streams deal out, and samples are drawn from."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, replace
from functools import cached_property, partial
from hashlib import blake2b
from itertools import chain, compress, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..files import sha256
from .rows import DatasetSplit, OnBad, Pair, PairReader, count_rows, raw_lines, suffix

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Iterator, Sequence

    from jaxtyping import Bool

    from .rows import Cells, Column, RowProblem

    Block = Sequence[tuple[str, Cells | RowProblem]]

BLOCK_ROWS = 50_000
"""Rows of a block. Positions in a stream count blocks."""


@dataclass
class CheckedRows:
    """The pairs of a block, numbered from 0, and what was wrong with its other rows."""

    pairs: list[Pair]
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
    def reader(self) -> PairReader:
        if self.dataset:
            return PairReader.from_rows(partial(self.dataset.rows, self.columns), self.on_bad)
        if len(self.files) == 2:
            return PairReader(self.files[0], target=self.files[1], on_bad=self.on_bad)
        return PairReader(self.files[0], columns=self.columns, on_bad=self.on_bad)

    def scan(self) -> tuple[FileScan, ...]:
        return tuple(FileScan.of(Path(file)) for file in self.files)

    def count_rows(self, scans: Sequence[FileScan]) -> int:
        """How many rows it has, bad ones included; of CSV, at most."""
        stated = count_rows(Path(self.files[0]))
        if stated is not None:
            return stated
        named = any(isinstance(column, str) for column in self.columns or ())
        header = named and suffix(Path(self.files[0])) in (".tsv", ".txt")
        return max(scan.lines for scan in scans) - header

    def blocks(self, start: int = 0) -> Iterator[Block]:
        """All rows from block `start` on, in order, unchecked."""
        first = start * BLOCK_ROWS
        rows = self.dataset.rows(self.columns, first) if self.dataset else islice(self.reader.rows(), first, None)
        return iter(lambda: list(islice(rows, BLOCK_ROWS)), [])

    def check(self, block: Block) -> CheckedRows:
        """The pairs among the rows of a block."""
        reader = self.reader
        pairs = list(reader.check_rows(block))
        if len(pairs) < len(block):
            pairs = [replace(pair, row=row) for row, pair in enumerate(pairs)]
        if self.tag:
            pairs = [replace(pair, source=f"{self.tag} {pair.source}") for pair in pairs]
        return CheckedRows(pairs, reader.reasons, reader.first)

    def settings(self) -> dict[str, Any]:
        """How the files are read."""
        return {"columns": self.columns, "on_bad": self.on_bad, "tag": self.tag}


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
            checked = self.parts[number].check(block)
            count = len(checked.pairs)
            if self.hold_out:
                chosen = held_out_rows(first, count, self.hold_out) == self.valid
                checked.pairs = list(compress(checked.pairs, chosen.tolist()))
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
            chosen = before[1:] > before[:-1]
            yield from (pair for pair in checked.pairs if chosen[pair.row])
            first += count


@dataclass(frozen=True)
class PairStream:
    """A corpus in blocks of BLOCK_ROWS rows. The number of a block in its epoch is a position.

    Files are read one after the other, in every epoch in another order; a dataset is one part, and keeps its order.
    `held_out` pairs of the first block are not trained on.
    """

    parts: tuple[CorpusPart, ...]
    seed: int = 0
    held_out: int = 0

    def blocks(self, epoch: int, start: int = 0) -> Iterator[CheckedRows]:
        """Those of one pass over the corpus, from number `start` on."""
        numbered: Iterator[tuple[CorpusPart, bool, Block]]
        if len(self.parts) == 1:
            part = self.parts[0]
            numbered = ((part, start + i == 0, block) for i, block in enumerate(part.blocks(start)))
        else:
            order = np.random.default_rng([self.seed, epoch]).permutation(len(self.parts)).tolist()
            every = (
                (self.parts[number], number == i == 0, block)
                for number in order
                for i, block in enumerate(self.parts[number].blocks())
            )
            numbered = islice(every, start, None)  # those before are not checked
        for part, is_first, block in numbered:
            checked = part.check(block)
            if is_first:
                del checked.pairs[: self.held_out]
            yield checked

    def readers(self) -> list[PairReader]:
        """One for each file."""
        return [part.reader for part in self.parts]


def held_out_pairs(stream: PairStream) -> list[Pair]:
    """The first pairs of a stream, which are not trained on."""
    part = stream.parts[0]
    first = next(part.blocks(), None)
    return [] if first is None else part.check(first).pairs[: stream.held_out]
