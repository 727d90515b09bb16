"""The convolutional encoder: filters over windows of words or frames of sound."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Literal, cast

import torch
from torch import nn

from ...layers import Dropout
from ..annotations import Annotations, masked_mean, zero_padding
from ..config_base import SequenceSource  # noqa: TC001  read at run time
from .encoder import Encoder, EncoderConfig
from .source_embedding import embed, source_embedding

if TYPE_CHECKING:
    from jaxtyping import Float, Int
    from torch import Tensor


@dataclass(frozen=True)
class ConvolutionEncoderConfig(EncoderConfig):
    """Filters over windows of several sizes, side by side (Kim 2014); several layers of them for sound."""

    capturable: ClassVar[bool] = True
    kind: Literal["cnn"] = "cnn"
    reads: SequenceSource = "text"
    embedding: int = 128
    width: int = 100  # filters of each window size
    windows: list[int] = field(default_factory=lambda: [3, 4, 5])
    layers: int = 1
    stride: int = 1  # of each layer
    dropout: float = 0.2

    @property
    def annotation_width(self) -> int:
        return self.width * len(self.windows)

    @property
    def one_annotation_per_token(self) -> bool:
        return self.stride == 1

    def build(self, vocabulary: int, longest: int) -> ConvolutionEncoder:
        return ConvolutionEncoder(self, vocabulary)


class WindowConvolution(nn.Module):
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
        x = zero_padding(x, lengths).mT  # [batch, width_in, places]
        outputs = []
        for bank in self.banks:
            size = bank.kernel_size[0]
            outputs.append(bank(nn.functional.pad(x, ((size - 1) // 2, size // 2))))
        return torch.relu(torch.cat(outputs, 1)).mT, (lengths + self.stride - 1) // self.stride


class ConvolutionEncoder(Encoder):
    """One layer over words is Kim's classifier under max pooling; several with strides read sound.

    From the second layer on the input is layer-normalised at each position. Batch normalisation would make sentences
    depend on each other.
    """

    def __init__(self, config: ConvolutionEncoderConfig, vocabulary: int) -> None:
        super().__init__()
        self.width = config.annotation_width
        self.embedding = source_embedding(config.reads, vocabulary, config.embedding)
        self.dropout = Dropout(config.dropout)
        widths = [config.embedding, *[self.width] * (config.layers - 1)]
        layers = (WindowConvolution(width, config.width, config.windows, config.stride) for width in widths)
        self.layers = cast("list[WindowConvolution]", nn.ModuleList(layers))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for width in widths[1:])

    def forward(self, source: Tensor, lengths: Int[Tensor, "batch"]) -> Annotations:
        x, lengths = embed(self.embedding, source, lengths)
        for number, layer in enumerate(self.layers):
            x = x if number == 0 else self.norms[number - 1](x)
            x, lengths = layer(self.dropout(x), lengths)
        return Annotations(x, lengths, masked_mean(x, lengths))
