"""The recurrent encoder: a GRU or LSTM over words or frames of sound."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from torch import nn

from ...layers import Dropout, RecurrentLayer
from ..annotations import Annotations
from ..config_base import CellKind, SequenceSource  # noqa: TC001  read at run time
from .encoder import Encoder, EncoderConfig
from .source_embedding import drop_words, embed, source_embedding

if TYPE_CHECKING:
    from jaxtyping import Int
    from torch import Tensor


@dataclass(frozen=True)
class RecurrentEncoderConfig(EncoderConfig):
    """A GRU or LSTM over embedded words or frames of sound, in both directions (Bahdanau) or one (Luong)."""

    capturable: ClassVar[bool] = True
    recurrent: ClassVar[bool] = True
    kind: Literal["rnn"] = "rnn"
    reads: SequenceSource = "text"
    cell: CellKind = "gru"
    embedding: int = 256
    width: int = 256  # of each direction
    layers: int = 1
    bidirectional: bool = True
    dropout: float = 0.2
    word_dropout: float = 0.0  # of whole input words

    @property
    def annotation_width(self) -> int:
        return self.width * (2 if self.bidirectional else 1)

    def build(self, vocabulary: int, longest: int) -> RecurrentEncoder:
        return RecurrentEncoder(self, vocabulary)


class RecurrentEncoder(Encoder):
    """h_j = [→h_j; ←h_j]: a GRU or LSTM in both directions (Bahdanau et al. 2015, 3.2) or one (Luong et al. 2015)."""

    def __init__(self, config: RecurrentEncoderConfig, vocabulary: int) -> None:
        super().__init__()
        self.width = config.annotation_width
        self.embedding = source_embedding(config.reads, vocabulary, config.embedding)
        self.dropout, self.word_dropout = Dropout(config.dropout), Dropout(config.word_dropout)
        self.layers = nn.ModuleList(
            RecurrentLayer(
                config.cell,
                config.embedding if layer == 0 else self.width,
                config.width,
                bidirectional=config.bidirectional,
            )
            for layer in range(config.layers)
        )

    def forward(self, source: Tensor, lengths: Int[Tensor, "batch"]) -> Annotations:
        x, lengths = embed(self.embedding, source, lengths)
        x = drop_words(x, self.word_dropout)
        for layer in self.layers:
            x, summary = layer(self.dropout(x), lengths)
        return Annotations(self.dropout(x), lengths, summary)
