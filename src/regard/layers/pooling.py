"""Pooling: annotations h_j to one vector, z = Σ_j w_j h_j.

All but `LastPooling` and `MaxPooling` are `attend` with one query, so `watch` records their weights:

    MeanPooling          e_j = 0                        softmax        all positions equal
    StaticPooling        e_j = idf(x_j)                 proportional   TF-IDF: counted, not learned
    LearnedWordPooling   e_j = a(x_j)                   softmax        one learned number per word
    AttentionPooling     e_j = w · tanh(W q + U h_j)    softmax        depends on the annotation
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import nn

from ..attention import attend
from ..attention.energies import Additive, Dot
from ..attention.masks import padding
from ..attention.normalizers import Proportional, Softmax

if TYPE_CHECKING:
    from jaxtyping import Float, Int
    from torch import Tensor

    from ..attention.attend import AnyEnergy
    from ..attention.normalizers import Normalizer

    Pooled = tuple[Float[Tensor, "batch width"], Float[Tensor, "batch places"] | None]


class Pooling(nn.Module):
    """Attention with one query: `query_and_keys` has the query and the keys, the annotations are the values.

    Returns the pooled vector and, where requested, the weight of every position (0 on padding).
    """

    energy: AnyEnergy
    normalize: ClassVar[Normalizer] = Softmax()

    def query_and_keys(
        self, vectors: Float[Tensor, "batch places width"], source: Tensor
    ) -> tuple[Float[Tensor, "batch 1 d"], Float[Tensor, "batch places k"]]:
        raise NotImplementedError

    def forward(
        self,
        vectors: Float[Tensor, "batch places width"],
        lengths: Int[Tensor, "batch"],
        summary: Float[Tensor, "batch width"],
        source: Tensor,
        *,
        weights: bool = False,
    ) -> Pooled:
        query, keys = self.query_and_keys(vectors, source)
        options: Any = {"energy": self.energy, "normalize": self.normalize, "mask": padding(lengths)}
        if not weights:
            return attend(query, keys, vectors, **options)[:, 0], None
        pooled, w = attend(query, keys, vectors, **options, weights=True)
        return pooled[:, 0], w.dense()[:, 0]


class EnergyPooling(Pooling):
    """Energies known without a query: q = 1 and k_j = e_j, so that q·k_j is the energy."""

    energy = Dot()

    def energies(self, vectors: Float[Tensor, "batch places width"], source: Tensor) -> Float[Tensor, "batch places 1"]:
        raise NotImplementedError

    def query_and_keys(self, vectors: Tensor, source: Tensor) -> tuple[Tensor, Tensor]:
        keys = self.energies(vectors, source).to(vectors.dtype)
        return torch.ones_like(keys[:, :1]), keys


class MeanPooling(EnergyPooling):
    """w_j = 1/n."""

    def energies(self, vectors: Tensor, source: Tensor) -> Tensor:
        return torch.zeros_like(vectors[..., :1])


class StaticPooling(EnergyPooling):
    """w_j = idf(x_j) / Σ_i idf(x_i); a word that occurs twice counts twice, which is TF (Spärck Jones 1972).

    `idf` is counted over the training texts (`EncodedCorpus.idf`) before training, and does not change. With the plain
    formula a word of every text has idf 0; a text of such words alone gets no weights, and the vector 0.
    """

    normalize = Proportional()

    def __init__(self, vocabulary: int) -> None:
        super().__init__()
        self.idf: Float[Tensor, "vocabulary"]
        self.register_buffer("idf", torch.ones(vocabulary))

    def energies(self, vectors: Tensor, source: Tensor) -> Tensor:
        return self.idf[source][..., None]


class LearnedWordPooling(EnergyPooling):
    """w_j = exp a(x_j) / Σ_i exp a(x_i): one learned weight per word of the vocabulary."""

    def __init__(self, vocabulary: int) -> None:
        super().__init__()
        self.word = nn.Embedding(vocabulary, 1)
        nn.init.zeros_(self.word.weight)  # at first it is the mean

    def energies(self, vectors: Tensor, source: Tensor) -> Tensor:
        energies: Tensor = self.word(source)
        return energies


class AttentionPooling(Pooling):
    """w_j = softmax_j(w · tanh(W q + U h_j)) with one learned query q (Yang et al. 2016, equations 5 to 7)."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.query = nn.Parameter(torch.empty(1, hidden).normal_(std=hidden**-0.5))
        self.energy = Additive(hidden, width, hidden)

    def query_and_keys(self, vectors: Tensor, source: Tensor) -> tuple[Tensor, Tensor]:
        return self.query.to(vectors.dtype).expand(vectors.shape[0], -1, -1), vectors  # query [batch, 1, hidden]


class LastPooling(Pooling):
    """The encoder's own summary: an RNN's last state, a Transformer's mean."""

    def forward(
        self, vectors: Tensor, lengths: Tensor, summary: Tensor, source: Tensor, *, weights: bool = False
    ) -> Pooled:
        return summary, None


class MaxPooling(Pooling):
    """z_d = max_j h_jd (Collobert et al. 2011): each feature from the position where it is largest.

    Not an average, so `watch` records nothing. As weights it returns the share of features taken from each position.
    """

    def forward(
        self, vectors: Tensor, lengths: Tensor, summary: Tensor, source: Tensor, *, weights: bool = False
    ) -> Pooled:
        places = torch.arange(vectors.shape[1], device=vectors.device)
        masked = (places >= lengths[:, None])[..., None]
        best = vectors.masked_fill(masked, -torch.inf).max(1)  # values and positions, [batch, width]
        share = (best.indices[..., None] == places).float().mean(1) if weights else None
        return best.values, share
