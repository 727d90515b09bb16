"""EfficientNet as ONNX operators."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from torch import nn

from ..layers.positions import sinusoids
from ..models import picture_encoders
from ..models.encoders import LOUDEST, SoundEmbedding
from .onnx_decoders import lstmn_layer
from .onnx_graph import (
    FLOAT,
    INTEGER,
    LayerWriter,
    add_positions,
    closed_places,
    embed,
    feed_forward,
    keys_and_values,
    layer_norm,
    linear_of,
    masked_mean,
    recurrent_layer,
    zero_padding,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..layers.sound import LogMel
    from ..models.picture_encoders import Convolution, EfficientNet, InvertedBottleneck
    from .onnx_graph import OnnxGraph


def efficientnet(g: OnnxGraph, network: EfficientNet, x: str, side: int) -> str:
    """Cells [batch, 1280, rows, columns] of normalised pixels [batch, 3, side, side]."""
    x, side = _efficientnet_convolution(g, network.stem, x, side)
    x = _relu6(g, x)
    for block in network.blocks:
        x, side = _block(g, cast("InvertedBottleneck", block), x, side)
    x, _ = _efficientnet_convolution(g, network.head, x, side)
    return _relu6(g, x)


def _block(g: OnnxGraph, block: InvertedBottleneck, x: str, side: int) -> tuple[str, int]:
    y = x
    if block.expand is not None:
        y = _relu6(g, _efficientnet_convolution(g, block.expand, y, side)[0])
    y, side = _efficientnet_convolution(g, block.depthwise, y, side)
    y, side = _efficientnet_convolution(g, block.project, _relu6(g, y), side)
    return (g.op("Add", x, y) if block.adds else y), side


def _efficientnet_convolution(g: OnnxGraph, layer: Convolution, x: str, side: int) -> tuple[str, int]:
    """norm(conv(x)), and how many rows and columns it has."""
    before, after = layer.padding(side)
    options: dict[str, Any] = {"pads": [before, before, after, after], "strides": [layer.stride] * 2}
    y = g.op("Conv", x, g.weight(layer.weight), group=layer.groups, **options)
    norm = layer.norm
    values = (g.weight(value) for value in (norm.weight, norm.bias, norm.mean, norm.variance))
    return g.op("BatchNormalization", y, *values, epsilon=norm.epsilon), -(-side // layer.stride)


def _relu6(g: OnnxGraph, x: str) -> str:
    return g.op("Clip", x, g.constant(0.0), g.constant(6.0))


@dataclass
class EncoderValues:
    """The names of an encoder's results, as `Annotations` has them."""

    vectors: str  # [batch, places, width]
    lengths: str  # [batch]
    summary: str  # [batch, width]
    weights: str | None = None  # of self-attention, [batch, maps, places, places]
    tape: str | None = None  # the memories of an LSTMN beside the vectors, [batch, places, width]
    source: str | None = None  # the ids of the source, for a decoder that copies them


def source_inputs(g: OnnxGraph, reads: str, encoder: Any) -> tuple[str, str]:
    """The inputs `source` and `lengths`: ids, samples between ±32768, or bytes of red, green and blue as floats."""
    if reads == "picture":
        source = g.input("source", FLOAT, ["batch", encoder.size, encoder.size, 3])
    elif reads == "sound":
        source = g.input("source", FLOAT, ["batch", "samples"])
    else:
        source = g.input("source", INTEGER, ["batch", "tokens"])
    return source, g.input("lengths", INTEGER, ["batch"])


def write_encoder(g: OnnxGraph, kind: str, encoder: Any, source: str, lengths: str) -> EncoderValues:
    if kind not in _WRITERS:
        raise ValueError(
            f"an encoder of kind {kind!r} is not exported to ONNX; exported are {', '.join(sorted(_WRITERS))}"
        )
    return _WRITERS[kind](g, encoder, source, lengths)


