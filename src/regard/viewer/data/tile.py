"""Tile: a rectangle of an attention matrix, and the cells it is pooled to."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from ...attention.weights.pooling_cells import Cells

Pool = Literal["max", "mean"]


@dataclass(frozen=True)
class Tile:
    """A rectangle of the matrix, and the number of cells it is pooled to.

    Where cells of a power of two give that number, they are used, the last one smaller; else cell r of R covers rows
    r·T//R up to (r+1)·T//R of the T rows, as in `Weights.map`.
    """

    top: int
    left: int
    bottom: int
    right: int
    height: int
    width: int

    @property
    def rows(self) -> range:
        return range(self.top, self.bottom)

    @property
    def cols(self) -> range:
        return range(self.left, self.right)

    @cached_property
    def edges(self) -> tuple[list[int], list[int]]:
        """Where the cells begin, and where the last one ends; for rows and columns."""
        return _edges(self.rows, self.height), _edges(self.cols, self.width)


def _edges(span: range, count: int) -> list[int]:
    size = 1
    while size * count < len(span):
        size *= 2
    if -(-len(span) // size) == count:
        return [*span[::size], span.stop]
    return [span.start + edge for edge in Cells.edges(len(span), count)]
