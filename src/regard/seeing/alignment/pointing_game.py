"""The pointing game (Zhang et al. 2016): whether the largest weight of a word lies where the named thing is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jaxtyping import Float
    from torch import Tensor


class Region(Protocol):
    """Part of an image; x and y are fractions of its width and height, from the upper left corner."""

    def holds(self, x: float, y: float) -> bool: ...


def pointing_hits(
    weights: Float[Tensor, "words cells"], grid: tuple[int, int], regions: Sequence[Sequence[Region]]
) -> tuple[int, int]:
    """The number of hits, and the number of words that have a region.

    Word t is a hit if the centre of its cell of largest weight (the first of equals) lies in one of its regions. Cells
    are those of a grid of (rows, columns), row by row. Words without a region are not counted.
    """
    rows, columns = grid
    if weights.shape != (len(regions), rows * columns):
        raise ValueError(
            f"the pointing game takes weights [words, cells], regions for each word and a grid of as many cells; "
            f"the weights are {list(weights.shape)}, there are {len(regions)} words and {rows} × {columns} cells"
        )
    hits = total = 0
    for cell, word_regions in zip(weights.argmax(-1).tolist(), regions, strict=True):
        if word_regions:
            row, column = divmod(cell, columns)
            hits += any(region.holds((column + 0.5) / columns, (row + 0.5) / rows) for region in word_regions)
            total += 1
    return hits, total
