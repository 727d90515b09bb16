"""The rows that a vocabulary is learned from: a sample of a large corpus."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ..pair import Pair
from .hold_out import held_out_rows

if TYPE_CHECKING:
    from collections.abc import Iterator

    from jaxtyping import Int64

    from .split_preparation import Split


def sample_indices(begin: int, count: int, size: int, total: int) -> Int64[np.ndarray, "chosen"]:
    """Of the rows begin ≤ i < begin + count of `total`, those of an even sample of `size`, less `begin`.

    Row i is in the sample if ⌊(i + 1) · size / total⌋ > ⌊i · size / total⌋.
    """
    rows = np.arange(begin, begin + count + 1, dtype=np.int64) * size // total
    return np.flatnonzero(rows[1:] > rows[:-1])


class SampledPairs:
    """About `size` pairs of a split, evenly spread over it; each iteration reads the files again."""

    def __init__(self, split: Split, size: int) -> None:
        self.split, self.size, self.total = split, size, split.rows

    def __iter__(self) -> Iterator[Pair]:
        return self._of_split() if self.split.hold_out else self._of_all()

    def _of_all(self) -> Iterator[Pair]:
        begin = 0
        for part in self.split.parts:
            for block in part.blocks():
                count = 0

                def chosen(rows: int, begin: int = begin) -> list[int]:
                    nonlocal count
                    count = rows
                    return [int(i) for i in sample_indices(begin, rows, self.size, self.total)]

                chunk = block.rows(chosen).chunk
                begin += count
                yield from map(Pair, chunk.sources, chunk.targets)

    def _of_split(self) -> Iterator[Pair]:
        """Whether a row is held out depends on the number of pairs before it, so all rows are read."""
        row, split = 0, self.split
        for part in split.parts:
            for block in part.blocks():
                chunk = block.rows().chunk
                count = len(chunk.rows)
                of_split = held_out_rows(row, count, split.hold_out) == split.valid
                for i in sample_indices(row, count, self.size, self.total):
                    if of_split[i]:
                        yield Pair(chunk.sources[i], chunk.targets[i])
                row += count
