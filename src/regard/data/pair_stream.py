"""Pairs that are read while a model is trained: blocks of rows, in an order that the seed and the epoch decide."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from itertools import chain, islice
from typing import TYPE_CHECKING

import numpy as np

from .corpus_blocks import BLOCK_LINES, CheckedRows
from .encoding import RowChunk, row_chunks
from .pair import Pair
from .pair_reader import PairReader

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .arrow_rows import DatasetSplit
    from .corpus_blocks import CorpusPart
    from .pair_reader import OnBad
    from .row_readers import Column


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
