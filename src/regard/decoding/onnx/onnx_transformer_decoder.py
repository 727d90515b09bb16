"""`TransformerDecoder` as ONNX operators."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from .onnx_decoder_writer import DecoderShapes, DecoderWriter, StepValues, TensorShape
from .onnx_graph import FLOAT
from .onnx_layers import LayerWriter, add_positions, closed_places, embed, keys_and_values, layer_norm

if TYPE_CHECKING:
    from .onnx_decoder_writer import Values
    from .onnx_encoders import EncoderValues
    from .onnx_graph import OnnxGraph


class TransformerDecoderWriter(DecoderWriter):
    """`TransformerDecoder`: the state is the cache of keys and values, which grows by one entry per step."""

    def shapes(self) -> DecoderShapes:
        config, shapes = self.config, DecoderShapes()
        heads, width = config.key_heads or config.heads, config.width // config.heads
        for layer in range(config.layers):
            for part in ("keys", "values"):
                shapes.state[f"{part}.{layer}"] = TensorShape(FLOAT, ("rows", heads, "steps", width))
                if self.memory:
                    place = TensorShape(FLOAT, ("sentences", heads, "places", width))
                    shapes.memory[f"source_{part}.{layer}"] = place
        if self.memory:
            shapes.memory["closed"] = TensorShape(FLOAT, ("sentences", "places"))
        return shapes

    def start(self, g: OnnxGraph, encoded: EncoderValues) -> tuple[Values, Values]:
        memory: Values = {"closed": closed_places(g, g.size(encoded.vectors, 1), encoded.lengths)}
        state: Values = {}
        heads, width = self.config.key_heads or self.config.heads, self.config.width // self.config.heads
        empty = g.op("Concat", g.size(encoded.vectors, 0), g.shape(heads, 0, width), axis=0)
        empty = g.op("Expand", g.constant(0.0), empty)
        for number, layer in enumerate(self.decoder.layers):
            k, v = keys_and_values(g, layer.cross, encoded.vectors, None)
            memory |= {f"source_keys.{number}": k, f"source_values.{number}": v}
            state |= {f"keys.{number}": empty, f"values.{number}": empty}
        return memory, state

    def step(self, g: OnnxGraph, token: str, memory: Values, state: Values) -> StepValues:
        decoder, width = self.decoder, self.config.width
        x = embed(g, decoder.embedding, g.op("Unsqueeze", token, g.shape(1)), math.sqrt(width))  # [rows, 1, width]
        positions = g.size(state["keys.0"], 2)  # of the one new token, [1]
        x = add_positions(g, x, decoder.positions, positions, width)
        after: Values = {}
        cross_maps, self_maps = [], []
        for number, layer in enumerate(decoder.layers):
            write = LayerWriter(g, layer)

            def keys(y: str, number: int = number, layer: Any = layer) -> tuple[str, str]:
                new = keys_and_values(g, layer.attention, y, positions)
                for part, value in zip(("keys", "values"), new, strict=True):
                    after[f"{part}.{number}"] = g.op("Concat", state[f"{part}.{number}"], value, axis=2)
                return after[f"keys.{number}"], after[f"values.{number}"]

            x, weights = write.attention(x, keys, None, positions)
            self_maps.append(weights)
            if layer.cross is not None:
                k, v = memory[f"source_keys.{number}"], memory[f"source_values.{number}"]
                x, weights = write.cross(x, k, v, memory["closed"])
                cross_maps.append(weights)
            x = write.feed_forward(x)
        features = g.op("Squeeze", layer_norm(g, x, decoder.norm), g.shape(1))
        one_query = g.shape(2)
        cross = g.op("Squeeze", g.op("Concat", *cross_maps, axis=1), one_query) if cross_maps else None
        return StepValues(features, after, cross, g.op("Squeeze", g.op("Concat", *self_maps, axis=1), one_query))
