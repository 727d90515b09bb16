"""Corpora in files, read in blocks of rows: what streams deal out, and which rows are held out."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np

from .rows import OnBad, Pair, PairReader

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Iterator, Sequence

    from .rows import Cells, Column, RowProblem

    Block = Sequence[tuple[str, Cells | RowProblem]]

BLOCK_ROWS = 50_000
"""Rows of a block. Positions in a stream count blocks."""


@dataclass
class CheckedRows:
    """The pairs of a block, and what was wrong with its other rows."""

    pairs: list[Pair]
    reasons: Counter[str]


@dataclass(frozen=True)
class CorpusPart:
    """A file, or two files with a sentence a line; the columns of it."""

    files: tuple[str, ...]
    columns: tuple[Column, ...] | None = None
    on_bad: OnBad = "error"

    @cached_property
    def reader(self) -> PairReader:
        if len(self.files) == 2:
            return PairReader(self.files[0], target=self.files[1], on_bad=self.on_bad)
        return PairReader(self.files[0], columns=self.columns, on_bad=self.on_bad)

    def blocks(self, start: int = 0) -> Iterator[Block]:
        """All rows from block `start` on, in order, unchecked."""
        rows = islice(self.reader.rows(), start * BLOCK_ROWS, None)
        return iter(lambda: list(islice(rows, BLOCK_ROWS)), [])

    def check(self, block: Block) -> CheckedRows:
        """The pairs among the rows of a block."""
        pairs = list(self.reader.check_rows(block))
        return CheckedRows(pairs, self.reader.reasons)


def is_held_out(row: int, every: int) -> bool:
    """One row of each `every` rows, chosen by a hash: evenly over a sorted file, but not at regular intervals.

    Only the number of the row decides, so every process, resumed run and training seed holds out the same rows.
    """
    block, place = divmod(row, every)
    drawn = blake2b(str(block).encode(), digest_size=8).digest()
    return int.from_bytes(drawn, "little") % every == place


@dataclass(frozen=True)
class PairStream:
    """A corpus in blocks of BLOCK_ROWS rows. The number of a block in its epoch is a position.

    Files are read one after the other, in every epoch in another order. `held_out` pairs of the first block are not
    trained on.
    """

    parts: tuple[CorpusPart, ...]
    seed: int = 0
    held_out: int = 0

    def blocks(self, epoch: int, start: int = 0) -> Iterator[CheckedRows]:
        """Those of one pass over the corpus, from number `start` on."""
        order = np.random.default_rng([self.seed, epoch]).permutation(len(self.parts)).tolist()
        every = (
            (self.parts[number], number == i == 0, block)
            for number in order
            for i, block in enumerate(self.parts[number].blocks())
        )
        for part, is_first, block in islice(every, start, None):  # those before are not checked
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
