"""Decoders as ONNX operators: what is computed once from the annotations, and one step of the loop."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from .onnx_graph import FLOAT, INTEGER
from .onnx_layers import (
    CLOSED,
    LayerWriter,
    add_positions,
    as_integer,
    cell_gates,
    cell_step,
    closed_places,
    embed,
    keys_and_values,
    layer_norm,
    linear,
    linear_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from .onnx_encoders import EncoderValues
    from .onnx_graph import OnnxGraph

Values = dict[str, str]


@dataclass(frozen=True)
class TensorShape:
    """A value that goes from graph to graph: its type and its shape, names for sizes that vary."""

    dtype: str
    shape: tuple[int | str, ...]


@dataclass
class DecoderShapes:
    """`memory` is constant in the loop, one entry per sentence; `state` changes at each step, one entry per row."""

    memory: dict[str, TensorShape] = field(default_factory=dict)
    state: dict[str, TensorShape] = field(default_factory=dict)


@dataclass
class StepValues:
    """The results of a step: features for the output matrix, the new state, and weights of each kind."""

    features: str  # [rows, width]
    state: Values
    weights: str | None = None  # over the annotations, [rows, maps, places]
    self_weights: str | None = None  # over the tokens so far, [rows, maps, steps]


class DecoderWriter:
    """Writes one decoder: `start` into the graph of the encoder, `step` into a graph of its own."""

    def __init__(self, decoder: Any, memory: int) -> None:
        self.decoder, self.config, self.memory = decoder, decoder.config, memory

    def shapes(self) -> DecoderShapes:
        raise NotImplementedError

    def source_ids(self, g: OnnxGraph, source: str) -> str:
        """The source as the encoder reads it."""
        return source

    def start(self, g: OnnxGraph, encoded: EncoderValues) -> tuple[Values, Values]:
        """The memory and the first state."""
        raise NotImplementedError

    def step(self, g: OnnxGraph, token: str, memory: Values, state: Values) -> StepValues:
        raise NotImplementedError

    def logits(self, g: OnnxGraph, step: StepValues, memory: Values) -> str:
        """What the step predicts, [rows, vocabulary]."""
        return linear_of(g, step.features, self.decoder.output)


def decoder_writer(kind: str, decoder: Any, memory: int) -> DecoderWriter:
    """The writer of a decoder over annotations `memory` wide, 0 where there are none."""
    if kind not in _WRITERS:
        raise ValueError(
            f"a decoder of kind {kind!r} is not exported to ONNX; exported are {', '.join(sorted(_WRITERS))}"
        )
    return _WRITERS[kind](decoder, memory)


def _memory_shapes(width: int, values: int) -> dict[str, TensorShape]:
    return {
        "keys": TensorShape(FLOAT, ("sentences", "places", width)),
        "values": TensorShape(FLOAT, ("sentences", "places", values)),
        "closed": TensorShape(FLOAT, ("sentences", "places")),
    }


def _memory(g: OnnxGraph, keys: str, encoded: EncoderValues) -> Values:
    closed = closed_places(g, g.size(encoded.vectors, 1), encoded.lengths)
    return {"keys": keys, "values": encoded.vectors, "closed": closed}


def _additive_energies(g: OnnxGraph, q: str, weight: Any, memory: Values) -> str:
    """w · tanh(q + k_j), closed on padding, [rows, places]; q [rows, d] is projected."""
    hidden = g.op("Tanh", g.op("Add", g.op("Unsqueeze", q, g.shape(1)), memory["keys"]))
    energies = g.op("Squeeze", g.op("MatMul", hidden, g.weight(weight[:, None])), g.shape(2))
    return g.op("Add", energies, memory["closed"])


def _mixed(g: OnnxGraph, weights: str, memory: Values) -> str:
    """Σ_j w_j v_j, [rows, width]."""
    return g.op("Squeeze", g.op("MatMul", g.op("Unsqueeze", weights, g.shape(1)), memory["values"]), g.shape(1))


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
            shapes.memory = _memory_shapes(projected, self.memory)
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
            memory = {**_memory(g, self._keys(g, encoded.vectors), encoded), "lengths": encoded.lengths}
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
            energies = _additive_energies(g, q, energy.weight, memory)
        if self.decoder.local is None or state is None:
            weights = g.op("Softmax", energies, axis=-1)
            return _mixed(g, weights, memory), weights
        distance = self._distance(g, h, memory, state)
        window = g.constant(float(config.window))
        outside = g.op("Greater", g.op("Abs", distance), window)
        weights = g.op("Softmax", g.op("Where", outside, g.constant(CLOSED), energies), axis=-1)
        if config.scope == "local-p":
            ratio = g.op("Div", distance, window)
            weights = g.op("Mul", weights, g.op("Exp", g.op("Mul", g.op("Mul", ratio, ratio), g.constant(-2.0))))
        return _mixed(g, weights, memory), weights

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


class ShowAttendTellWriter(DecoderWriter):
    """`ShowAttendTellDecoder`: an LSTM with gated soft or hard attention, or none."""

    def shapes(self) -> DecoderShapes:
        row = TensorShape(FLOAT, ("rows", self.config.width))
        memory = {"summary": TensorShape(FLOAT, ("sentences", self.memory))}
        if self.decoder.energy is not None:
            memory = _memory_shapes(self.config.hidden, self.memory)
        return DecoderShapes(memory, {"hidden": row, "cell": row})

    def start(self, g: OnnxGraph, encoded: EncoderValues) -> tuple[Values, Values]:
        decoder = self.decoder
        memory = {"summary": encoded.summary}
        if decoder.energy is not None:
            memory = _memory(g, linear_of(g, encoded.vectors, decoder.energy.key), encoded)
        firsts = (("hidden", decoder.first_h), ("cell", decoder.first_c))
        return memory, {name: g.op("Tanh", linear_of(g, encoded.summary, first)) for name, first in firsts}

    def step(self, g: OnnxGraph, token: str, memory: Values, state: Values) -> StepValues:
        decoder = self.decoder
        y, h = embed(g, decoder.embedding, token), state["hidden"]
        gate = g.op("Sigmoid", linear_of(g, h, decoder.gate))  # [rows, 1]
        context, weights = memory.get("summary"), None
        if decoder.energy is not None:
            q = linear(g, h, decoder.energy.query.weight)
            energies = _additive_energies(g, q, decoder.energy.weight, memory)
            if self.config.attention == "hard":
                best = g.op("ArgMax", energies, axis=-1, keepdims=0)
                weights = g.op("OneHot", best, g.size(energies, 1), g.constant([0.0, 1.0]), axis=-1)
            else:
                weights = g.op("Softmax", energies, axis=-1)
            context = _mixed(g, weights, memory)
        assert context is not None
        context = g.op("Mul", gate, context)
        hidden, cell = cell_step(g, decoder.cell, y, context, [h, state["cell"]])
        total = g.op("Add", y, linear_of(g, hidden, decoder.from_state))
        features = g.op("Tanh", g.op("Add", total, linear_of(g, context, decoder.from_context)))
        maps = None if weights is None else g.op("Unsqueeze", weights, g.shape(1))
        return StepValues(features, {"hidden": hidden, "cell": cell}, maps)


_WRITERS: dict[str, Callable[[Any, int], DecoderWriter]] = {
    "rnn": RecurrentDecoderWriter,
    "transformer": TransformerDecoderWriter,
    "tell": ShowAttendTellWriter,
}
