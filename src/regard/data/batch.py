"""A batch of pairs as tensors."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

from ..special_tokens import BEGIN as BEGIN
from ..special_tokens import END as END
from ..special_tokens import PAD as PAD
from ..special_tokens import UNKNOWN as UNKNOWN

if TYPE_CHECKING:
    import torch
    from jaxtyping import Int, Shaped
    from torch import Tensor


@dataclass
class Batch:
    """`source` ends in </s>; `target` begins with <s> and ends in </s>; both are padded with <pad> on the right.

    Where the source is no text, `source` holds samples of sound [B, N], padded with silence, or pictures [B, H, W, 3].
    `rows` says which row of the corpus each sentence is. A row that only fills the batch up to a fixed shape has
    rows = −1, source length 1 and target length 1 (<s> alone, so it predicts nothing and adds nothing to a loss).
    """

    source: Shaped[Tensor, "batch *source"]
    source_lengths: Int[Tensor, "batch"]
    target: Int[Tensor, "batch target"]
    target_lengths: Int[Tensor, "batch"]
    rows: Int[Tensor, "batch"]

    def to(self, device: torch.device | str) -> Batch:
        return Batch(*(getattr(self, each.name).to(device) for each in fields(self)))
