"""The convolutional encoder: filters over short windows of words or frames."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import torch
from torch import nn

from ...layers import Dropout
from ..annotations import Annotations
from .encoder import Encoder
from .sequence_encoders import read

if TYPE_CHECKING:
    from jaxtyping import Float, Int
    from torch import Tensor

    from .. import config


class Windows(nn.Module):
    """c_j = relu(F [x_{j−a}; …; x_{j+b}] + f) for windows of several sizes, their results side by side (Kim 2014, 2).

    A window of k places reaches a = (k − 1) // 2 back and b = k // 2 on; beyond the ends are zeros. With a stride s
    only every s-th place has a result: n places become ⌈n/s⌉.
    """

    def __init__(self, width_in: int, width: int, windows: list[int], stride: int) -> None:
        super().__init__()
        self.stride = stride
        banks = (nn.Conv1d(width_in, width, size, stride=stride) for size in windows)
        self.banks = cast("list[nn.Conv1d]", nn.ModuleList(banks))

    def forward(
        self, x: Float[Tensor, "batch places width_in"], lengths: Int[Tensor, "batch"]
    ) -> tuple[Float[Tensor, "batch kept out"], Int[Tensor, "batch"]]:
        x = _real(x, lengths).mT  # [batch, width_in, places]; what a window sees past the end is nothing
        found = []
        for bank in self.banks:
            size = bank.kernel_size[0]
            found.append(bank(nn.functional.pad(x, ((size - 1) // 2, size // 2))))
        return torch.relu(torch.cat(found, 1)).mT, (lengths + self.stride - 1) // self.stride


class ConvolutionEncoder(Encoder):
    """One layer of windows over words is Kim's classifier under max pooling; several, with strides, listen to sound.

    From the second layer on, what goes in is normalised place by place, which keeps deep stacks trainable and, other
    than statistics over a batch, lets no sentence depend on another.
    """

    def __init__(self, config: config.ConvolutionEncoder, embedding: nn.Module) -> None:
        super().__init__()
        self.width = config.width * len(config.windows)
        self.embedding = embedding
        self.dropout = Dropout(config.dropout)
        widths = [config.embedding, *[self.width] * (config.layers - 1)]
        layers = (Windows(width, config.width, config.windows, config.stride) for width in widths)
        self.layers = cast("list[Windows]", nn.ModuleList(layers))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for width in widths[1:])

    def forward(self, source: Tensor, lengths: Int[Tensor, "batch"]) -> Annotations:
        x, lengths = read(self.embedding, source, lengths)
        for number, layer in enumerate(self.layers):
            x = x if number == 0 else self.norms[number - 1](x)
            x, lengths = layer(self.dropout(x), lengths)
        mean = _real(x, lengths).sum(1) / lengths[:, None]
        return Annotations(x, lengths, mean.to(x.dtype))


def _real(x: Float[Tensor, "batch places width"], lengths: Int[Tensor, "batch"]) -> Float[Tensor, "batch places width"]:
    """Zeros where there is padding."""
    return x * (torch.arange(x.shape[1], device=x.device) < lengths[:, None])[..., None]
