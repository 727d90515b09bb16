"""HeadMatrix: the weights of one head, any rectangle of them, from q, k and the row states.

A row state is computed when it is first needed, by one pass over the row, and kept.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import torch

from ...attention import Softmax
from ...attention.normalizers.normalizer import RowState, largest, mark_empty
from ...attention.weights.pooling_cells import Cells

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor

    from ...attention import Weights
    from .tile import Pool

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
