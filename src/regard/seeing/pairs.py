"""Pairs of equal tokens: how much weight goes from a token to the others of its kind, without the matrix.

Sorted by token, the matches of any query are a run of the list, so the pairs of a block of rows are written down when
that block is there, and only those.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from jaxtyping import Float, Int
    from torch import Tensor

    from ..attention.statistics import Block
    from .text import Text

KINDS = ("identical", "duplicate", "induction", "other sentence")


class Matches:
    """For some queries of a text, the keys each kind of pair joins them with."""

    def __init__(self, text: Text) -> None:
        self.ids, self.segments = text.ids, text.segments
        self.length = len(text)
        _, kinds, counts = self.ids.unique(return_inverse=True, return_counts=True)
        self.order = kinds.argsort(stable=True)  # positions, equal tokens side by side
        stops = counts.cumsum(0)
        self.start, self.count = (stops - counts)[kinds], counts[kinds]

    def of(self, queries: Int[Tensor, " rows"]) -> dict[str, tuple[Int[Tensor, " pairs"], Int[Tensor, " pairs"]]]:
        """(which of these rows, key) for each kind."""
        queries = queries.cpu()
        counts = self.count[queries]
        row = torch.arange(len(queries)).repeat_interleave(counts)
        within = torch.arange(len(row)) - (counts.cumsum(0) - counts).repeat_interleave(counts)
        key = self.order[self.start[queries].repeat_interleave(counts) + within]
        query = queries[row]
        other, before = key != query, key < query
        found = {
            "identical": (row[other], key[other]),
            "duplicate": (row[before], key[before]),
            # The key after an earlier occurrence; the last one before the query is the query itself's neighbour.
            "induction": (row[before], key[before] + 1),
        }
        if self.segments is not None:
            side = self.segments
            across = (side[key] >= 0) & (side[query] >= 0) & (side[key] != side[query])
            found["other sentence"] = row[across], key[across]
        return found


class PairMass:
    """Σ w_ij over the pairs of each kind, per matrix: a statistic for `Weights.stats(also=…)`."""

    def __init__(self, matches: Matches, count: int) -> None:
        self.matches = matches
        self.total: dict[str, Float[Tensor, " n"]] = {kind: torch.zeros(count) for kind in KINDS}

    def add(self, block: Block) -> None:
        n, rows, width = block.w.shape
        flat = block.w.reshape(n, rows * width)
        for kind, (row, key) in self.matches.of(block.queries).items():
            seen = key < width  # keys beyond are seen by none of these rows
            at = (row[seen] * width + key[seen]).to(flat.device)
            self.total[kind][block.n] += flat[:, at].sum(-1).to("cpu", torch.float32)
