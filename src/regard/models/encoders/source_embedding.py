"""Source embeddings: token ids or samples of sound to one vector per position."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn

from ...layers.log_mel import LogMel

if TYPE_CHECKING:
    from jaxtyping import Float, Int
    from torch import Tensor


LOUDEST = 32768  # of 16-bit samples


class SoundEmbedding(nn.Module):
    """Samples into one vector per frame: log-mel energies, made equally loud, and a linear map of them.

    Each sound's energies are shifted and scaled to mean 0 and variance 1 over its frames and bands together, so that
    nothing depends on how near the microphone stood; silence becomes zeros.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.logmel = LogMel()
        self.map = nn.Linear(self.logmel.bands, width)

    def forward(
        self, samples: Int[Tensor, "batch samples"], lengths: Int[Tensor, "batch"]
    ) -> tuple[Float[Tensor, "batch frames width"], Int[Tensor, "batch"]]:
        inside = torch.arange(samples.shape[1], device=samples.device) < lengths[:, None]  # silence past the end
        energies = self.logmel(samples * inside / LOUDEST)  # [batch, frames, bands]
        frames = self.logmel.frames(lengths)
        real = (torch.arange(energies.shape[1], device=samples.device) < frames[:, None])[..., None]
        count = frames[:, None, None] * self.logmel.bands
        centred = (energies - (energies * real).sum((1, 2), keepdim=True) / count) * real
        spread = (centred.square().sum((1, 2), keepdim=True) / count).sqrt().clamp_min(1e-3)
        x = (centred / spread).to(self.map.weight.dtype)
        return self.map(x), frames


def token_embedding(vocabulary: int, width: int) -> nn.Embedding:
    """An embedding table whose rows have length about 1, with zeros for <pad>."""
    table = nn.Embedding(vocabulary, width, padding_idx=0)
    nn.init.normal_(table.weight, std=width**-0.5)
    nn.init.zeros_(table.weight[0])
    return table


def source_embedding(reads: str, vocabulary: int, width: int) -> nn.Module:
    """The embedding of an encoder that reads text or sound."""
    return SoundEmbedding(width) if reads == "sound" else token_embedding(vocabulary, width)


def embed(
    embedding: nn.Module, source: Tensor, lengths: Int[Tensor, "batch"]
) -> tuple[Float[Tensor, "batch places width"], Int[Tensor, "batch"]]:
    """Source vectors and their lengths: one vector per token, or one per frame of sound."""
    if isinstance(embedding, nn.Embedding):
        return embedding(source), lengths
    vectors, frames = embedding(source, lengths)
    return vectors, frames


def drop_words(x: Float[Tensor, "*batch width"], dropout: nn.Dropout) -> Float[Tensor, "*batch width"]:
    """Zeros for words drawn at random while training (Gal and Ghahramani 2016, section 4.2)."""
    if not dropout.training or not dropout.p:
        return x
    dropped: Tensor = x * dropout(x.new_ones(*x.shape[:-1], 1))
    return dropped
