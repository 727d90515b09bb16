"""The interface of every encoder, and of its configuration."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from torch import nn

from ..config_base import PartConfig

if TYPE_CHECKING:
    from jaxtyping import Int
    from torch import Tensor

    from ..annotations import Annotations


class EncoderConfig(PartConfig):
    """Base of the configurations of encoders."""

    @property
    def reads(self) -> str:
        """The source: text, sound, picture or none."""
        raise NotImplementedError

    @property
    def annotation_width(self) -> int:
        """Width of the annotation vectors."""
        return self.width

    @property
    def one_annotation_per_token(self) -> bool:
        return True

    def build(self, vocabulary: int, longest: int) -> Encoder:
        """The encoder: with a table of `vocabulary` words where it reads text, for at most `longest` positions."""
        raise NotImplementedError


class Encoder(nn.Module, ABC):
    """Maps a sentence, a picture or a sound to annotation vectors; `width` is 0 where there is nothing to read."""

    width: int

    @abstractmethod
    def forward(self, source: Tensor, lengths: Int[Tensor, "batch"]) -> Annotations:
        """`source` is a batch of ids [B, S], samples [B, N] or pixels [B, H, W, 3]; `lengths` excludes padding."""

    def pretrain(self) -> None:
        """Load pretrained weights, where the encoder starts from them. Called before training."""
