"""Tile: a rectangle of an attention matrix, and the cells it is pooled to.

HeadMatrix: the weights of one head, any rectangle of them, from q, k and the row states.

A row state is computed when it is first needed, by one pass over the row, and kept.

TilePyramid: tiles of one head's matrix at any zoom, without storing the matrix.

Fine tiles are computed from q, k and the row state when they are requested. A coarse tile needs every weight under it,
up to 131,072² of them, so one pass over the matrix pools them into a base level of cells of `block` × `block` weights
(at most `BASE` cells along a side), and coarser cells are pooled from these: the maximum of maxima, the mean of sums.
Both are exact.

The pass runs band by band, the rows of the requested tile first, and stops when no request waits for it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Literal, NamedTuple

import torch

from ..attention.normalizers import RowState, Softmax, largest, mark_empty
from ..attention.statistics import Cells

if TYPE_CHECKING:
    from jaxtyping import Bool, Float
    from torch import Tensor

    from ..attention.weights import Weights

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


SOFTMAX = Softmax()
CHUNK = 1 << 19
"""Energies in memory at once: 2 MiB, which stay in cache between the steps that read them, and leave less to compute
of what a causal mask hides."""
SMALL_BLOCK = 8
"""Keys up to which a block is pooled by halves."""
LOG2E = math.log2(math.e)


class _Visible(NamedTuple):
    """Of the visible keys of some queries, each an interval: where the first and the last of these intervals begin,
    and where they end."""

    least_first: int
    most_first: int
    least_stop: int
    most_stop: int

    @classmethod
    def of(cls, first: Tensor, stop: Tensor) -> _Visible:
        return cls(*torch.stack([first.amin(), first.amax(), stop.amin(), stop.amax()]).tolist())


class HeadMatrix:
    """The matrix of one head of one batch entry. Not thread-safe."""

    def __init__(self, weights: Weights) -> None:
        """`weights` of shape [T_q, T_k]."""
        self._weights, self._energies, self._normalize = weights, weights.flat(), weights.normalize
        self._unmasked = replace(self._energies, mask=None)
        self.is_softmax = self._normalize == SOFTMAX
        """Softmax can be pooled before its row states are known. Not with a sink, whose share is in the row state."""
        self._entry = slice(weights.entries[0], weights.entries[0] + 1)
        self.queries, self.keys = weights.shape
        self.device = self._energies.a.device
        self._state = torch.zeros(self.queries, dtype=self._energies.precision, device=self.device)
        # Which rows have a state. A state may be NaN, where the model computed NaN.
        self._has_state = torch.zeros(self.queries, dtype=torch.bool)
        # Rows of energies too large for one number. `Weights` computes them, from whole rows.
        self._is_large = torch.zeros(self.queries, dtype=torch.bool)
        self._last_visible: tuple[range, _Visible | None] | None = None
        if weights.kernel_state is not None:  # the kernel stored it
            self._set_state(range(self.queries), weights.row_state().map(lambda x: x[0]))

    @property
    def nbytes(self) -> int:
        return self._state.nbytes + self._has_state.nbytes + self._is_large.nbytes

    @torch.no_grad()
    def weights(self, rows: range, cols: range) -> Float[Tensor, "rows cols"]:
        """The weights of a rectangle."""
        state = self.states(rows)
        if state is None or not self._normalize.pointwise:
            return self._weights.tile(as_slice(rows), as_slice(cols)).float()
        e = self._energy_block(rows, cols)
        return self._normalize.weigh(e, state[:, None], self._positions(cols)).float()

    def has_states(self, rows: range) -> bool:
        """Whether the states of these rows are known."""
        return bool(self._has_state[as_slice(rows)].all())

    def _positions(self, x: range) -> Tensor:
        return torch.arange(x.start, x.stop, device=self.device)

    def _energy_block(self, rows: range, cols: range, buffer: Tensor | None = None) -> Float[Tensor, "rows cols"]:
        energies = self._energies if self._any_masked(rows, cols) else self._unmasked
        return energies.block(self._entry, as_slice(rows), as_slice(cols), self._normalize.absent, buffer)[0]

    def states(self, rows: range) -> Float[Tensor, " rows"] | None:
        """One number per row, computed where it is not known; None where that is not enough for some of them."""
        some = as_slice(rows)
        if not self.has_states(rows):
            if self.is_softmax:
                state = self._softmax_state(rows)
            else:
                state = self._weights.rows(some).row_state().map(lambda x: x[0])
            self._set_state(rows, state)
        return None if bool(self._is_large[some].any()) else self._state[some]

    def _set_state(self, rows: range, state: RowState) -> None:
        state = self._normalize.joined(state)
        self._state[as_slice(rows)] = state.rest.to(self._state.dtype)
        self._is_large[as_slice(rows)] = state.anchor is not None
        self._has_state[as_slice(rows)] = True

    def _softmax_state(self, rows: range) -> RowState:
        """max_j e_ij and log Σ_j exp(e_ij − max), some keys at a time: a few rows of 131,072 keys would leave cache."""
        wide = max(1, CHUNK // len(rows))
        spans = [range(start, min(start + wide, self.keys)) for start in range(0, self.keys, wide)]
        parts = [
            self._normalize.row_state(self._energy_block(rows, cols))
            for cols in spans
            if not self.all_masked(rows, cols)
        ]
        if not parts:
            return RowState(self._state.new_full((len(rows),), torch.inf))
        return _joined_rows(parts)

    def _visible(self, rows: range) -> _Visible | None:
        """Which keys the queries see; None where the mask is no interval. The last answer is kept: chunks of the same
        queries follow one another."""
        if self._energies.mask is None:
            return None
        if self._last_visible is None or self._last_visible[0] != rows:
            entry = torch.tensor([self._entry.start], device=self.device)
            interval = self._energies.interval(entry, self._positions(rows))
            self._last_visible = rows, None if interval is None else _Visible.of(*interval)
        return self._last_visible[1]

    def all_masked(self, rows: range, cols: range) -> bool:
        """Whether the mask surely hides the whole rectangle, such as above the diagonal: nothing has to be computed."""
        visible = self._visible(rows)
        return visible is not None and (visible.least_first >= cols.stop or visible.most_stop <= cols.start)

    def _any_masked(self, rows: range, cols: range) -> bool:
        visible = self._visible(rows)
        if visible is None:
            return self._energies.mask is not None
        return visible.most_first > cols.start or visible.least_stop < cols.stop

    def pool_softmax(self, rows: range, block: int) -> tuple[Float[Tensor, "rows wide"], Float[Tensor, "rows wide"]]:
        """Where `is_softmax`: the largest weight and the sum of each `block` of keys, for every query. Sets row states.

        One pass: in each chunk of keys the sums are of exp(e − m) with the chunk's own maximum m. After the last chunk
        the row state is known and rescales them (Milakov & Gimelshein 2018).
        """
        width = -(-self.keys // block)
        wide = block * max(1, CHUNK // (len(rows) * block))
        maxima = torch.full((len(rows), width), -torch.inf, device=self.device)
        sums, parts, chunks = torch.zeros(len(rows), width, device=self.device), [], []
        buffer = self._state.new_empty(0)
        for start in range(0, self.keys, wide):
            cols = range(start, min(start + wide, self.keys))
            if self.all_masked(rows, cols):
                continue
            e = self._energy_block(rows, cols, buffer)
            chunk = as_slice(cols, block)
            maxima[:, chunk] = _pooled_keys(e, block, "max")
            m = largest(maxima[:, chunk])
            sums[:, chunk] = _pooled_keys(_exp_(e.sub_(m)), block, "mean")
            parts.append(RowState(mark_empty(sums[:, chunk].sum(-1).log()), m[:, 0]))
            chunks.append(chunk)
        if not chunks:
            self._set_state(rows, RowState(self._state.new_full((len(rows),), torch.inf)))
            return _exp_(maxima), sums
        state = _joined_rows(parts)
        assert state.anchor is not None
        anchor, rest = state.anchor[:, None], state.rest[:, None]
        for chunk, part in zip(chunks, parts, strict=True):
            assert part.anchor is not None
            sums[:, chunk] *= ((part.anchor[:, None] - anchor) - rest).exp()
        self._set_state(rows, state)
        return _exp_(maxima.sub_(anchor).sub_(rest)), sums


def _pooled_keys(x: Float[Tensor, "rows keys"], block: int, pool: Pool) -> Float[Tensor, "rows wide"]:
    """The maximum or the sum of each block of keys; of small blocks by halves: torch is slow along a few numbers."""
    if block > SMALL_BLOCK:
        return Cells.blocks(x.shape[-1], block, x.device).pool(x, -1, pool)
    if pool == "max" and x.device.type == "cpu":  # three times as fast as by halves
        return torch.nn.functional.max_pool1d(x[:, None], block, ceil_mode=True)[:, 0]
    while block > 1:
        if x.shape[-1] % 2:
            x = torch.nn.functional.pad(x, (0, 1), value=-torch.inf if pool == "max" else 0.0)
        even, odd = x[:, 0::2], x[:, 1::2]
        x = torch.maximum(even, odd) if pool == "max" else even + odd
        block //= 2
    return x


def _exp_(x: Tensor) -> Tensor:
    """e^x in place, as 2^(x log₂ e).

    The exp of MKL, which torch calls on CPU, takes 5 to 30 times as long where the result underflows, as behind a mask.
    """
    return x.mul_(LOG2E).exp2_()


def _joined_rows(parts: list[RowState]) -> RowState:
    """The softmax state of rows from those of their chunks of keys, each with its own maximum as the anchor."""
    rest = torch.stack([part.rest for part in parts])  # [chunks, rows]
    anchors = torch.stack([part.anchor for part in parts if part.anchor is not None])
    seen = rest != torch.inf
    anchor = anchors.masked_fill(~seen, -torch.inf).amax(0)
    anchor = anchor.masked_fill(anchor == -torch.inf, 0)
    total = (rest + (anchors - anchor)).masked_fill(~seen, -torch.inf).logsumexp(0)
    return RowState(mark_empty(total), anchor)


def as_slice(x: range, block: int = 1) -> slice:
    """The positions of a range, or the blocks of this size that they lie in."""
    return slice(x.start // block, -(-x.stop // block))


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
