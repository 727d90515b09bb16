"""Encoders of sequences: embedded words or frames of sound in, annotations out."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import nn

from ...attention import padding
from ...layers import Dropout, EncoderLayer, Learned, Recurrence, Sinusoidal
from ..annotations import Annotations
from .encoder import Encoder

if TYPE_CHECKING:
    from jaxtyping import Float, Int
    from torch import Tensor

    from .. import config


def embedding(vocabulary: int, width: int) -> nn.Embedding:
    """A table whose rows have length about 1, with zeros for <pad>."""
    table = nn.Embedding(vocabulary, width, padding_idx=0)
    nn.init.normal_(table.weight, std=width**-0.5)
    nn.init.zeros_(table.weight[0])
    return table


def absolute_positions(kind: config.Positions, width: int, longest: int) -> nn.Module | None:
    """What is added to embeddings; rotary and ALiBi positions live inside the attention instead."""
    if kind == "sinusoidal":
        return Sinusoidal(width)
    return Learned(width, longest) if kind == "learned" else None


def read(
    embedding: nn.Module, source: Tensor, lengths: Int[Tensor, "batch"]
) -> tuple[Float[Tensor, "batch places width"], Int[Tensor, "batch"]]:
    """The source as vectors. Words stay as many as they are; of sound, samples become frames."""
    if isinstance(embedding, nn.Embedding):
        return embedding(source), lengths
    vectors, frames = embedding(source, lengths)
    return vectors, frames


class NoEncoder(Encoder):
    """Annotations without places: what a language model reads."""

    width = 0

    def forward(self, source: Tensor, lengths: Int[Tensor, "batch"]) -> Annotations:
        # A tensor of the model's own dtype does not exist: it has no parameters here. Nothing is read of these.
        nothing = torch.zeros(len(lengths), 0, device=lengths.device)
        return Annotations(nothing[:, None, :0].expand(-1, 0, 0), torch.zeros_like(lengths), nothing)


class RecurrentEncoder(Encoder):
    """h_j = [→h_j; ←h_j]: a GRU or LSTM in both directions (Bahdanau et al. 2015, 3.2) or one (Luong et al. 2015)."""

    def __init__(self, config: config.RecurrentEncoder, embedding: nn.Module) -> None:
        super().__init__()
        self.width = config.width * (2 if config.bidirectional else 1)
        self.embedding = embedding
        self.dropout = Dropout(config.dropout)
        self.layers = nn.ModuleList(
            Recurrence(
                config.cell,
                config.embedding if layer == 0 else self.width,
                config.width,
                bidirectional=config.bidirectional,
            )
            for layer in range(config.layers)
        )

    def forward(self, source: Tensor, lengths: Int[Tensor, "batch"]) -> Annotations:
        x, lengths = read(self.embedding, source, lengths)
        for layer in self.layers:
            x, summary = layer(self.dropout(x), lengths)
        return Annotations(self.dropout(x), lengths, summary)


class TransformerEncoder(Encoder):
    """Self-attention and feed-forward, layer upon layer (Vaswani et al. 2017, section 3.1)."""

    def __init__(self, config: config.TransformerEncoder, embedding: nn.Module, longest: int) -> None:
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
        x, lengths = read(self.embedding, source, lengths)
        if isinstance(self.embedding, nn.Embedding):
            x = x * math.sqrt(self.width)
        if self.positions is not None:
            x = self.positions(x)
        x = self.dropout(x)
        mask = padding(lengths)
        for layer in self.layers:
            x = layer(x, mask)
        x = self.norm(x)
        real = torch.arange(x.shape[1], device=x.device) < lengths[:, None]  # [batch, places]
        mean = (x * real[..., None]).sum(1) / lengths[:, None]
        return Annotations(x, lengths, mean.to(x.dtype))
