"""The grid encoder: a small convolutional network over pictures, one annotation per cell of its last feature map."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

import torch
from torch import nn

from ...layers import Dropout, FeedForward
from ...layers.positions import GridPositions
from ..annotations import Annotations
from .encoder import Encoder, EncoderConfig

if TYPE_CHECKING:
    from jaxtyping import Float, Int, UInt8
    from torch import Tensor

STRIDE = 8


@dataclass(frozen=True)
class GridEncoderConfig(EncoderConfig):
    """A small convolutional network over pictures, trained from scratch: one annotation per 8 × 8 pixels."""

    capturable: ClassVar[bool] = True
    kind: Literal["grid"] = "grid"
    size: int = 64  # of the pictures, in pixels a side
    width: int = 128
    dropout: float = 0.0

    @property
    def reads(self) -> str:
        return "picture"

    def problems(self) -> list[str]:
        wrong = super().problems()
        if not wrong and (self.width % 4 or self.size % STRIDE):
            wrong = [f"width = {self.width} and size = {self.size} must be multiples of 4 and of {STRIDE}"]
        return wrong

    def build(self, vocabulary: int, longest: int) -> GridEncoder:
        return GridEncoder(self)


class HalvingConvolution(nn.Module):
    """x ↦ GELU(norm(conv(x))) at half the size, the norm over the channels of each cell alone (Ba et al. 2016).

    A window of 4 with stride 2 is centred on its cell; a window of 3 would be half a position off. A norm over the
    whole map would mix all cells, and attention weights would say less about what the model used.
    """

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(inputs, outputs, 4, stride=2, padding=1, bias=False)
        self.norm = nn.LayerNorm(outputs)

    def forward(self, x: Float[Tensor, "batch inputs rows columns"]) -> Float[Tensor, "batch outputs r c"]:
        y = self.norm(self.convolution(x).permute(0, 2, 3, 1))  # [batch, r, c, outputs]
        return nn.functional.gelu(y).permute(0, 3, 1, 2)


class GridEncoder(Encoder):
    """Three convolutions and a feed-forward part. A cell covers 8 × 8 pixels; its receptive field is 22 × 22.

    `GridPositions` are added, since the convolutions do not encode position.
    """

    def __init__(self, config: GridEncoderConfig) -> None:
        super().__init__()
        self.size, self.width = config.size, config.width
        half, quarter = config.width // 2, config.width // 4
        self.layers = nn.Sequential(
            HalvingConvolution(3, quarter), HalvingConvolution(quarter, half), HalvingConvolution(half, config.width)
        )
        self.feed = FeedForward(config.width, 2 * config.width, config.dropout)
        self.places = GridPositions(config.width)
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
