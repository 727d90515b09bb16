"""An encoder for several decoders: the first source token names the decoder, and the encoder does not see which."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from ...special_tokens import BEGIN
from .encoder import Encoder

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jaxtyping import Int
    from torch import Tensor

    from ..annotations import Annotations


class TagEncoder(Encoder):
    """Replaces the tag that begins a sentence by <s> for all, so that annotations are the same for all decoders.

    The tag's number among `tags` goes into `Annotations.decoder`.
    """

    tags: Tensor

    def __init__(self, encoder: Encoder, tags: Sequence[int]) -> None:
        super().__init__()
        self.encoder, self.width = encoder, encoder.width
        self.register_buffer("tags", torch.tensor(tags), persistent=False)

    def forward(self, source: Tensor, lengths: Int[Tensor, "batch"]) -> Annotations:
        matches = source[:, :1] == self.tags
        if not bool(matches.any(1).all()):
            row = int((~matches.any(1)).nonzero()[0])
            raise ValueError(
                f"sentence {row + 1} does not begin with a tag that names its decoder, as in '<2es> i am from canada'"
            )
        neutral = torch.cat([torch.full_like(source[:, :1], BEGIN), source[:, 1:]], 1)
        annotations: Annotations = self.encoder(neutral, lengths)
        return replace(annotations, decoder=matches.int().argmax(1))

    def pretrain(self) -> None:
        self.encoder.pretrain()
