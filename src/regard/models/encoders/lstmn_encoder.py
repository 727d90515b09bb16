"""The LSTMN as a reader: each state has looked at all states before it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import nn

from ...layers import LSTMN, Dropout
from ..annotations import Annotations
from .encoder import Encoder
from .sequence_encoders import read

if TYPE_CHECKING:
    from jaxtyping import Int
    from torch import Tensor

    from .. import config


class LSTMNEncoder(Encoder):
    """h_1 … h_n of an LSTMN, from left to right, and its memory tape (Cheng, Dong and Lapata 2016, section 3.1)."""

    def __init__(self, config: config.LSTMNEncoder, embedding: nn.Module) -> None:
        super().__init__()
        self.width = config.width
        self.embedding = embedding
        self.dropout = Dropout(config.dropout)
        self.layers = nn.ModuleList(
            LSTMN(config.width if layer else config.embedding, config.width) for layer in range(config.layers)
        )

    def forward(self, source: Tensor, lengths: Int[Tensor, "batch"]) -> Annotations:
        x, lengths = read(self.embedding, source, lengths)
        for layer in self.layers:
            x, tape = layer(self.dropout(x))
        last = (lengths - 1)[:, None, None]
        return Annotations(self.dropout(x), lengths, x.take_along_dim(last, 1)[:, 0], tape)
