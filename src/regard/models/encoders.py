"""Encoders: token ids in, annotations out."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import nn

from ..attention import padding
from ..layers import Dropout, EncoderLayer, Learned, Recurrence, Sinusoidal
from .annotations import Annotations

if TYPE_CHECKING:
    from jaxtyping import Int
    from torch import Tensor

    from . import config


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


class RecurrentEncoder(nn.Module):
    """h_j = [→h_j; ←h_j]: a GRU or LSTM in both directions (Bahdanau et al. 2015, 3.2) or one (Luong et al. 2015)."""

    def __init__(self, config: config.RecurrentEncoder, vocabulary: int) -> None:
        super().__init__()
        self.width = config.width * (2 if config.bidirectional else 1)
        self.embedding = embedding(vocabulary, config.embedding)
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

    def forward(self, tokens: Int[Tensor, "batch places"], lengths: Int[Tensor, "batch"]) -> Annotations:
        x = self.embedding(tokens)
        for layer in self.layers:
            x, summary = layer(self.dropout(x), lengths)
        return Annotations(self.dropout(x), lengths, summary)


class TransformerEncoder(nn.Module):
    """Self-attention and feed-forward, layer upon layer (Vaswani et al. 2017, section 3.1)."""

    def __init__(self, config: config.TransformerEncoder, vocabulary: int, longest: int) -> None:
        super().__init__()
        self.width = config.width
        self.embedding = embedding(vocabulary, config.width)
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
            )
            for _ in range(config.layers)
        )
        self.norm = nn.LayerNorm(config.width) if config.norm == "pre" else nn.Identity()

    def forward(self, tokens: Int[Tensor, "batch places"], lengths: Int[Tensor, "batch"]) -> Annotations:
        x = self.embedding(tokens) * math.sqrt(self.width)
        if self.positions is not None:
            x = self.positions(x)
        x = self.dropout(x)
        mask = padding(lengths)
        for layer in self.layers:
            x = layer(x, mask)
        x = self.norm(x)
        real = torch.arange(tokens.shape[1], device=tokens.device) < lengths[:, None]  # [batch, places]
        mean = (x * real[..., None]).sum(1) / lengths[:, None]
        return Annotations(x, lengths, mean.to(x.dtype))
