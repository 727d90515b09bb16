"""`RecurrentDecoder` as ONNX operators."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .onnx_decoder_writer import DecoderShapes, DecoderWriter, StepValues, TensorShape
from .onnx_graph import FLOAT, INTEGER
from .onnx_layers import CLOSED, as_integer, cell_gates, cell_step, embed, linear, linear_of
from .onnx_memory import additive_energies, memory_shapes, memory_values, weighted_values

if TYPE_CHECKING:
    from .onnx_decoder_writer import Values
    from .onnx_encoders import EncoderValues
    from .onnx_graph import OnnxGraph


class RecurrentDecoderWriter(DecoderWriter):
    """`RecurrentDecoder`: without attention, Bahdanau, Luong or conditional, with all its options."""

    @property
    def _names(self) -> list[list[str]]:
        """The state's names, layer by layer."""
        parts = ["hidden"] if self.config.cell == "gru" else ["hidden", "cell"]
        return [[f"{part}.{layer}" for part in parts] for layer in range(self.config.layers)]

    @property
    def _feeds(self) -> bool:
        return bool(self.config.attention == "luong" and self.config.input_feeding)

    def shapes(self) -> DecoderShapes:
        config, shapes = self.config, DecoderShapes()
        if self.decoder.energy is not None:
            projected = self.memory if config.energy in ("dot", "general") else config.width
            shapes.memory = memory_shapes(projected, self.memory)
            shapes.memory["lengths"] = TensorShape(INTEGER, ("sentences",))
        elif self.memory:
            shapes.memory = {"summary": TensorShape(FLOAT, ("sentences", self.memory))}
        row = TensorShape(FLOAT, ("rows", config.width))
        shapes.state = {name: row for names in self._names for name in names}
        if self._feeds:
            shapes.state["fed"] = row
        if config.scope == "local-m":
            shapes.state["position"] = TensorShape(INTEGER, ("rows",))
        return shapes

    def start(self, g: OnnxGraph, encoded: EncoderValues) -> tuple[Values, Values]:
        decoder = self.decoder
        memory: Values = {"summary": encoded.summary}
        if decoder.energy is not None:
            memory = {**memory_values(g, self._keys(g, encoded.vectors), encoded), "lengths": encoded.lengths}
        state: Values = {}
        zeros = ""
        for names, bridge in zip(self._names, decoder.bridges, strict=True):
            first = g.op("Tanh", linear_of(g, encoded.summary, bridge))
            zeros = g.op("Mul", first, g.constant(0.0))
            state |= dict(zip(names, (first, zeros), strict=False))
        if self._feeds:
            state["fed"] = zeros
        if self.config.scope == "local-m":
            state["position"] = g.op("Mul", encoded.lengths, as_integer(g, 0))
        return memory, state

    def _keys(self, g: OnnxGraph, vectors: str) -> str:
        energy, kind = self.decoder.energy, self.config.energy
        if kind in ("dot", "general"):
            return vectors
        matrix = energy.key.weight if kind == "additive" else energy.joint.weight[:, energy.dim_q :]
        return linear(g, vectors, matrix)

    def step(self, g: OnnxGraph, token: str, memory: Values, state: Values) -> StepValues:
        decoder, config = self.decoder, self.config
        y = embed(g, decoder.embedding, token)
        hidden = [[state[name] for name in names] for names in self._names]
        context = weights = None
        after: Values = {}
        if config.attention == "bahdanau":
            context, weights = self._attend(g, hidden[0][0], memory, None)
        late = state["fed"] if self._feeds else context
        if decoder.context is not None:
            gates = linear(g, y, decoder.cells[0].early, decoder.cells[0].bias)
            gates = g.op("Add", gates, linear_of(g, memory["summary"], decoder.context))
            new = [cell_gates(g, decoder.cells[0], gates, hidden[0])]
        else:
            new = [cell_step(g, decoder.cells[0], y, late, hidden[0])]
        if decoder.second is not None:
            context, weights = self._attend(g, new[0][0], memory, None)
            new = [cell_step(g, decoder.second, None, context, new[0])]
        for cell, before in zip(list(decoder.cells)[1:], hidden[1:], strict=True):
            new.append(cell_step(g, cell, None, new[-1][0], before))
        for names, values in zip(self._names, new, strict=True):
            after |= dict(zip(names, values, strict=True))
        top = new[-1][0]
        if config.attention == "luong":
            context, weights = self._attend(g, top, memory, state)
            features = g.op("Tanh", linear(g, g.op("Concat", context, top, axis=-1), decoder.join.weight))
            if self._feeds:
                after["fed"] = features
            if config.scope == "local-m":
                after["position"] = g.op("Add", state["position"], as_integer(g, 1))
        else:
            features = self._join(g, top, y, context or memory.get("summary"))
        maps = None if weights is None else g.op("Unsqueeze", weights, g.shape(1))
        return StepValues(features, after, maps)

    def _attend(self, g: OnnxGraph, h: str, memory: Values, state: Values | None) -> tuple[str, str]:
        """The context [rows, memory] and the weights [rows, places] for a query h [rows, width]."""
        energy, config = self.decoder.energy, self.config
        q = h if config.energy == "dot" else linear(g, h, energy.query_matrix)
        if config.energy in ("dot", "general"):
            products = g.op("MatMul", memory["keys"], g.op("Unsqueeze", q, g.shape(2)))  # [rows, places, 1]
            energies = g.op("Add", g.op("Squeeze", products, g.shape(2)), memory["closed"])
        else:
            energies = additive_energies(g, q, energy.weight, memory)
        if self.decoder.local is None or state is None:
            weights = g.op("Softmax", energies, axis=-1)
            return weighted_values(g, weights, memory), weights
        distance = self._distance(g, h, memory, state)
        window = g.constant(float(config.window))
        outside = g.op("Greater", g.op("Abs", distance), window)
        weights = g.op("Softmax", g.op("Where", outside, g.constant(CLOSED), energies), axis=-1)
        if config.scope == "local-p":
            ratio = g.op("Div", distance, window)
            weights = g.op("Mul", weights, g.op("Exp", g.op("Mul", g.op("Mul", ratio, ratio), g.constant(-2.0))))
        return weighted_values(g, weights, memory), weights

    def _distance(self, g: OnnxGraph, h: str, memory: Values, state: Values) -> str:
        """The distance of every place from the middle of the window, [rows, places]; see `LocalAttention`."""
        local = self.decoder.local
        places = g.cast(g.positions(g.size(memory["keys"], 1)), FLOAT)
        if self.config.scope == "local-m":
            last = g.op("Sub", memory["lengths"], as_integer(g, 1))
            middle = g.cast(g.op("Min", last, state["position"]), FLOAT)
            return g.op("Sub", places, g.op("Unsqueeze", middle, g.shape(1)))
        share = g.op("Sigmoid", linear(g, g.op("Tanh", linear(g, h, local.inner.weight)), local.outer.weight))
        lengths = g.op("Unsqueeze", g.cast(memory["lengths"], FLOAT), g.shape(1))
        return g.op("Sub", places, g.op("Mul", share, lengths))

    def _join(self, g: OnnxGraph, top: str, y: str, context: str | None) -> str:
        parts = [top, y]
        if context is not None:
            # One context per row, also where one sentence has several rows.
            rows = g.op("Concat", g.size(top, 0), as_integer(g, self.memory), axis=0)
            parts.append(g.op("Expand", context, rows))
        joined = linear_of(g, g.op("Concat", *parts, axis=-1), self.decoder.join)
        if self.config.readout == "plain":
            return g.op("Tanh", joined)
        pairs = g.op("Reshape", joined, g.shape(0, -1, 2))
        return g.op("ReduceMax", pairs, g.shape(2), keepdims=0)
