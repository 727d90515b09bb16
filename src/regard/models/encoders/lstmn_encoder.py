"""The LSTMN encoder: each state attends over all states before it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from torch import nn

from ...layers import LSTMN, Dropout
from ..annotations import Annotations
from ..config_base import SequenceSource  # noqa: TC001  read at run time
from .encoder import Encoder, EncoderConfig
from .source_embedding import embed, source_embedding

if TYPE_CHECKING:
    from jaxtyping import Int
    from torch import Tensor


@dataclass(frozen=True)
class LSTMNEncoderConfig(EncoderConfig):
    """An LSTM that attends over all its states so far (Cheng et al. 2016, section 3.1)."""

    capturable: ClassVar[bool] = True
    recurrent: ClassVar[bool] = True
    kind: Literal["lstmn"] = "lstmn"
    reads: SequenceSource = "text"
    embedding: int = 256
    width: int = 256
    layers: int = 1
    dropout: float = 0.2

    def build(self, vocabulary: int, longest: int) -> LSTMNEncoder:
        return LSTMNEncoder(self, vocabulary)


class LSTMNEncoder(Encoder):
    """h_1 … h_n of an LSTMN, from left to right, and its memory tape (Cheng, Dong and Lapata 2016, section 3.1)."""

    def __init__(self, config: LSTMNEncoderConfig, vocabulary: int) -> None:
        super().__init__()
        self.width = config.width
        self.embedding = source_embedding(config.reads, vocabulary, config.embedding)
        self.dropout = Dropout(config.dropout)
        self.layers = nn.ModuleList(
            LSTMN(config.width if layer else config.embedding, config.width) for layer in range(config.layers)
        )

    def forward(self, source: Tensor, lengths: Int[Tensor, "batch"]) -> Annotations:
        x, lengths = embed(self.embedding, source, lengths)
        for layer in self.layers:
            x, tape = layer(self.dropout(x))
        last = (lengths - 1)[:, None, None]
        return Annotations(self.dropout(x), lengths, x.take_along_dim(last, 1)[:, 0], tape)
