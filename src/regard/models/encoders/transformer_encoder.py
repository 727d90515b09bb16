"""The Transformer encoder (Vaswani et al. 2017)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from torch import nn

from ...attention import padding
from ...layers import Dropout, EncoderLayer
from ...layers.positions import absolute_positions
from ..annotations import Annotations, masked_mean
from ..config import NormPlace, PositionKind, SequenceSource  # noqa: TC001  read at run time
from .encoder import Encoder, EncoderConfig
from .source_embedding import embed, source_embedding

if TYPE_CHECKING:
    from jaxtyping import Int
    from torch import Tensor

    from ..decoders.transformer_decoder import TransformerDecoderConfig


@dataclass(frozen=True)
class TransformerEncoderConfig(EncoderConfig):
    """Vaswani et al. 2017, section 3.1; `norm` says where the layer norms are."""

    kind: Literal["transformer"] = "transformer"
    reads: SequenceSource = "text"
    width: int = 256
    heads: int = 4
    key_heads: int = 0  # fewer heads for keys and values; 0 means as many as `heads`
    hidden: int = 1024  # of the feed-forward part
    layers: int = 4
    norm: NormPlace = "pre"
    positions: PositionKind = "sinusoidal"
    dropout: float = 0.1
    attention_dropout: float = 0.0  # of the attention weights

    def problems(self) -> list[str]:
        return super().problems() or width_problems(self)

    def build(self, vocabulary: int, longest: int) -> TransformerEncoder:
        return TransformerEncoder(self, source_embedding(self.reads, vocabulary, self.width), longest)


class TransformerEncoder(Encoder):
    """Layers of self-attention and feed-forward (Vaswani et al. 2017, section 3.1)."""

    def __init__(self, config: TransformerEncoderConfig, embedding: nn.Module, longest: int) -> None:
        super().__init__()
        self.width = config.width
        self.embedding = embedding
        self.positions = absolute_positions(config.positions, config.width, longest)
        self.dropout = Dropout(config.dropout)
        self.layers = nn.ModuleList(
            EncoderLayer(
                config.width,
                config.heads,
                config.hidden,
                key_heads=config.key_heads,
                norm=config.norm,
                positions=config.positions,
                dropout=config.dropout,
                attention_dropout=config.attention_dropout,
            )
            for _ in range(config.layers)
        )
        self.norm = nn.LayerNorm(config.width) if config.norm == "pre" else nn.Identity()

    def forward(self, source: Tensor, lengths: Int[Tensor, "batch"]) -> Annotations:
        x, lengths = embed(self.embedding, source, lengths)
        if isinstance(self.embedding, nn.Embedding):
            x = x * math.sqrt(self.width)
        if self.positions is not None:
            x = self.positions(x)
        x = self.dropout(x)
        mask = padding(lengths)
        for layer in self.layers:
            x = layer(x, mask)
        x = self.norm(x)
        return Annotations(x, lengths, masked_mean(x, lengths))


def width_problems(config: TransformerEncoderConfig | TransformerDecoderConfig) -> list[str]:
    """Widths and heads that do not divide each other as multi-head attention and its positions need."""
    wrong = []
    if config.width % config.heads:
        wrong.append(f"heads = {config.heads} does not divide width = {config.width}")
    if config.key_heads and config.heads % config.key_heads:
        wrong.append(f"key_heads = {config.key_heads} does not divide heads = {config.heads}")
    if config.positions == "sinusoidal" and config.width % 2:
        wrong.append(f'positions = "sinusoidal" needs an even width, and it is {config.width}')
    if config.positions == "rotary" and config.width // config.heads % 2:
        wrong.append(f'positions = "rotary" needs heads of an even width, and it is {config.width // config.heads}')
    return wrong
