"""The encoder of a language model, which has no source."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

import torch

from ..annotations import Annotations
from .encoder import Encoder, EncoderConfig

if TYPE_CHECKING:
    from jaxtyping import Int
    from torch import Tensor


@dataclass(frozen=True)
class NoEncoderConfig(EncoderConfig):
    """No source: a decoder over it is a language model."""

    capturable: ClassVar[bool] = True
    kind: Literal["none"] = "none"

    @property
    def reads(self) -> str:
        return "none"

    @property
    def width(self) -> int:
        return 0

    def build(self, vocabulary: int, longest: int) -> NoEncoder:
        return NoEncoder()


class NoEncoder(Encoder):
    """Annotations without positions."""

    width = 0

    def forward(self, source: Tensor, lengths: Int[Tensor, "batch"]) -> Annotations:
        empty = torch.zeros(len(lengths), 0, device=lengths.device)  # no parameters here, so no dtype of the model
        return Annotations(empty[:, None, :0].expand(-1, 0, 0), torch.zeros_like(lengths), empty)
