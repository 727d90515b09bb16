"""Source embeddings: token ids or samples of sound to one vector per position."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import nn

if TYPE_CHECKING:
    from jaxtyping import Float, Int
    from torch import Tensor


def token_embedding(vocabulary: int, width: int) -> nn.Embedding:
    """An embedding table whose rows have length about 1, with zeros for <pad>."""
    table = nn.Embedding(vocabulary, width, padding_idx=0)
    nn.init.normal_(table.weight, std=width**-0.5)
    nn.init.zeros_(table.weight[0])
    return table


def source_embedding(reads: str, vocabulary: int, width: int) -> nn.Module:
    """The embedding of an encoder that reads text or sound."""
    if reads == "sound":
        from .sound_embedding import SoundEmbedding

        return SoundEmbedding(width)
    return token_embedding(vocabulary, width)


def embed(
    embedding: nn.Module, source: Tensor, lengths: Int[Tensor, "batch"]
) -> tuple[Float[Tensor, "batch places width"], Int[Tensor, "batch"]]:
    """Source vectors and their lengths: one vector per token, or one per frame of sound."""
    if isinstance(embedding, nn.Embedding):
        return embedding(source), lengths
    vectors, frames = embedding(source, lengths)
    return vectors, frames