def _embedded(g: OnnxGraph, embedding: nn.Module, source: str, lengths: str) -> tuple[str, str]:
    if isinstance(embedding, SoundEmbedding):
        return _sound(g, embedding, source, lengths)
    assert isinstance(embedding, nn.Embedding)
    return embed(g, embedding, source), lengths


def _recurrent(g: OnnxGraph, encoder: Any, source: str, lengths: str) -> EncoderValues:
    x, lengths = _embedded(g, encoder.embedding, source, lengths)
    summary = ""
    for layer in encoder.layers:
        x, summary = recurrent_layer(g, x, layer, lengths)
    return EncoderValues(x, lengths, summary)


def _transformer(g: OnnxGraph, encoder: Any, source: str, lengths: str) -> EncoderValues:
    x, lengths = _embedded(g, encoder.embedding, source, lengths)
    if isinstance(encoder.embedding, nn.Embedding):
        x = g.op("Mul", x, g.constant(math.sqrt(encoder.width)))
    positions = g.positions(g.size(x, 1))
    x = add_positions(g, x, encoder.positions, positions, encoder.width)
    closed = closed_places(g, g.size(x, 1), lengths)
    maps = []
    for layer in encoder.layers:
        write = LayerWriter(g, layer)

        def keys(y: str, layer: Any = layer) -> tuple[str, str]:
            return keys_and_values(g, layer.attention, y, positions)

        x, weights = write.attention(x, keys, closed, positions)
        maps.append(weights)
        x = write.feed_forward(x)
    x = layer_norm(g, x, encoder.norm)
    return EncoderValues(x, lengths, masked_mean(g, x, lengths), g.op("Concat", *maps, axis=1))


def _lstmn(g: OnnxGraph, encoder: Any, source: str, lengths: str) -> EncoderValues:
    x, lengths = _embedded(g, encoder.embedding, source, lengths)
    tape, maps = "", []
    for layer in encoder.layers:
        x, tape, weights = lstmn_layer(g, x, layer)
        maps.append(weights)
    last = g.op("Unsqueeze", g.op("Sub", lengths, g.constant(1, INTEGER)), g.shape(1))
    summary = g.op("GatherND", x, last, batch_dims=1)  # [batch, width]
    return EncoderValues(x, lengths, summary, g.op("Concat", *maps, axis=1), tape)


def _bag(g: OnnxGraph, encoder: Any, source: str, lengths: str) -> EncoderValues:
    x = embed(g, encoder.embedding, source)
    return EncoderValues(x, lengths, masked_mean(g, x, lengths))


