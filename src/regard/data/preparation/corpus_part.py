"""One corpus of a split, read in blocks that processes can share."""

from __future__ import annotations

import io
from collections import Counter
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice, zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..pair_reader import PairReader
from ..row_readers import aligned_rows, jsonl_rows, tsv_places, tsv_rows
from ..streaming.arrow_rows import count_rows
from ..text_lines import BOM, COMPRESSED, read
from .line_blocks import BLOCK_LINES, line_blocks, read_block, require_unchanged, scan_file
from .row_chunk import RowChunk

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from ..pair import RowProblem
    from ..pair_reader import OnBad
    from ..row_readers import Cells, Column, Rows
    from .line_blocks import FileScan


@dataclass
class CheckedRows:
    """The pairs of a block, numbered from 0, and what was wrong with its other rows."""

    chunk: RowChunk
    reasons: Counter[str]
    first: dict[str, str]  # the first message of each kind


@dataclass(frozen=True)
class LineBlock:
    """Lines of the files of a part: their bytes, and the number of the first line, from 1."""

    part: CorpusPart
    data: tuple[bytes, ...]
    number: int

    def rows(self, chosen: Callable[[int], Sequence[int]] | None = None) -> CheckedRows:
        """All rows; or `chosen(n)` of n lines, as indices."""
        data = self.data
        header = self.number == 1 and self.part.has_header
        if self.number == 1:
            data = tuple(each.removeprefix(BOM) for each in data)
        if chosen is not None or header:
            lines = [_split(each) for each in data]
            longest = max(map(len, lines))
            places = range(int(header), longest) if chosen is None else [i for i in chosen(longest) if i >= header]
            numbers: Sequence[int] = [self.number + i for i in places]
            data = tuple(b"".join(side[i] + b"\n" for i in places if i < len(side)) for side in lines)
        else:
            count = max(map(_count_lines, data))
            numbers = range(self.number, self.number + count)
        return self._well_formed(data, numbers) or self.part.checked(self._general(data, numbers))

    def _well_formed(self, data: tuple[bytes, ...], numbers: Sequence[int]) -> CheckedRows | None:
        """The rows, if every line is a pair: the common case, without a look at each line by itself."""
        part = self.part
        if part.format == "jsonl" or len(part.places) > 2 or any(b"\r" in each for each in data):
            return None
        try:
            texts = [each.decode("utf-8") for each in data]
        except UnicodeDecodeError:
            return None
        lines = [text.removesuffix("\n").split("\n") for text in texts]
        if part.format == "aligned":
            sides = [[line.strip() for line in side] for side in lines]
        else:
            cells = [line.split("\t") for line in lines[0]]
            try:
                sides = [[row[place].strip() for row in cells] for place in part.places]
            except IndexError:
                return None
        if not all(len(side) == len(numbers) and all(side) for side in sides):
            return None
        path = part.files[0]
        chunk = RowChunk(sides[0], sides[1], np.arange(len(numbers)), lambda i: f"{path}:{numbers[i]}")
        return CheckedRows(part.tagged(chunk), Counter(), {})

    def _general(self, data: tuple[bytes, ...], numbers: Sequence[int]) -> Rows:
        part, paths = self.part, [Path(file) for file in self.part.files]
        sides = [read(io.BytesIO(each), has_mark=False) for each in data]
        if part.format == "aligned":
            return aligned_rows(paths[0], paths[1], zip(numbers, zip_longest(*sides), strict=True))  # type: ignore[arg-type]
        numbered = zip(numbers, sides[0], strict=True)
        if part.format == "jsonl":
            return jsonl_rows(paths[0], part.columns, numbered)
        return tsv_rows(paths[0], part.places, numbered)


@dataclass(frozen=True)
class RowBlock:
    """Rows of a part whose format has no blocks of lines: CSV, Parquet, a folder of `datasets`."""

    part: CorpusPart
    cells: list[tuple[str, Cells | RowProblem]]

    def rows(self, chosen: Callable[[int], Sequence[int]] | None = None) -> CheckedRows:
        places = range(len(self.cells)) if chosen is None else chosen(len(self.cells))
        return self.part.checked(self.cells[i] for i in places)


