"""Pointing: whether a model looks at what it names, where somebody knows where that is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jaxtyping import Float
    from torch import Tensor


class Region(Protocol):
    """Part of a picture; x and y are shares of its width and height, from the upper left corner."""

    def holds(self, x: float, y: float) -> bool: ...


def pointed(
    weights: Float[Tensor, "words places"], grid: tuple[int, int], regions: Sequence[Sequence[Region]]
) -> tuple[int, int]:
    """How many words were pointed at, of how many that are somewhere: the pointing game (Zhang et al. 2016).

    Word t is pointed at where the middle of the place it looks at most (the first of equals) lies in one of the
    regions of word t. Places are the cells of a grid of (rows, columns), row by row. A word without a region, which is
    nowhere in particular, is not counted.
    """
    rows, columns = grid
    if weights.shape != (len(regions), rows * columns):
        raise ValueError(
            f"pointing compares weights [words, places] with regions of as many words and a grid of as many places; "
            f"the weights are {list(weights.shape)}, there are {len(regions)} words and {rows} × {columns} places"
        )
    hits = total = 0
    for place, several in zip(weights.argmax(-1).tolist(), regions, strict=True):
        if several:
            row, column = divmod(place, columns)
            hits += any(region.holds((column + 0.5) / columns, (row + 0.5) / rows) for region in several)
            total += 1
    return hits, total
