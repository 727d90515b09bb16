"""The bag-of-words encoder: embeddings without order or context."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from ...layers import Dropout
from ..annotations import Annotations, masked_mean
from .encoder import Encoder, EncoderConfig
from .source_embedding import token_embedding

if TYPE_CHECKING:
    from jaxtyping import Int
    from torch import Tensor


@dataclass(frozen=True)
class BagEncoderConfig(EncoderConfig):
    """Word embeddings alone: each word has the same vector in every position."""

    capturable: ClassVar[bool] = True
    kind: Literal["bag"] = "bag"
    reads: Literal["text"] = "text"
    width: int = 0  # 0: the number of classes, so that the pooled vector is the logits
    dropout: float = 0.0

    def build(self, vocabulary: int, longest: int) -> BagEncoder:
        return BagEncoder(self, vocabulary)


class BagEncoder(Encoder):
    """h_j = E[x_j]. Under a pooling with weights w and no map above it,

        logits = Σ_j w_j E[x_j],   E one row of class scores per word,

    is a linear classifier of weighted word counts. With w from TF-IDF it is the textbook classifier, and attention with
    static weights and learned values.
    """

    def __init__(self, config: BagEncoderConfig, vocabulary: int) -> None:
        super().__init__()
        self.width = config.width
        self.embedding = token_embedding(vocabulary, config.width)
        self.dropout = Dropout(config.dropout)

    def forward(self, source: Int[Tensor, "batch places"], lengths: Int[Tensor, "batch"]) -> Annotations:
        x = self.embedding(source)
        return Annotations(self.dropout(x), lengths, masked_mean(x, lengths))
