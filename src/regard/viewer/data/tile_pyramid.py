"""TilePyramid: the whole matrix of one head, at any zoom, without the matrix.

Fine tiles are computed from q, k and the row state when asked for. A coarse tile takes every weight under it, up to
131,072² of them, so one pass over the matrix pools them into cells of `block` × `block` (at most `BASE` along a side),
and coarser cells come of these: the maximum of maxima, the mean of sums. Exact, both.

The pass goes band by band, the rows somebody waits for first, and stops when nobody asks any more.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Literal

import torch

from ...attention import Softmax
from ...attention.masks import interval

if TYPE_CHECKING:
    from jaxtyping import Bool, Float
    from torch import Tensor

    from ...attention import Weights

    Pool = Literal["max", "mean"]

BASE = 2048
"""Cells along the longer side of the finest level that is kept."""
BAND = 1 << 23
"""Weights of one band of the pass: some 30 ms of work, after which a tile that was asked for meanwhile comes first."""
CHUNK = 1 << 20
"""Energies held at once: 4 MiB, which stay in cache between the steps that read them."""


@dataclass(frozen=True)
class Tile:
    """A rectangle of the matrix, and how many cells it is pooled to.

    Cells are of a power of two along a side where that gives as many, the last of them smaller; else cell r of R covers
    rows r·T//R up to (r+1)·T//R of the T rows, as in `Weights.map`.
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
        """Where the cells begin, and where the last one ends."""
        return _edges(self.top, self.bottom, self.height), _edges(self.left, self.right, self.width)


