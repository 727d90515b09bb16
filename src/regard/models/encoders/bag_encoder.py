"""The bag of words: an encoder that lets every word be what it is."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from ...layers import Dropout
from ..annotations import Annotations
from .encoder import Encoder

if TYPE_CHECKING:
    from jaxtyping import Int
    from torch import Tensor, nn

    from .. import config


class BagEncoder(Encoder):
    """h_j = E[x_j]. Under a pooling with weights w and no map above it,

        logits = Σ_j w_j E[x_j],   E one row of class scores per word,

    is a linear classifier of weighted word counts: with w from TF-IDF, the classifier of the text-books, and at the
    same time attention whose weights are static and whose values are all that is learned.
    """

    def __init__(self, config: config.BagEncoder, embedding: nn.Embedding) -> None:
        super().__init__()
        self.width = embedding.embedding_dim
        self.embedding = embedding
        self.dropout = Dropout(config.dropout)

    def forward(self, source: Int[Tensor, "batch places"], lengths: Int[Tensor, "batch"]) -> Annotations:
        x = self.embedding(source)
        real = torch.arange(source.shape[1], device=source.device) < lengths[:, None]
        mean = (x * real[..., None]).sum(1) / lengths[:, None]
        return Annotations(self.dropout(x), lengths, mean.to(x.dtype))
