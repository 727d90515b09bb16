"""A small convolutional network of our own over pictures: every cell of its last map is an annotation."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn

from ...layers import Dropout, FeedForward
from ...layers.grid_positions import Plane
from ..annotations import Annotations
from .encoder import Encoder

if TYPE_CHECKING:
    from jaxtyping import Float, Int, UInt8
    from torch import Tensor

    from .. import config

STRIDE = 8


class Cells(nn.Module):
    """x ↦ GELU(norm(conv(x))) at half the size, the norm over the channels of each cell alone (Ba et al. 2016).

    A window of 4 at every second place has its middle in the middle of its cell; a window of 3 would be half a place
    off, and what a cell sees would not be where the cell is. A norm over the whole map would tell every cell about all
    the others, and where a model looks would say less about what it sees.
    """

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(inputs, outputs, 4, stride=2, padding=1, bias=False)
        self.norm = nn.LayerNorm(outputs)

    def forward(self, x: Float[Tensor, "batch inputs rows columns"]) -> Float[Tensor, "batch outputs r c"]:
        y = self.norm(self.convolution(x).permute(0, 2, 3, 1))  # [batch, r, c, outputs]
        return nn.functional.gelu(y).permute(0, 3, 1, 2)


class GridEncoder(Encoder):
    """Three convolutions and a feed-forward part; a cell stands for 8 × 8 pixels and sees 22 × 22 around its middle.

    Where it stands is added to it (`Plane`): nothing else could tell above from below.
    """

    def __init__(self, config: config.GridEncoder) -> None:
        super().__init__()
        if config.width % 4 or config.size % STRIDE:
            raise ValueError(
                f"a grid's width is a multiple of 4 and its pictures' size one of {STRIDE}; "
                f"they are {config.width} and {config.size}"
            )
        self.size, self.width = config.size, config.width
        half, quarter = config.width // 2, config.width // 4
        self.layers = nn.Sequential(Cells(3, quarter), Cells(quarter, half), Cells(half, config.width))
        self.feed = FeedForward(config.width, 2 * config.width, config.dropout)
        self.places = Plane(config.width)
        self.dropout = Dropout(config.dropout)

    def forward(self, source: UInt8[Tensor, "batch size size 3"], lengths: Int[Tensor, "batch"]) -> Annotations:
        check(source, self.size)
        pixels = source.to(next(self.parameters()).dtype).permute(0, 3, 1, 2) / 127.5 - 1
        cells = self.feed(self.layers(pixels).permute(0, 2, 3, 1))  # [batch, rows, columns, width]
        return annotated(self.dropout(self.places(cells)))


def check(source: Tensor, size: int) -> None:
    if source.dim() != 4 or source.shape[1:] != (size, size, 3):
        raise ValueError(f"this encoder reads pictures [batch, {size}, {size}, 3], got {list(source.shape)}")


def annotated(cells: Float[Tensor, "batch rows columns width"]) -> Annotations:
    """Row by row: cell (r, c) is annotation r · columns + c. No picture is padded."""
    vectors = cells.flatten(1, 2)
    lengths = torch.full(vectors.shape[:1], vectors.shape[1], device=vectors.device)  # bfloat16 has no 257
    return Annotations(vectors, lengths, vectors.mean(1).to(vectors.dtype))
