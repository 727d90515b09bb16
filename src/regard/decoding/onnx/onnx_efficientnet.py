"""EfficientNet as ONNX operators."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from ...models.encoders.pictures import Convolution, EfficientNet, InvertedBottleneck
    from .onnx_graph import OnnxGraph


def efficientnet(g: OnnxGraph, network: EfficientNet, x: str, side: int) -> str:
    """Cells [batch, 1280, rows, columns] of normalised pixels [batch, 3, side, side]."""
    x, side = _convolution(g, network.stem, x, side)
    x = _relu6(g, x)
    for block in network.blocks:
        x, side = _block(g, cast("InvertedBottleneck", block), x, side)
    x, _ = _convolution(g, network.head, x, side)
    return _relu6(g, x)


def _block(g: OnnxGraph, block: InvertedBottleneck, x: str, side: int) -> tuple[str, int]:
    y = x
    if block.expand is not None:
        y = _relu6(g, _convolution(g, block.expand, y, side)[0])
    y, side = _convolution(g, block.depthwise, y, side)
    y, side = _convolution(g, block.project, _relu6(g, y), side)
    return (g.op("Add", x, y) if block.adds else y), side


def _convolution(g: OnnxGraph, layer: Convolution, x: str, side: int) -> tuple[str, int]:
    """norm(conv(x)), and how many rows and columns it has."""
    before, after = layer.padding(side)
    options: dict[str, Any] = {"pads": [before, before, after, after], "strides": [layer.stride] * 2}
    y = g.op("Conv", x, g.weight(layer.weight), group=layer.groups, **options)
    norm = layer.norm
    values = (g.weight(value) for value in (norm.weight, norm.bias, norm.mean, norm.variance))
    return g.op("BatchNormalization", y, *values, epsilon=norm.epsilon), -(-side // layer.stride)


def _relu6(g: OnnxGraph, x: str) -> str:
    return g.op("Clip", x, g.constant(0.0), g.constant(6.0))
