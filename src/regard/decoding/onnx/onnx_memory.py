"""The memory of decoders that attend, as ONNX operators: keys, values and padding, energies, weighted sums."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .onnx_decoder_writer import TensorShape
from .onnx_graph import FLOAT
from .onnx_layers import closed_places

if TYPE_CHECKING:
    from .onnx_decoder_writer import Values
    from .onnx_encoders import EncoderValues
    from .onnx_graph import OnnxGraph


def memory_shapes(width: int, values: int) -> dict[str, TensorShape]:
    """Keys `width` wide and values `values` wide of every place, and which places are padding."""
    return {
        "keys": TensorShape(FLOAT, ("sentences", "places", width)),
        "values": TensorShape(FLOAT, ("sentences", "places", values)),
        "closed": TensorShape(FLOAT, ("sentences", "places")),
    }


def memory_values(g: OnnxGraph, keys: str, encoded: EncoderValues) -> Values:
    """The values that `memory_shapes` describes."""
    closed = closed_places(g, g.size(encoded.vectors, 1), encoded.lengths)
    return {"keys": keys, "values": encoded.vectors, "closed": closed}


def additive_energies(g: OnnxGraph, q: str, weight: Any, memory: Values) -> str:
    """w · tanh(q + k_j), closed on padding, [rows, places]; q [rows, d] is projected."""
    hidden = g.op("Tanh", g.op("Add", g.op("Unsqueeze", q, g.shape(1)), memory["keys"]))
    energies = g.op("Squeeze", g.op("MatMul", hidden, g.weight(weight[:, None])), g.shape(2))
    return g.op("Add", energies, memory["closed"])


def weighted_values(g: OnnxGraph, weights: str, memory: Values) -> str:
    """Σ_j w_j v_j, [rows, width]."""
    return g.op("Squeeze", g.op("MatMul", g.op("Unsqueeze", weights, g.shape(1)), memory["values"]), g.shape(1))