def _convolution(g: OnnxGraph, encoder: Any, source: str, lengths: str) -> EncoderValues:
    x, lengths = _embedded(g, encoder.embedding, source, lengths)
    for number, layer in enumerate(encoder.layers):
        x = x if number == 0 else layer_norm(g, x, encoder.norms[number - 1])
        x = g.op("Transpose", zero_padding(g, x, lengths), perm=[0, 2, 1])  # [batch, width, places]
        outputs = []
        for bank in layer.banks:
            size = bank.kernel_size[0]
            pads, stride = [(size - 1) // 2, size // 2], [layer.stride]
            outputs.append(g.op("Conv", x, g.weight(bank.weight), g.weight(bank.bias), pads=pads, strides=stride))
        x = g.op("Transpose", g.op("Relu", g.op("Concat", *outputs, axis=1)), perm=[0, 2, 1])
        stride_value = g.constant(layer.stride, INTEGER)
        lengths = g.op("Div", g.op("Add", lengths, g.constant(layer.stride - 1, INTEGER)), stride_value)
    return EncoderValues(x, lengths, masked_mean(g, x, lengths))


def _grid(g: OnnxGraph, encoder: Any, source: str, lengths: str) -> EncoderValues:
    x = g.op("Transpose", source, perm=[0, 3, 1, 2])
    x = g.op("Sub", g.op("Div", x, g.constant(127.5)), g.constant(1.0))
    for layer in encoder.layers:
        x = g.op("Conv", x, g.weight(layer.convolution.weight), strides=[2, 2], pads=[1, 1, 1, 1])
        x = g.op("Gelu", layer_norm(g, g.op("Transpose", x, perm=[0, 2, 3, 1]), layer.norm))
        x = g.op("Transpose", x, perm=[0, 3, 1, 2])
    x = feed_forward(g, g.op("Transpose", x, perm=[0, 2, 3, 1]), encoder.feed)
    return _cells(g, x, encoder.size // picture_encoders.GRID_STRIDE, encoder.width)


def _efficientnet(g: OnnxGraph, encoder: Any, source: str, lengths: str) -> EncoderValues:
    mean, spread = picture_encoders.PIXEL_MEAN, picture_encoders.PIXEL_SPREAD
    x = g.op("Sub", g.op("Div", source, g.constant(255.0)), g.constant(mean))
    x = g.op("Transpose", g.op("Div", x, g.constant(spread)), perm=[0, 3, 1, 2])
    x = g.op("Transpose", efficientnet(g, encoder.network, x, encoder.size), perm=[0, 2, 3, 1])
    return _cells(g, x, encoder.size // picture_encoders.STRIDE, encoder.width)


def _cells(g: OnnxGraph, x: str, side: int, width: int) -> EncoderValues:
    """The annotations of cells [batch, side, side, width]."""
    x = g.op("Add", x, g.constant(_grid_table(side, width)))
    x = g.op("Reshape", x, g.shape(0, side * side, width))
    lengths = g.op("Expand", g.constant([side * side], INTEGER), g.size(x, 0))
    return EncoderValues(x, lengths, g.op("ReduceMean", x, g.shape(1), keepdims=0))


def _grid_table(side: int, width: int) -> np.ndarray[Any, Any]:
    """What `GridPositions` adds, [side, side, width]."""
    axis = sinusoids(torch.arange(side), width // 2).float()
    shape = side, side, width // 2
    return torch.cat([axis[:, None].expand(shape), axis[None].expand(shape)], -1).numpy()


def _sound(g: OnnxGraph, embedding: SoundEmbedding, source: str, lengths: str) -> tuple[str, str]:
    logmel, bands = embedding.logmel, embedding.logmel.bands
    inside = g.op(
        "Less", g.op("Unsqueeze", g.positions(g.size(source, 1)), g.shape(0)), g.op("Unsqueeze", lengths, g.shape(1))
    )
    samples = g.op("Div", g.op("Mul", source, g.cast(inside, FLOAT)), g.constant(float(LOUDEST)))
    energies = _log_mel(g, logmel, samples)
    over = g.op("Max", g.op("Sub", lengths, g.constant(logmel.window, INTEGER)), g.constant(0, INTEGER))
    frames = g.op("Add", g.op("Div", over, g.constant(logmel.hop, INTEGER)), g.constant(1, INTEGER))
    count = g.op("Mul", g.cast(frames, FLOAT), g.constant(float(bands)))
    count = g.op("Unsqueeze", count, g.shape(1, 2))
    axes = g.shape(1, 2)
    mean = g.op("Div", g.op("ReduceSum", zero_padding(g, energies, frames), axes), count)
    centred = zero_padding(g, g.op("Sub", energies, mean), frames)
    variance = g.op("Div", g.op("ReduceSum", g.op("Mul", centred, centred), axes), count)
    spread = g.op("Max", g.op("Sqrt", variance), g.constant(1e-3))
    return linear_of(g, g.op("Div", centred, spread), embedding.map), frames


def _log_mel(g: OnnxGraph, logmel: LogMel, samples: str) -> str:
    """`LogMel` as a convolution with the sines and cosines of the discrete Fourier transform."""
    short = g.op("Sub", g.constant([logmel.window], INTEGER), g.size(samples, 1))
    pads = g.op("Concat", g.shape(0, 0, 0), g.op("Max", short, g.constant([0], INTEGER)), axis=0)
    x = g.op("Unsqueeze", g.op("Pad", samples, pads), g.shape(1))
    turns = np.outer(np.arange(logmel.size // 2 + 1), np.arange(logmel.window)) / logmel.size
    basis = np.concatenate([np.cos(2 * np.pi * turns), np.sin(2 * np.pi * turns)]) * logmel.hann.double().numpy()
    parts = g.op("Conv", x, g.constant(basis[:, None]), strides=[logmel.hop])  # [batch, 2 · frequencies, frames]
    real, imaginary = g.ops("Split", parts, outputs=2, axis=1, num_outputs=2)
    power = g.op("Add", g.op("Mul", real, real), g.op("Mul", imaginary, imaginary))
    power = g.op("MatMul", g.op("Transpose", power, perm=[0, 2, 1]), g.constant(logmel.bank.numpy()))
    return g.op("Log", g.op("Max", power, g.constant(logmel.floor)))


_WRITERS: dict[str, Callable[[OnnxGraph, Any, str, str], EncoderValues]] = {
    "rnn": _recurrent,
    "transformer": _transformer,
    "lstmn": _lstmn,
    "bag": _bag,
    "cnn": _convolution,
    "grid": _grid,
    "efficientnet": _efficientnet,
}


def write_pooling(g: OnnxGraph, kind: str, pooling: Any, encoded: EncoderValues, source: str) -> tuple[str, str | None]:
    """The pooled vector [batch, width], and the weight of every place [batch, places] where the pooling has one."""
    closed = closed_places(g, g.size(encoded.vectors, 1), encoded.lengths)
    if kind == "last":
        return encoded.summary, None
    if kind == "max":
        masked = g.op("Add", encoded.vectors, g.op("Unsqueeze", closed, g.shape(2)))
        places, width = g.size(encoded.vectors, 1), g.cast(g.size(encoded.vectors, 2), FLOAT)
        best = g.op("ArgMax", masked, axis=1, keepdims=0)  # [batch, width]
        hot = g.op("OneHot", best, places, g.constant([0.0, 1.0]), axis=1)  # [batch, places, width]
        share = g.op("Div", g.op("ReduceSum", hot, g.shape(2), keepdims=0), width)
        return g.op("ReduceMax", masked, g.shape(1), keepdims=0), share
    if kind == "static":
        weights = static_weights(g, pooling.idf, source, encoded.lengths)
    else:
        weights = g.op("Softmax", g.op("Add", _energies(g, kind, pooling, encoded, source), closed), axis=-1)
    pooled = g.op("MatMul", g.op("Unsqueeze", weights, g.shape(1)), encoded.vectors)
    return g.op("Squeeze", pooled, g.shape(1)), weights


def static_weights(g: OnnxGraph, idf: torch.Tensor, source: str, lengths: str) -> str:
    """TF-IDF weights of a text, [batch, places]; zeros where every word of it has idf 0."""
    rarity = g.op("Unsqueeze", g.op("Gather", g.weight(idf), source), g.shape(2))
    rarity = g.op("Squeeze", zero_padding(g, rarity, lengths), g.shape(2))
    total = g.op("Max", g.op("ReduceSum", rarity, g.shape(1)), g.constant(torch.finfo(torch.float32).tiny))
    return g.op("Div", rarity, total)


def _energies(g: OnnxGraph, kind: str, pooling: Any, encoded: EncoderValues, source: str) -> str:
    """Energies that softmax turns into weights, [batch, places]."""
    if kind == "mean":
        return g.op("Mul", closed_places(g, g.size(encoded.vectors, 1), encoded.lengths), g.constant(0.0))
    if kind == "learned":
        return g.op("Squeeze", g.op("Gather", g.weight(pooling.word.weight), source), g.shape(2))
    energy = pooling.energy
    q = (pooling.query @ energy.query.weight.mT).detach()  # [1, hidden]: one query for every source
    hidden = g.op("Tanh", g.op("Add", linear_of(g, encoded.vectors, energy.key), g.weight(q)))
    return g.op("Squeeze", g.op("MatMul", hidden, g.weight(energy.weight[:, None])), g.shape(2))