def _edges(start: int, stop: int, count: int) -> list[int]:
    length, size = stop - start, 1
    while size * count < length:
        size *= 2
    if -(-length // size) == count:
        return [*range(start, stop, size), stop]
    return [start + at * length // count for at in range(count + 1)]


class TilePyramid:
    """One head of one entry. Not for two threads at once."""

    def __init__(self, weights: Weights) -> None:
        """`weights` of shape [T_q, T_k]."""
        self._weights, self._scores, self._normalize = weights, weights.flat(), weights.normalize
        self._open = replace(self._scores, mask=None)
        # The sink's share is in the row state, so these go the general way; so do all other normalizers.
        self._plain = self._normalize == Softmax() and weights.sinks is None
        self._n = slice(weights.entries[0], weights.entries[0] + 1)
        self.queries, self.keys = weights.shape
        self._device = self._scores.a.device
        self._state = torch.zeros(self.queries, dtype=self._scores.precision, device=self._device)
        self._known = torch.zeros(self.queries, dtype=torch.bool)  # a NaN among them may be what the model computed
        if weights.kernel_state is not None:  # the kernel left it
            self._know(range(self.queries), weights.row_state()[0])
        self.block = 1
        while max(self.queries, self.keys) > BASE * self.block:
            self.block *= 2
        self.band = self.block * max(1, BAND // (self.keys * self.block))
        """Queries of one band."""
        self.done: Bool[Tensor, " bands"] = torch.zeros(-(-self.queries // self.band), dtype=torch.bool)
        self._peak: Float[Tensor, "high wide"] | None = None
        self._sum: Float[Tensor, "high wide"] | None = None

    @property
    def nbytes(self) -> int:
        return self._state.nbytes + self._known.nbytes + (0 if self._peak is None else 2 * self._peak.nbytes)

    # Weights themselves

    @torch.no_grad()
    def weights(self, rows: range, cols: range) -> Float[Tensor, "rows cols"]:
        """Any rectangle, every weight of it."""
        e = self._energies(rows, cols)
        return self._normalize.weigh(e, self._states(rows)[:, None], self._positions(cols)).float()

    def _positions(self, x: range) -> Tensor:
        return torch.arange(x.start, x.stop, device=self._device)

    def _energies(self, rows: range, cols: range, buffer: Tensor | None = None) -> Float[Tensor, "rows cols"]:
        scores = self._scores if self._closed(rows, cols) else self._open
        return scores.block(self._n, _slice(rows), _slice(cols), self._normalize.absent, buffer)[0]

    def _states(self, rows: range) -> Float[Tensor, " rows"]:
        if not bool(self._known[_slice(rows)].all()):
            found = self._totals(rows) if self._plain else self._weights.rows(_slice(rows)).row_state()[0]
            self._know(rows, found)
        return self._state[_slice(rows)]

    def _know(self, rows: range, state: Float[Tensor, " rows"]) -> None:
        self._state[_slice(rows)] = state.to(self._state.dtype)
        self._known[_slice(rows)] = True

    def _totals(self, rows: range) -> Float[Tensor, " rows"]:
        """log Σ_j exp(e_ij), some keys at a time: a few rows of 131,072 keys would not stay in cache."""
        wide = max(1, CHUNK // len(rows))
        spans = [range(start, min(start + wide, self.keys)) for start in range(0, self.keys, wide)]
        parts = [self._energies(rows, cols).logsumexp(-1) for cols in spans if not self._unseen(rows, cols)]
        total = torch.stack(parts).logsumexp(0) if parts else self._state.new_full((len(rows),), -torch.inf)
        return total.masked_fill(total == -torch.inf, torch.inf)

    def _seen(self, rows: range) -> tuple[Tensor, Tensor] | None:
        """From which key on, up to which, the mask lets each of these queries see; None where it is no interval."""
        if self._scores.mask is None:
            return None
        entry = torch.tensor([self._n.start], device=self._device)
        return interval(self._scores.mask, entry, self._positions(rows), self._scores)

    def _unseen(self, rows: range, cols: range) -> bool:
        """Whether the mask closes all of it: above the diagonal there is nothing to compute."""
        seen = self._seen(rows)
        return seen is not None and bool(((seen[0] >= cols.stop) | (seen[1] <= cols.start)).all())

    def _closed(self, rows: range, cols: range) -> bool:
        """Whether the mask closes any of it."""
        seen = self._seen(rows)
        if seen is None:
            return self._scores.mask is not None
        return not bool(((seen[0] <= cols.start) & (seen[1] >= cols.stop)).all())

    # Tiles

    def missing(self, tile: Tile) -> list[int]:
        """The bands to `walk` before this tile can be given: all of its rows, unless it is quickly had without."""
        if self.block == 1:
            return []
        quick = bool(self._known[_slice(tile.rows)].all()) or len(tile.rows) * self.keys <= 2 * BAND
        if quick and not self._kept(tile):
            return []
        return [at for at in self.bands(tile.rows) if not self.done[at]]

    def unknown(self, rows: range) -> list[int]:
        """The bands whose row states are not known, which `weights` of these rows would have to find first."""
        return [at for at in self.bands(rows) if not bool(self._known[_slice(self._band(at))].all())]

    @torch.no_grad()
    def know(self, band: int) -> None:
        """Find the row states of one band."""
        self._states(self._band(band))

    def bands(self, rows: range) -> range:
        return range(rows.start // self.band, -(-rows.stop // self.band))

    def _band(self, at: int) -> range:
        return range(at * self.band, min((at + 1) * self.band, self.queries))

    @torch.no_grad()
    def tile(self, tile: Tile, pool: Pool) -> Float[Tensor, "height width"]:
        """The largest weight of every cell, or their mean; zeros where bands are missing."""
        missing = set(self.missing(tile))
        edges = tile.edges
        if self._kept(tile):
            self._level()
            base = self._peak if pool == "max" else self._sum
            assert base is not None
            # Where the edges of cells do not fall on edges of blocks they are moved there, and said to be.
            edges = self.edges(tile)
            part = base[edges[0][0] // self.block :, edges[1][0] // self.block :]
            high, wide = ([(x - one[0]) // self.block for x in one[:-1]] for one in edges)
            ends = -(-edges[0][-1] // self.block), -(-edges[1][-1] // self.block)
            part = part[: ends[0] - edges[0][0] // self.block, : ends[1] - edges[1][0] // self.block]
            cells = _cells(part, high, wide, pool)
        else:
            found, at = [], 0
            while at < len(edges[0]) - 1:  # some rows of cells at a time
                last = at + 1
                while last < len(edges[0]) - 1 and (edges[0][last + 1] - edges[0][at]) * len(tile.cols) <= CHUNK:
                    last += 1
                found.append(self._few(range(edges[0][at], edges[0][last]), edges[0][at:last], tile, pool, missing))
                at = last
            cells = torch.cat(found)
        return (cells if pool == "max" else cells / _counts(*edges).to(self._device)).cpu()

    def edges(self, tile: Tile) -> tuple[list[int], list[int]]:
        """Where the cells of a tile begin, and where the last ends: as asked for, or whole blocks where it is kept."""
        if not self._kept(tile):
            return tile.edges
        moved = []
        for one, end in zip(tile.edges, (self.queries, self.keys), strict=True):
            # Down, but for the last: the last cell may be smaller than a block, and would be none.
            last = min(-(-one[-1] // self.block) * self.block, end)
            moved.append([*(x // self.block * self.block for x in one[:-1]), last])
        return moved[0], moved[1]

    def _few(self, rows: range, starts: list[int], tile: Tile, pool: Pool, missing: set[int]) -> Tensor:
        if missing.intersection(self.bands(rows)) or self._unseen(rows, tile.cols):
            return torch.zeros(len(starts), tile.width, device=self._device)
        columns = [x - tile.left for x in tile.edges[1][:-1]]
        return _cells(self.weights(rows, tile.cols), [x - rows.start for x in starts], columns, pool)

    def _kept(self, tile: Tile) -> bool:
        """Whether the tile comes of the level that is kept: its cells are at least a block, and there are many."""
        cell = len(tile.rows) // tile.height, len(tile.cols) // tile.width
        aligned = all(x % self.block == 0 for one in tile.edges for x in one[:-1]) and min(cell) >= self.block
        heavy = len(tile.rows) * len(tile.cols) > 2 * BAND and min(cell) >= 2 * self.block
        return self.block > 1 and (aligned or heavy)

    # The pass

    @torch.no_grad()
    def walk(self, band: int) -> None:
        """Go through one band of queries: their row states, and their part of the level that is kept."""
        self._level()
        rows = self._band(band)
        at, size = _slice(rows, self.block), (self.block, self.block)
        assert self._peak is not None
        assert self._sum is not None
        if self._plain:
            peaks, sums = self._softmax(rows)
            self._peak[at] = _reduced(peaks, (self.block, 1), "max")
            self._sum[at] = _reduced(sums, (self.block, 1), "mean")
        else:
            tall = self.block * max(1, CHUNK // (self.keys * self.block))
            for start in range(rows.start, rows.stop, tall):
                some = range(start, min(start + tall, rows.stop))
                w, at = self.weights(some, range(self.keys)), _slice(some, self.block)
                self._peak[at], self._sum[at] = _reduced(w, size, "max"), _reduced(w, size, "mean")
        self.done[band] = True

    def _level(self) -> None:
        if self._peak is None:
            size = -(-self.queries // self.block), -(-self.keys // self.block)
            self._peak, self._sum = (torch.zeros(size, device=self._device) for _ in range(2))

    def _softmax(self, rows: range) -> tuple[Float[Tensor, "rows wide"], Float[Tensor, "rows wide"]]:
        """Of `block` keys at a time the largest weight and their sum, for every query; leaves the row states.

        One pass: in each chunk of keys the sums are of exp(e − m) with the chunk's own maximum m, and when all chunks
        are through, log Σ exp(e) of the row is known and moves them to where they belong (Milakov & Gimelshein 2018).
        """
        width = self._peak.shape[1]  # type: ignore[union-attr]
        wide = self.block * max(1, CHUNK // (len(rows) * self.block))
        peaks = torch.full((len(rows), width), -torch.inf, device=self._device)
        sums, maxima = torch.zeros(len(rows), width, device=self._device), []
        buffer = self._state.new_empty(0)
        spans = []
        for start in range(0, self.keys, wide):
            cols = range(start, min(start + wide, self.keys))
            if self._unseen(rows, cols):
                continue
            e = self._energies(rows, cols, buffer)
            at = _slice(cols, self.block)
            peaks[:, at] = _reduced(e, (1, self.block), "max", -torch.inf)
            top = peaks[:, at].amax(-1, keepdim=True).clamp_min(-1e30)  # a row that sees nothing here: exp(−∞) is 0
            sums[:, at] = _reduced(e.sub_(top).exp_(), (1, self.block), "mean")
            maxima.append(top)
            spans.append(at)
        if not spans:
            self._know(rows, self._state.new_full((len(rows),), torch.inf))
            return peaks.exp_(), sums
        totals = torch.stack([sums[:, at].sum(-1).log() for at in spans]) + torch.stack(maxima)[..., 0]
        state = totals.logsumexp(0)  # [rows]
        state = state.masked_fill(state <= -1e29, torch.inf)
        for at, top in zip(spans, maxima, strict=True):
            sums[:, at] *= (top - state[:, None]).exp()
        self._know(rows, state)
        return peaks.sub_(state[:, None]).exp_(), sums


def _slice(x: range, block: int = 1) -> slice:
    return slice(x.start // block, -(-x.stop // block))


def _reduced(x: Float[Tensor, "rows cols"], cell: tuple[int, int], pool: Pool, empty: float = 0.0) -> Tensor:
    """The maximum, or the sum, of every cell; the last of a row or column may be smaller."""
    for dim, size in ((1, cell[1]), (0, cell[0])):
        if size == 1:
            continue
        over = -x.shape[dim] % size
        if over:
            x = torch.nn.functional.pad(x, (0, over) if dim == 1 else (0, 0, 0, over), value=empty)
        parts = x.unflatten(dim, (-1, size))
        x = parts.amax(dim + 1) if pool == "max" else parts.sum(dim + 1)
    return x


def _cells(x: Float[Tensor, "rows cols"], rows: list[int], cols: list[int], pool: Pool) -> Float[Tensor, "high wide"]:
    """The maximum, or the sum, of every cell; these are where cells begin."""
    even = [_even(starts, length) for starts, length in ((rows, x.shape[0]), (cols, x.shape[1]))]
    if even[0] and even[1]:
        return _reduced(x, (even[0], even[1]), pool)
    for dim, starts in ((1, cols), (0, rows)):
        at = torch.zeros(x.shape[dim], dtype=torch.long, device=x.device)
        at[starts[1:]] = 1
        cell = at.cumsum(0)  # of each row or column
        size = (x.shape[0], len(starts)) if dim == 1 else (len(starts), x.shape[1])
        cell = (cell if dim == 1 else cell[:, None]).expand(x.shape)
        x = x.new_zeros(size).scatter_reduce_(dim, cell, x, "amax" if pool == "max" else "sum")
    return x


def _even(starts: list[int], length: int) -> int:
    """The size of cells of which only the last may be smaller; 0 where they differ."""
    size = starts[1] if len(starts) > 1 else length
    return size if starts == list(range(0, length, size)) else 0


def _counts(rows: list[int], cols: list[int]) -> Float[Tensor, "high wide"]:
    """How many weights each cell has."""
    high, wide = (torch.tensor(edges, dtype=torch.float32).diff() for edges in (rows, cols))
    return high[:, None] * wide
