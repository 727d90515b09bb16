"""The Transformer encoder (Vaswani et al. 2017)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from torch import nn

from ...attention import padding
from ...layers import Dropout, EncoderLayer
from ...layers.positions import absolute_positions
from ...layers.real_positions import RealPositions, position_arguments
from ..annotations import Annotations, masked_mean
from ..config_base import NormPlace, PartConfig, PositionKind, SequenceSource
from .encoder import Encoder, EncoderConfig
from .source_embedding import embed, source_embedding

if TYPE_CHECKING:
    from jaxtyping import Int
    from torch import Tensor


@dataclass(frozen=True)
class TransformerConfig(PartConfig):
    """What Transformer encoders and decoders have in common; `norm` says where the layer norms are."""

    kind: Literal["transformer"] = "transformer"
    width: int = 256
    heads: int = 4
    key_heads: int = 0  # fewer heads for keys and values; 0 means as many as `heads`
    hidden: int = 1024  # of the feed-forward part
    layers: int = 4
    norm: NormPlace = "pre"
    positions: PositionKind = "sinusoidal"
    residual: bool = True  # x + part(x); false leaves out the x
    scaled: bool = True  # energies over √d
    dropout: float = 0.1
    attention_dropout: float = 0.0  # of the attention weights

    def problems(self) -> list[str]:
        if wrong := super().problems():
            return wrong
        if self.width % self.heads:
            wrong.append(f"heads = {self.heads} does not divide width = {self.width}")
        if self.key_heads and self.heads % self.key_heads:
            wrong.append(f"key_heads = {self.key_heads} does not divide heads = {self.heads}")
        if self.positions == "sinusoidal" and self.width % 2:
            wrong.append(f'positions = "sinusoidal" needs an even width, and it is {self.width}')
        if self.positions == "rotary" and self.width // self.heads % 2:
            wrong.append(f'positions = "rotary" needs heads of an even width, and it is {self.width // self.heads}')
        return wrong

    def layer_options(self) -> dict[str, Any]:
        """The arguments of each layer."""
        names = ("width", "heads", "hidden", "key_heads", "norm", "positions", "residual", "scaled", "dropout")
        return {name: getattr(self, name) for name in (*names, "attention_dropout")}


@dataclass(frozen=True)
class TransformerEncoderConfig(TransformerConfig, EncoderConfig):
    """Vaswani et al. 2017, section 3.1."""

    capturable: ClassVar[bool] = True
    reads: SequenceSource = "text"

    def build(self, vocabulary: int, longest: int) -> TransformerEncoder:
        return TransformerEncoder(self, vocabulary, longest)


class TransformerEncoder(Encoder):
    """Layers of self-attention and feed-forward (Vaswani et al. 2017, section 3.1)."""

    def __init__(self, config: TransformerEncoderConfig, vocabulary: int, longest: int) -> None:
        super().__init__()
        self.width = config.width
        self.embedding = source_embedding(config.reads, vocabulary, config.width)
        self.positions = absolute_positions(config.positions, config.width, longest)
        self.dropout = Dropout(config.dropout)
        self.layers = nn.ModuleList(EncoderLayer(**config.layer_options()) for _ in range(config.layers))
        self.norm = nn.LayerNorm(config.width) if config.norm == "pre" else nn.Identity()

    def forward(self, source: Tensor, lengths: Int[Tensor, "batch"]) -> Annotations:
        x, lengths = embed(self.embedding, source, lengths)
        if isinstance(self.embedding, nn.Embedding):
            x = x * math.sqrt(self.width)
        if self.positions is not None:
            x = self.positions(x)
        mask = padding(lengths)
        parts = (self.dropout, *self.layers, self.norm)
        real = RealPositions.in_training(lengths, x.shape[1], parts) if self.training else None
        x = self.dropout(x if real is None else real.pack(x))
        for layer in self.layers:
            x = layer(x, mask, **position_arguments(real=real))
        x = self.norm(x)
        if real is not None:
            x = real.pad(x)
        return Annotations(x, lengths, masked_mean(x, lengths))
