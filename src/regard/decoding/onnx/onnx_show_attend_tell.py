"""`ShowAttendTellDecoder` as ONNX operators."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .onnx_decoder_writer import DecoderShapes, DecoderWriter, StepValues, TensorShape
from .onnx_graph import FLOAT
from .onnx_layers import cell_step, embed, linear, linear_of
from .onnx_memory import additive_energies, memory_shapes, memory_values, weighted_values

if TYPE_CHECKING:
    from .onnx_decoder_writer import Values
    from .onnx_encoders import EncoderValues
    from .onnx_graph import OnnxGraph


class ShowAttendTellWriter(DecoderWriter):
    """`ShowAttendTellDecoder`: an LSTM with gated soft or hard attention, or none."""

    def shapes(self) -> DecoderShapes:
        row = TensorShape(FLOAT, ("rows", self.config.width))
        memory = {"summary": TensorShape(FLOAT, ("sentences", self.memory))}
        if self.decoder.energy is not None:
            memory = memory_shapes(self.config.hidden, self.memory)
        return DecoderShapes(memory, {"hidden": row, "cell": row})

    def start(self, g: OnnxGraph, encoded: EncoderValues) -> tuple[Values, Values]:
        decoder = self.decoder
        memory = {"summary": encoded.summary}
        if decoder.energy is not None:
            memory = memory_values(g, linear_of(g, encoded.vectors, decoder.energy.key), encoded)
        firsts = (("hidden", decoder.first_h), ("cell", decoder.first_c))
        return memory, {name: g.op("Tanh", linear_of(g, encoded.summary, first)) for name, first in firsts}

    def step(self, g: OnnxGraph, token: str, memory: Values, state: Values) -> StepValues:
        decoder = self.decoder
        y, h = embed(g, decoder.embedding, token), state["hidden"]
        gate = g.op("Sigmoid", linear_of(g, h, decoder.gate))  # [rows, 1]
        context, weights = memory.get("summary"), None
        if decoder.energy is not None:
            q = linear(g, h, decoder.energy.query.weight)
            energies = additive_energies(g, q, decoder.energy.weight, memory)
            if self.config.attention == "hard":
                best = g.op("ArgMax", energies, axis=-1, keepdims=0)
                weights = g.op("OneHot", best, g.size(energies, 1), g.constant([0.0, 1.0]), axis=-1)
            else:
                weights = g.op("Softmax", energies, axis=-1)
            context = weighted_values(g, weights, memory)
        assert context is not None
        context = g.op("Mul", gate, context)
        hidden, cell = cell_step(g, decoder.cell, y, context, [h, state["cell"]])
        total = g.op("Add", y, linear_of(g, hidden, decoder.from_state))
        features = g.op("Tanh", g.op("Add", total, linear_of(g, context, decoder.from_context)))
        maps = None if weights is None else g.op("Unsqueeze", weights, g.shape(1))
        return StepValues(features, {"hidden": hidden, "cell": cell}, maps)
