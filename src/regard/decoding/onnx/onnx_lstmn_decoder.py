"""`LSTMNDecoder` as ONNX operators."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import nn

from .onnx_decoder_writer import DecoderShapes, DecoderWriter, StepValues, TensorShape
from .onnx_graph import FLOAT
from .onnx_layers import embed, linear, linear_of
from .onnx_lstmn import empty_tape, lstmn_inputs, lstmn_step, tape_shapes, write_entry, zeros
from .onnx_memory import additive_energies, memory_shapes, memory_values, weighted_values

if TYPE_CHECKING:
    from .onnx_decoder_writer import Values
    from .onnx_encoders import EncoderValues
    from .onnx_graph import OnnxGraph


class LSTMNDecoderWriter(DecoderWriter):
    """`LSTMNDecoder`: the state is the tape of every layer, which grows by one entry per step.

    Over a source the first entry is computed from the encoder's summary, and the state has the recurrent part of the
    query of the source too.
    """

    @property
    def _deep(self) -> bool:
        return bool(self.config.fusion == "deep")

    def shapes(self) -> DecoderShapes:
        width, shapes = self.config.width, DecoderShapes()
        for layer in range(self.config.layers):
            shapes.state |= {f"{name}.{layer}": shape for name, shape in tape_shapes(width).items()}
        if self.memory:
            shapes.memory = memory_shapes(width, self.memory + width if self._deep else self.memory)
            shapes.state["source_query"] = TensorShape(FLOAT, ("rows", width))
        return shapes

    def start(self, g: OnnxGraph, encoded: EncoderValues) -> tuple[Values, Values]:
        decoder, width, rows = self.decoder, self.config.width, g.size(encoded.summary, 0)
        state: Values = {}
        firsts = [g.op("Tanh", linear_of(g, encoded.summary, bridge)) for bridge in decoder.bridges]
        for number, (layer, first) in enumerate(zip(decoder.layers, firsts, strict=True)):
            tape = write_entry(g, layer, empty_tape(g, width, rows), first, zeros(g, rows, width))
            state |= {f"{name}.{number}": value for name, value in tape.items()}
        memory = memory_values(g, linear_of(g, encoded.vectors, decoder.energy.key), encoded)
        if self._deep:
            memory["values"] = g.op("Concat", encoded.vectors, self._memories(g, encoded), axis=-1)
            state["source_query"] = zeros(g, rows, width)
        else:
            state["source_query"] = linear(g, firsts[0], decoder.energy.query.weight)
        return memory, state

    def _memories(self, g: OnnxGraph, encoded: EncoderValues) -> str:
        """The memory tape α of the encoder, as wide as this decoder."""
        tape, matrix = encoded.tape or encoded.vectors, self.decoder.tape
        return linear_of(g, tape, matrix) if isinstance(matrix, nn.Linear) else tape

    def step(self, g: OnnxGraph, token: str, memory: Values, state: Values) -> StepValues:
        decoder = self.decoder
        y = embed(g, decoder.embedding, token)
        context = weights = late = added = None
        after: Values = {}
        if self.memory:
            context, weights, added = self._attend(g, y, memory, state)
            late = None if self._deep else context
        x, self_maps = y, []
        for number, layer in enumerate(decoder.layers):
            tape = {name: state[f"{name}.{number}"] for name in tape_shapes(layer.width)}
            step = lstmn_step(g, layer, lstmn_inputs(g, layer, x), tape, late=late, added=added)
            if self.memory and number == 0:
                early = self.config.embedding if self._deep else 0
                read = context if self._deep and context else step.hidden
                after["source_query"] = linear(g, read, decoder.energy.query.weight[:, early:])
            after |= {f"{name}.{number}": value for name, value in step.tape.items()}
            self_maps.append(g.op("Unsqueeze", step.weights, g.shape(1)))
            x, late, added = step.hidden, None, None  # only the first layer reads the source
        parts = [x, y] if context is None else [x, y, context]
        features = g.op("Tanh", linear_of(g, g.op("Concat", *parts, axis=-1), decoder.join))
        maps = None if weights is None else g.op("Unsqueeze", weights, g.shape(1))
        return StepValues(features, after, maps, g.op("Concat", *self_maps, axis=1))

    def _attend(self, g: OnnxGraph, y: str, memory: Values, state: Values) -> tuple[str, str, str | None]:
        """γ̃ [rows, memory], the weights [rows, places], and r ⊙ α̃ [rows, width] of deep fusion."""
        decoder, early = self.decoder, self.config.embedding
        q = state["source_query"]
        if self._deep:
            q = g.op("Add", linear(g, y, decoder.energy.query.weight[:, :early]), q)
        weights = g.op("Softmax", additive_energies(g, q, decoder.energy.weight, memory), axis=-1)
        context = weighted_values(g, weights, memory)
        if not self._deep:
            return context, weights, None
        sizes = g.shape(self.memory, self.config.width)
        context, memories = g.ops("Split", context, sizes, outputs=2, axis=-1)
        gate = g.op("Sigmoid", linear_of(g, g.op("Concat", y, context, axis=-1), decoder.gate))
        return context, weights, g.op("Mul", gate, memories)
