"""Pooling: one vector of many, z = Σ_j w_j h_j, with weights from nowhere, from a count, from a table, or from h.

All but `LastPooling` and `MaxPooling` are `attend` with one query and other parts, so `watch` sees their weights:

    Mean         e_j = 0                            softmax        every place the same
    Static       e_j = idf(x_j)                     proportional   TF-IDF: counted once, never learned
    Adaptive     e_j = a(x_j)                       softmax        one learned number per word
    Attentive    e_j = w · tanh(W q + U h_j)        softmax        depends on what the encoder made of the place
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn

from ..attention import Additive, Dot, Proportional, Softmax, attend, padding

if TYPE_CHECKING:
    from jaxtyping import Float, Int
    from torch import Tensor

    from ..attention.attend import AnyEnergy
    from ..attention.normalizers.normalizer import Normalizer

    Pooled = tuple[Float[Tensor, "batch width"], Float[Tensor, "batch places"] | None]

_DOT, _SOFTMAX, _PROPORTIONAL = Dot(), Softmax(), Proportional()


class Pooling(nn.Module):
    """`forward` gives the vector and, where asked for, the weight of every place; padding has none."""

    def forward(
        self,
        vectors: Float[Tensor, "batch places width"],
        lengths: Int[Tensor, "batch"],
        summary: Float[Tensor, "batch width"],
        source: Tensor,
        *,
        weights: bool = False,
    ) -> Pooled:
        raise NotImplementedError


class MeanPooling(Pooling):
    """w_j = 1/n."""

    def forward(
        self, vectors: Tensor, lengths: Tensor, summary: Tensor, source: Tensor, *, weights: bool = False
    ) -> Pooled:
        return _by_energies(torch.zeros_like(vectors[..., :1]), vectors, lengths, weights)


class StaticPooling(Pooling):
    """w_j = idf(x_j) / Σ_i idf(x_i); a word that stands there twice counts twice, which is TF (Spärck Jones 1972).

    `idf` is counted over the training texts (`EncodedCorpus.idf`) before the training, and stays as it is.
    """

    def __init__(self, vocabulary: int) -> None:
        super().__init__()
        self.idf: Float[Tensor, "vocabulary"]
        self.register_buffer("idf", torch.ones(vocabulary))

    def forward(
        self, vectors: Tensor, lengths: Tensor, summary: Tensor, source: Tensor, *, weights: bool = False
    ) -> Pooled:
        return _by_energies(self.idf[source][..., None], vectors, lengths, weights, _PROPORTIONAL)


class LearnedWordPooling(Pooling):
    """w_j = exp a(x_j) / Σ_i exp a(x_i): a weight of its own for each word of the vocabulary, learned."""

    def __init__(self, vocabulary: int) -> None:
        super().__init__()
        self.word = nn.Embedding(vocabulary, 1)
        nn.init.zeros_(self.word.weight)  # it begins as the mean

    def forward(
        self, vectors: Tensor, lengths: Tensor, summary: Tensor, source: Tensor, *, weights: bool = False
    ) -> Pooled:
        return _by_energies(self.word(source), vectors, lengths, weights)


class AttentionPooling(Pooling):
    """w_j = softmax_j(w · tanh(W q + U h_j)) with one learned query q (Yang et al. 2016, equations 5 to 7)."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.query = nn.Parameter(torch.randn(1, hidden) * hidden**-0.5)
        self.energy = Additive(hidden, width, hidden)

    def forward(
        self, vectors: Tensor, lengths: Tensor, summary: Tensor, source: Tensor, *, weights: bool = False
    ) -> Pooled:
        query = self.query.to(vectors.dtype).expand(len(vectors), -1, -1)  # [batch, 1, hidden]
        return _attended(query, vectors, vectors, lengths, weights, self.energy)


class LastPooling(Pooling):
    """What the encoder itself sums up: an RNN's last state, a Transformer's mean."""

    def forward(
        self, vectors: Tensor, lengths: Tensor, summary: Tensor, source: Tensor, *, weights: bool = False
    ) -> Pooled:
        return summary, None


class MaxPooling(Pooling):
    """z_d = max_j h_jd (Collobert et al. 2011): each feature from the place where it is strongest.

    No average, so nothing `watch` could show; as weights stand the shares of features that each place gave.
    """

    def forward(
        self, vectors: Tensor, lengths: Tensor, summary: Tensor, source: Tensor, *, weights: bool = False
    ) -> Pooled:
        places = torch.arange(vectors.shape[1], device=vectors.device)
        closed = (places >= lengths[:, None])[..., None]
        best = vectors.masked_fill(closed, -torch.inf).max(1)  # values and places, [batch, width]
        share = nn.functional.one_hot(best.indices, len(places)).float().mean(1) if weights else None
        return best.values, share


def _by_energies(
    energies: Float[Tensor, "batch places 1"],
    vectors: Float[Tensor, "batch places width"],
    lengths: Int[Tensor, "batch"],
    weights: bool,
    normalize: Normalizer = _SOFTMAX,
) -> Pooled:
    """Energies that are there already: a query of 1 and keys as wide as a number, so that q·k is the energy."""
    keys = energies.to(vectors.dtype)
    return _attended(torch.ones_like(keys[:, :1]), keys, vectors, lengths, weights, _DOT, normalize)


def _attended(
    query: Float[Tensor, "batch 1 d"],
    keys: Float[Tensor, "batch places k"],
    values: Float[Tensor, "batch places width"],
    lengths: Int[Tensor, "batch"],
    weights: bool,
    energy: AnyEnergy,
    normalize: Normalizer = _SOFTMAX,
) -> Pooled:
    mask = padding(lengths)
    if not weights:
        return attend(query, keys, values, energy=energy, normalize=normalize, mask=mask)[:, 0], None
    pooled, w = attend(query, keys, values, energy=energy, normalize=normalize, mask=mask, weights=True)
    return pooled[:, 0], w.dense()[:, 0]
