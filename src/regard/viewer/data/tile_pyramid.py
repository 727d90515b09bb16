"""TilePyramid: tiles of one head's matrix at any zoom, without storing the matrix.

Fine tiles are computed from q, k and the row state when they are requested. A coarse tile needs every weight under it,
up to 131,072² of them, so one pass over the matrix pools them into a base level of cells of `block` × `block` weights
(at most `BASE` cells along a side), and coarser cells are pooled from these: the maximum of maxima, the mean of sums.
Both are exact.

The pass runs band by band, the rows of the requested tile first, and stops when no request waits for it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from ...attention.weights.pooling_cells import Cells
from .head_matrix import CHUNK, HeadMatrix, as_slice

if TYPE_CHECKING:
    from jaxtyping import Bool, Float
    from torch import Tensor

    from ...attention import Weights
    from .tile import Pool, Tile

BASE = 2048
"""Cells along the longer side of the base level."""
BAND = 1 << 23
"""Weights of one band of the pass: some 30 ms of work, after which a more urgent job can run."""
TALL = 512
"""Queries that are pooled at once: with fewer of them, less is computed of what a causal mask hides."""


class TilePyramid:
    """The tiles of one head of one batch entry. Not thread-safe."""

    def __init__(self, weights: Weights) -> None:
        """`weights` of shape [T_q, T_k]."""
        self.matrix = HeadMatrix(weights)
        self.queries, self.keys, self._device = self.matrix.queries, self.matrix.keys, self.matrix.device
        self.block = 1
        while max(self.queries, self.keys) > BASE * self.block:
            self.block *= 2
        self.band = self.block * max(1, BAND // (self.keys * self.block))
        """Queries of one band."""
        self.pooled: Bool[Tensor, " bands"] = torch.zeros(-(-self.queries // self.band), dtype=torch.bool)
        """Which bands are in the base level."""
        self._base: dict[str, Float[Tensor, "high wide"]] = {}  # "max": maxima, "mean": sums

    @property
    def nbytes(self) -> int:
        return self.matrix.nbytes + sum(x.nbytes for x in self._base.values())

    # Bands

    def bands(self, rows: range) -> range:
        """The bands that these rows lie in."""
        return range(rows.start // self.band, -(-rows.stop // self.band))

    def _band_rows(self, band: int) -> range:
        return range(band * self.band, min((band + 1) * self.band, self.queries))

    def missing_bands(self, tile: Tile) -> list[int]:
        """The bands to pool before this tile is complete; none where it can be computed quickly without them."""
        if self.block == 1:
            return []
        quick = self.matrix.has_states(tile.rows) or len(tile.rows) * self.keys <= 2 * BAND
        if quick and not self._uses_base(tile):
            return []
        return [band for band in self.bands(tile.rows) if not self.pooled[band]]

    def bands_without_states(self, rows: range) -> list[int]:
        """The bands whose row states are missing, which `weights` of these rows would have to compute first."""
        return [band for band in self.bands(rows) if not self.matrix.has_states(self._band_rows(band))]

    @torch.no_grad()
    def compute_states(self, band: int) -> None:
        """Compute the row states of one band."""
        self.matrix.states(self._band_rows(band))

    @torch.no_grad()
    def pool_band(self, band: int) -> None:
        """Compute one band of queries: their row states, and their part of the base level."""
        self._allocate_base()
        rows = self._band_rows(band)
        cols = Cells.blocks(self.keys, self.block, self._device)
        tall = self.block * max(1, (TALL if self.matrix.is_softmax else CHUNK // self.keys) // self.block)
        for start in range(rows.start, rows.stop, tall):
            part = range(start, min(start + tall, rows.stop))
            if self.matrix.is_softmax:
                maxima, sums = self.matrix.pool_softmax(part, self.block)
            else:
                w = self.matrix.weights(part, range(self.keys))
                maxima, sums = cols.pool(w, -1, "max"), cols.pool(w, -1, "mean")
            blocks, place = Cells.blocks(len(part), self.block, self._device), as_slice(part, self.block)
            self._base["max"][place] = blocks.pool(maxima, -2, "max")
            self._base["mean"][place] = blocks.pool(sums, -2, "mean")
        self.pooled[band] = True

    def _allocate_base(self) -> None:
        if not self._base:
            size = -(-self.queries // self.block), -(-self.keys // self.block)
            self._base = {pool: torch.zeros(size, device=self._device) for pool in ("max", "mean")}

    # Tiles

    @torch.no_grad()
    def tile(self, tile: Tile, pool: Pool) -> Float[Tensor, "height width"]:
        """The largest weight of every cell, or the mean; zeros where bands are missing."""
        edges = self.edges(tile)
        if self._uses_base(tile):
            self._allocate_base()
            row_edges, col_edges = (
                [*(x // self.block for x in side[:-1]), -(-side[-1] // self.block)] for side in edges
            )
            base = self._base[pool][row_edges[0] : row_edges[-1], col_edges[0] : col_edges[-1]]
            cells = self._pool(base, row_edges, col_edges, pool)
        else:
            missing, parts, first = set(self.missing_bands(tile)), [], 0
            while first < tile.height:  # as many rows of cells at a time as fit into a chunk
                last = first + 1
                while last < tile.height and (edges[0][last + 1] - edges[0][first]) * len(tile.cols) <= CHUNK:
                    last += 1
                parts.append(self._pool_rows(edges[0][first : last + 1], tile, pool, missing))
                first = last
            cells = torch.cat(parts)
        if pool == "mean":
            high, wide = (torch.tensor(side, dtype=torch.float32, device=self._device).diff() for side in edges)
            cells = cells / (high[:, None] * wide)
        return cells.cpu()

    def edges(self, tile: Tile) -> tuple[list[int], list[int]]:
        """The edges of the tile's cells: those requested, or moved to whole blocks where the base level is used."""
        if not self._uses_base(tile):
            return tile.edges
        moved = []
        for edges, end in zip(tile.edges, (self.queries, self.keys), strict=True):
            # Down, except the last edge, which goes up: a last cell smaller than a block would be empty.
            last = min(-(-edges[-1] // self.block) * self.block, end)
            moved.append([*(x // self.block * self.block for x in edges[:-1]), last])
        return moved[0], moved[1]

    def _pool_rows(self, edges: list[int], tile: Tile, pool: Pool, missing: set[int]) -> Float[Tensor, "high width"]:
        rows = range(edges[0], edges[-1])
        if missing.intersection(self.bands(rows)) or self.matrix.all_masked(rows, tile.cols):
            return torch.zeros(len(edges) - 1, tile.width, device=self._device)
        return self._pool(self.matrix.weights(rows, tile.cols), edges, tile.edges[1], pool)

    def _pool(self, x: Float[Tensor, "rows cols"], rows: list[int], cols: list[int], pool: Pool) -> Tensor:
        """The maximum, or the sum, of every cell. Rows first: they are contiguous, and fewer remain for the columns."""
        return Cells(cols, self._device).pool(Cells(rows, self._device).pool(x, -2, pool), -1, pool)

    def _uses_base(self, tile: Tile) -> bool:
        """Whether the tile is pooled from the base level: its cells are at least a block, and it has many weights."""
        cell = min(len(tile.rows) // tile.height, len(tile.cols) // tile.width)
        aligned = all(x % self.block == 0 for edges in tile.edges for x in edges[:-1]) and cell >= self.block
        heavy = len(tile.rows) * len(tile.cols) > 2 * BAND and cell >= 2 * self.block
        return self.block > 1 and (aligned or heavy)
