"""Habits: what a head gives a key, or a distance, from other words too. What is left of a weight is its surplus.

    K_ij       = mean of w_i'j       over the other queries i' ≠ i that may see j
    O_ij       = mean of w_i',i'+j−i over the other rows that have a key at this distance    (self-attention only)
    habit_ij   = max(K_ij, O_ij)
    surplus_ij = w_ij − habit_ij

Where no other query may see the key, its mean is 0. A head that looks at “cat” with 0.69 from one word and with 0.61
from the others has a favourite word; a head that always looks at the word before has a distance. Neither says much
about this word. That is all a surplus says: a large one is no proof that the look means something.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch

from ..attention.normalizers import Unchanged
from .generation_passes import CLOSED

if TYPE_CHECKING:
    from collections.abc import Iterator

    from jaxtyping import Bool, Float, Int
    from torch import Tensor

    from ..attention.weights import Weights

CELLS = 1 << 22
"""Weights of all heads that are held at once."""


@torch.no_grad()
def visible_keys(weights: Weights, queries: Int[Tensor, " rows"]) -> Bool[Tensor, "rows k"]:
    """The keys that these queries can see in the first head."""
    return _visible(weights[:1] if weights.shape[0] > 1 else weights, queries)[0]


def _visible(weights: Weights, queries: Int[Tensor, " rows"]) -> Bool[Tensor, "heads rows k"]:
    """The same in every head."""
    if isinstance(weights.normalize, Unchanged):  # weights without their mask: a softmax gives a closed key nothing
        return (weights.rows(queries.tolist()).tile(slice(None), slice(None)) > 0).cpu()
    scores, device = weights.energies, weights.device
    only = replace(scores, modifiers=tuple(x for x in scores.modifiers if x.added is not None))
    rows, cols = queries.to(device), torch.arange(scores.keys, device=device)
    heads = torch.tensor(list(weights.entries), device=device)
    e = torch.zeros(len(heads), len(rows), len(cols), dtype=scores.precision, device=device)
    return (only.finished(e, heads, rows, cols, -torch.inf) > CLOSED).cpu()


@dataclass(frozen=True)
class Habits:
    """Sums of the weights [heads, T_q, T_k] of one call by key and by distance, j − i + T_q − 1, and how many rows."""

    weights: Weights
    received: Float[Tensor, "heads k"]
    seers: Float[Tensor, "heads k"]
    apart: Float[Tensor, "heads distances"]
    rows: Float[Tensor, "heads distances"]

    @classmethod
    @torch.no_grad()
    def of(cls, weights: Weights, distances: bool = True) -> Habits:
        """From one pass over blocks of rows, at any length; without `distances` for two different texts."""
        heads, queries, keys = weights.shape
        received, seers = torch.zeros(2, heads, keys, dtype=torch.float64)
        apart, rows = torch.zeros(2, heads, queries + keys - 1, dtype=torch.float64)
        for i, w, seen in _blocks(weights):
            received += w.sum(-2)
            seers += seen.sum(-2)
            if distances:
                at = (torch.arange(keys) - i[:, None] + queries - 1).flatten()
                apart.index_add_(-1, at, w.flatten(-2))
                rows.index_add_(-1, at, seen.flatten(-2))
        return cls(weights, received, seers, apart, rows)

    def of_pairs(self, w: Float[Tensor, "..."], i: Int[Tensor, "..."], j: Int[Tensor, "..."]) -> Float[Tensor, "..."]:
        """max(K, O) of weights w [heads, pairs] that queries i give to keys j, [pairs]."""
        d = j - i + self.weights.shape[-2] - 1
        of_key = (self.received[:, j] - w) / (self.seers[:, j] - 1).clamp_min(1)
        of_distance = (self.apart[:, d] - w) / (self.rows[:, d] - 1).clamp_min(1)
        return torch.maximum(of_key, of_distance).clamp_min(0)  # a difference of equal sums may be −1e-17

    def blocks(
        self,
    ) -> Iterator[tuple[Int[Tensor, " rows"], Float[Tensor, "heads rows k"], Float[Tensor, "heads rows k"]]]:
        """Block after block: its queries, their weights and the habits of these."""
        j = torch.arange(self.weights.shape[-1])
        for i, w, seen in _blocks(self.weights):
            yield i, w, self.of_pairs(w, i[:, None], j[None]) * seen


def habit(weights: Weights, distances: bool = True) -> Float[Tensor, "heads q k"]:
    """The habit of every weight [heads, T_q, T_k]."""
    return torch.cat([part for _, _, part in Habits.of(weights, distances).blocks()], -2)


def _blocks(weights: Weights) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    heads, queries, keys = weights.shape
    for i in torch.arange(queries).split(max(1, CELLS // (heads * keys))):
        w = weights.rows(i.tolist()).tile(slice(None), slice(None)).double().cpu()
        yield i, w, _visible(weights, i).double()
