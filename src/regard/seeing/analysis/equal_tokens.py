"""Pairs of equal tokens: how much weight goes from a token to the others of its kind, without the matrix.

Sorted by token, the matches of any query are a run of the list, so the pairs of a block of rows are written down when
that block is there, and only those.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from ...attention import Softmax
from ...attention.block_indices import span
from ...attention.energy_forms import DotForm

if TYPE_CHECKING:
    from jaxtyping import Float, Int
    from torch import Tensor

    from ...attention import Weights
    from ...attention.weight_statistics import Block
    from .token_kinds import Text

KINDS = ("identical", "duplicate", "induction", "other sentence", "related")
ALIKE = 0.5
"""The cosine of two tokens' embeddings above which they count as related. Ours; the papers name no number."""
AT_ONCE = 1 << 20
"""Pairs of all heads together that are looked up at once, where they are looked up one by one."""


class Matches:
    """For some queries of a text, the keys each kind of pair joins them with."""

    def __init__(self, text: Text) -> None:
        self.ids, self.segments = text.ids, text.segments
        self.vectors = None if text.vectors is None else torch.nn.functional.normalize(text.vectors.float(), dim=-1)
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
            if self.vectors is not None:
                found["related"] = self._related(queries, side)
        return found

    def _related(self, queries: Tensor, side: Tensor) -> tuple[Tensor, Tensor]:
        """Tokens of the other sentence with a like embedding that are not the same token."""
        assert self.vectors is not None
        near = self.vectors[queries] @ self.vectors.T > ALIKE  # [rows, t]
        across = (side[queries, None] >= 0) & (side >= 0) & (side[queries, None] != side)
        row, key = (near & across & (self.ids[queries, None] != self.ids)).nonzero(as_tuple=True)
        return row, key


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

    def look_up(self, weights: Weights, queries: Int[Tensor, " rows"] | None = None) -> None:
        """The same from single weights, for a GPU, where `Weights.stats` has kernels that show no blocks.

        With `queries` only from these, and as much more as there are more queries than these.
        """
        every = torch.arange(weights.shape[-2]) if queries is None else queries
        share = weights.shape[-2] / len(every)
        # A pair is two vectors of every head while it is looked up.
        each = float(self.matches.count[every].float().mean()) * weights.shape[0]
        for part in every.split(max(1, int(AT_ONCE / each))):
            for kind, (row, key) in self.matches.of(part).items():
                seen = key < weights.shape[-1]
                mass = single(weights, part[row[seen]], key[seen]).sum(-1)
                self.total[kind] += share * mass.to("cpu", torch.float32)


@torch.no_grad()
def single(weights: Weights, i: Int[Tensor, " pairs"], j: Int[Tensor, " pairs"]) -> Float[Tensor, "n pairs"]:
    """w_ij of chosen pairs, for softmax over dot products: exp(q_i·k_j·scale, modified and masked, − lse_i)."""
    scores, normalize = weights.flat(), weights.normalize
    if not isinstance(scores.form, DotForm) or not isinstance(normalize, Softmax):
        raise TypeError("single weights are looked up for softmax over dot products")
    device = scores.a.device
    entries, i, j = span(weights.entries, device), i.to(device), j.to(device)
    a, b = (x[entries][:, at].to(scores.precision) for x, at in ((scores.a, i), (scores.b, j)))
    e = ((a * b).sum(-1) * scores.form.scale)[..., None]  # [n, pairs, 1]: as a block of one column each
    e = scores.finished(e, entries, i, j[:, None], normalize.absent)
    state = weights.row_state()[:, i, None]
    return normalize.weigh(e, state, j)[..., 0]