@dataclass(frozen=True)
class CorpusPart:
    """A file, or two files with a sentence a line; the columns of it; and a tag that begins every source."""

    files: tuple[str, ...]
    columns: tuple[Column, ...] | None = None
    on_bad: OnBad = "error"
    tag: str = ""
    in_blocks: bool = True  # whether `scan_file` could cut it

    @cached_property
    def format(self) -> str:
        """ "tsv", "jsonl", "aligned", or "" where rows are read one by one."""
        path = Path(self.files[0])
        name = path.with_suffix("") if path.suffix in COMPRESSED else path
        known = {".tsv": "tsv", ".txt": "tsv", ".jsonl": "jsonl"}
        if not self.in_blocks or path.is_dir():
            return ""
        return "aligned" if len(self.files) == 2 else known.get(name.suffix, "")

    @cached_property
    def reader(self) -> PairReader:
        if len(self.files) == 2:
            return PairReader(self.files[0], target=self.files[1], on_bad=self.on_bad)
        return PairReader(self.files[0], columns=self.columns, on_bad=self.on_bad)

    @cached_property
    def _layout(self) -> tuple[tuple[int, ...], bool]:
        return tsv_places(Path(self.files[0]), self.columns) if self.format == "tsv" else ((0, 1), False)

    @property
    def places(self) -> tuple[int, ...]:
        """Of the columns of a TSV file."""
        return self._layout[0]

    @property
    def has_header(self) -> bool:
        return self._layout[1]

    def scan(self) -> tuple[CorpusPart, tuple[FileScan, ...]]:
        """The scans of its files, and the part, which may turn out to have lines that are too long for blocks."""
        scans = tuple(scan_file(Path(file)) for file in self.files)
        return replace(self, in_blocks=all(scan.cuts for scan in scans)), scans

    def require_unchanged(self, stamps: Iterable[str]) -> None:
        """Raise an error where a file was changed since the scan that has its stamp."""
        for file, stamp in zip(self.files, stamps, strict=True):
            require_unchanged(Path(file), stamp)

    def count_rows(self, scans: Sequence[FileScan]) -> int:
        """How many rows it has, bad ones included; of CSV, at most."""
        stated = count_rows(Path(self.files[0]))
        return max(scan.lines for scan in scans) - self.has_header if stated is None else stated

    def ranges(self, scans: Sequence[FileScan]) -> list[list[int]] | None:
        """The blocks that can be read at once: [begin, end] in each file. None where the file must be read in order."""
        if not self.format or any(Path(file).suffix in COMPRESSED for file in self.files):
            return None
        sides = [list(zip(scan.cuts, scan.cuts[1:], strict=False)) for scan in scans]
        return [[byte for cut in cuts for byte in cut] for cuts in zip_longest(*sides, fillvalue=(0, 0))]

    def block(self, cuts: Sequence[int], number: int) -> LineBlock:
        """One of these; `number` is that of its first line, from 1."""
        data = tuple(read_block(Path(file), *cuts[2 * i : 2 * i + 2]) for i, file in enumerate(self.files))
        return LineBlock(self, data, number)

    def blocks(self) -> Iterator[LineBlock | RowBlock]:
        """All of them, in order."""
        if self.format:
            sides = (line_blocks(Path(file)) for file in self.files)
            for index, data in enumerate(zip_longest(*sides, fillvalue=b"")):
                yield LineBlock(self, data, index * BLOCK_LINES + 1)
            return
        rows = self.reader.rows()
        while cells := list(islice(rows, BLOCK_LINES)):
            yield RowBlock(self, cells)

    def checked(self, rows: Iterable[tuple[str, Cells | RowProblem]]) -> CheckedRows:
        """The pairs among rows, which are looked at one by one."""
        pairs = list(self.reader.check_rows(rows))
        chunk = RowChunk(
            [pair.source for pair in pairs],
            [pair.target for pair in pairs],
            np.arange(len(pairs)),
            lambda i: pairs[i].where,
        )
        return CheckedRows(self.tagged(chunk), self.reader.reasons, self.reader.first)

    def tagged(self, chunk: RowChunk) -> RowChunk:
        return replace(chunk, sources=[f"{self.tag} {text}" for text in chunk.sources]) if self.tag else chunk

    def to_dict(self) -> dict[str, Any]:
        names = ("files", "columns", "on_bad", "tag", "in_blocks")
        return {name: getattr(self, name) for name in names}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> CorpusPart:
        """From what `to_dict` gave, also after a journey as JSON."""
        columns = values["columns"]
        lists = {"files": tuple(values["files"]), "columns": None if columns is None else tuple(columns)}
        return cls(**{**values, **lists})


def _count_lines(data: bytes) -> int:
    return data.count(b"\n") + (data != b"" and not data.endswith(b"\n"))


def _split(data: bytes) -> list[bytes]:
    return data.removesuffix(b"\n").split(b"\n") if data else []
