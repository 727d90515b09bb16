"""Pairs of equal tokens: how much weight goes from a token to other occurrences of it, without the T × T matrix.

Positions are sorted by token, so that the matches of a query are one slice of the list. Only the pairs of the current
block of rows are listed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from ...attention.block_indices import span

if TYPE_CHECKING:
    from jaxtyping import Float, Int
    from torch import Tensor

    from ...attention import Weights
    from ...attention.weights.weight_statistics import Block
    from ..capture.tokenized_text import TokenizedText

KINDS = ("identical", "duplicate", "induction", "other sentence", "related")
RELATED_COSINE = 0.5
"""The cosine of two tokens' embeddings above which they count as related. Our choice; the papers give no number."""
CHUNK = 1 << 20
"""Pairs, of all heads together, whose weights are computed at once."""


class TokenPairs:
    """For each kind of pair, the keys that queries of a text are paired with."""

    def __init__(self, text: TokenizedText) -> None:
        self.ids, self.segments = text.ids, text.segments
        self.vectors = None if text.vectors is None else torch.nn.functional.normalize(text.vectors.float(), dim=-1)
        self.length = len(text)
        _, kinds, counts = self.ids.unique(return_inverse=True, return_counts=True)
        self.order = kinds.argsort(stable=True)  # positions, equal tokens side by side
        stops = counts.cumsum(0)
        self.start, self.count = (stops - counts)[kinds], counts[kinds]

    def of(self, queries: Int[Tensor, " rows"]) -> dict[str, tuple[Int[Tensor, " pairs"], Int[Tensor, " pairs"]]]:
        """For each kind the pairs (index into `queries`, key)."""
        queries = queries.cpu()
        counts = self.count[queries]
        row = torch.arange(len(queries)).repeat_interleave(counts)
        within = torch.arange(len(row)) - (counts.cumsum(0) - counts).repeat_interleave(counts)
        key = self.order[self.start[queries].repeat_interleave(counts) + within]
        query = queries[row]
        other, before = key != query, key < query
        pairs = {
            "identical": (row[other], key[other]),
            "duplicate": (row[before], key[before]),
            # The key after an earlier occurrence.
            "induction": (row[before], key[before] + 1),
        }
        if self.segments is not None:
            side = self.segments
            across = (side[key] >= 0) & (side[query] >= 0) & (side[key] != side[query])
            pairs["other sentence"] = row[across], key[across]
            if self.vectors is not None:
                pairs["related"] = self._related(queries, side)
        return pairs

    def _related(self, queries: Tensor, side: Tensor) -> tuple[Tensor, Tensor]:
        """Different tokens of the other sentence with a similar embedding."""
        assert self.vectors is not None
        near = self.vectors[queries] @ self.vectors.T > RELATED_COSINE  # [rows, t]
        across = (side[queries, None] >= 0) & (side >= 0) & (side[queries, None] != side)
        row, key = (near & across & (self.ids[queries, None] != self.ids)).nonzero(as_tuple=True)
        return row, key


class PairSums:
    """Σ w_ij over the pairs of each kind, for each head: a statistic for `Weights.stats(also=…)`."""

    def __init__(self, pairs: TokenPairs, heads: int) -> None:
        self.pairs = pairs
        self.total: dict[str, Float[Tensor, " heads"]] = {kind: torch.zeros(heads) for kind in KINDS}

    def add(self, block: Block) -> None:
        n, rows, width = block.w.shape
        flat = block.w.reshape(n, rows * width)
        for kind, (row, key) in self.pairs.of(block.queries).items():
            inside = key < width  # keys beyond are masked for all rows of the block
            at = (row[inside] * width + key[inside]).to(flat.device)
            self.total[kind][block.n] += flat[:, at].sum(-1).to("cpu", torch.float32)

    def add_pairwise(self, weights: Weights, queries: Int[Tensor, " rows"] | None = None) -> None:
        """The same from single weights, for a GPU, where the kernels of `Weights.stats` expose no blocks.

        With `queries`, an estimate from these: their sum, scaled to all queries.
        """
        sample = torch.arange(weights.shape[-2]) if queries is None else queries
        scale = weights.shape[-2] / len(sample)
        # Computing a pair takes two vectors of every head.
        pairs_per_query = float(self.pairs.count[sample].float().mean()) * weights.shape[0]
        for chunk in sample.split(max(1, int(CHUNK / pairs_per_query))):
            for kind, (row, key) in self.pairs.of(chunk).items():
                inside = key < weights.shape[-1]
                total = pair_weights(weights, chunk[row[inside]], key[inside]).sum(-1)
                self.total[kind] += scale * total.to("cpu", torch.float32)


@torch.no_grad()
def pair_weights(weights: Weights, i: Int[Tensor, " pairs"], j: Int[Tensor, " pairs"]) -> Float[Tensor, "n pairs"]:
    """w_ij of chosen pairs, for softmax over dot products: exp(q_i·k_j·scale, modified and masked, − lse_i)."""
    scores, normalize = weights.flat(), weights.normalize
    if scores.form.kernel != "dot" or normalize.kernel != "softmax":
        raise TypeError("weights of single pairs are computed for softmax over dot products only")
    device = scores.a.device
    entries, i, j = span(weights.entries, device), i.to(device), j.to(device)
    a, b = (x[entries][:, at].to(scores.precision) for x, at in ((scores.a, i), (scores.b, j)))
    e = ((a * b).sum(-1) * scores.form.scale)[..., None]  # [n, pairs, 1]: as a block of one column each
    e = scores.finished(e, entries, i, j[:, None], normalize.absent)
    return normalize.weigh_rows(e, weights.row_state().map(lambda x: x[:, i]), j)[..., 0]
