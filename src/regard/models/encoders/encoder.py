"""What every encoder does: read a source, give annotations."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from torch import nn

if TYPE_CHECKING:
    from jaxtyping import Int
    from torch import Tensor

    from ..annotations import Annotations


class Encoder(nn.Module, ABC):
    """A sentence, a picture or a sound in; annotation vectors `width` wide out, 0 where there is nothing to read."""

    width: int

    @abstractmethod
    def forward(self, source: Tensor, lengths: Int[Tensor, "batch"]) -> Annotations:
        """`source` is a batch's: ids [B, S], samples [B, N] or pixels [B, H, W, 3], with how much of each is real."""

    def pretrain(self) -> None:
        """Take over what others trained, where an encoder starts from that; before its own training, not after."""
