"""Position encodings of a grid: one sinusoidal encoding of the row, one of the column."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn

from .positions import SinusoidalPositions

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor


class GridPositions(nn.Module):
    """Adds PE(row) to the first half of each cell's vector and PE(column) to the second (`SinusoidalPositions`)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        if width % 4:
            raise ValueError(f"places in a plane need a width that 4 divides, got {width}")
        self.axis = SinusoidalPositions(width // 2)

    def forward(self, x: Float[Tensor, "batch rows columns width"]) -> Float[Tensor, "batch rows columns width"]:
        down, across = x.chunk(2, dim=-1)
        return torch.cat([self.axis(down.transpose(1, 2)).transpose(1, 2), self.axis(across)], dim=-1)
