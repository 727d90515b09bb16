"""DecoderWriter: a decoder as ONNX operators, what is computed once from the annotations and one step of the loop."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from ..special_tokens import BEGIN, UNKNOWN
from .onnx_graph import (
    CLOSED,
    FLOAT,
    INTEGER,
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
    from collections.abc import Callable, Sequence

    from ..layers.recurrent import LSTMN
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
    self_weights: str | None = None  # over the tokens or states so far, [rows, maps, steps]


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


@dataclass
class TapeStep:
    """The results of a step: h_t, the tape with one more entry, and the weights over the entries before it."""

    hidden: str  # [rows, width]
    tape: Values
    weights: str  # [rows, steps]


def tape_shapes(width: int) -> dict[str, TensorShape]:
    """The tape: keys W_h h_i and values [h_i; c_i] of the steps so far, and of the next query W_h̃ h̃_{t−1}."""
    return {
        "keys": TensorShape(FLOAT, ("rows", "steps", width)),
        "values": TensorShape(FLOAT, ("rows", "steps", 2 * width)),
        "query": TensorShape(FLOAT, ("rows", width)),
    }


def zeros(g: OnnxGraph, rows: str, *sizes: int) -> str:
    """[rows, *sizes]; `rows` is [1]."""
    return g.op("Expand", g.constant(0.0), g.op("Concat", rows, g.shape(*sizes), axis=0))


def empty_tape(g: OnnxGraph, width: int, rows: str) -> Values:
    """The tape before the first step; `rows` is [1]."""
    keys, values = zeros(g, rows, 0, width), zeros(g, rows, 0, 2 * width)
    return {"keys": keys, "values": values, "query": zeros(g, rows, width)}


def write_entry(g: OnnxGraph, layer: LSTMN, tape: Values, hidden: str, cell: str) -> Values:
    """The tape with one more entry, h and c [rows, width]."""
    key, value = linear(g, hidden, layer.energy.key.weight), g.op("Concat", hidden, cell, axis=-1)
    entries = {"keys": key, "values": value}
    return tape | {
        name: g.op("Concat", tape[name], g.op("Unsqueeze", entry, g.shape(1)), axis=1)
        for name, entry in entries.items()
    }


def lstmn_inputs(g: OnnxGraph, layer: LSTMN, x: str) -> tuple[str, str]:
    """The parts of the gates and of the query that depend on x alone."""
    assert layer.cell.early is not None
    gates = linear(g, x, layer.cell.early, layer.cell.bias)
    return gates, linear(g, x, layer.energy.query.weight[:, : layer.width_in])


def lstmn_step(
    g: OnnxGraph,
    layer: LSTMN,
    inputs: tuple[str, str],
    tape: Values,
    *,
    late: str | None = None,
    added: str | None = None,
) -> TapeStep:
    """`LSTMN.step`: `inputs` are those of `lstmn_inputs`, `late` [rows, late] and `added` [rows, width]."""
    gates, query = inputs
    if late is not None and layer.cell.late is not None:
        gates = g.op("Add", gates, linear(g, late, layer.cell.late))
    context, weights = _look(g, layer, g.op("Add", query, tape["query"]), tape)
    before = g.ops("Split", context, outputs=2, axis=-1, num_outputs=2)  # h̃, c̃
    hidden, cell = cell_gates(g, layer.cell, gates, before, added)
    after = write_entry(g, layer, tape, hidden, cell)
    after["query"] = linear(g, before[0], layer.energy.query.weight[:, layer.width_in :])
    return TapeStep(hidden, after, weights)


def _look(g: OnnxGraph, layer: LSTMN, q: str, tape: Values) -> tuple[str, str]:
    """The context [rows, 2 width] and the weights [rows, steps]. A closed entry of zeros stands after the last, which
    has all the weight where the tape is empty, and none elsewhere: runtimes differ in sums of nothing."""
    rows, width = g.size(q, 0), layer.width
    open_entries = g.op("Concat", g.shape(1), g.size(tape["keys"], 1), axis=0)
    closed = g.op("Concat", g.op("Expand", g.constant(0.0), open_entries), g.constant([[CLOSED]]), axis=1)
    entries = {
        "keys": g.op("Concat", tape["keys"], zeros(g, rows, 1, width), axis=1),
        "values": g.op("Concat", tape["values"], zeros(g, rows, 1, 2 * width), axis=1),
        "closed": closed,  # [1, steps + 1]
    }
    weights = g.op("Softmax", additive_energies(g, q, layer.energy.weight, entries), axis=-1)
    return weighted_values(g, weights, entries), g.op("Slice", weights, g.shape(0), g.shape(-1), g.shape(1))


def lstmn_layer(g: OnnxGraph, x: str, layer: LSTMN) -> tuple[str, str, str]:
    """The hidden tape and the memory tape of x [batch, time, width_in], each [batch, time, width], and the weights,
    [batch, 1, time, time]: row t over the states before t, zeros from there on."""
    gates, queries = lstmn_inputs(g, layer, x)
    batch, time = g.size(x, 0), g.size(x, 1)
    names = list(tape_shapes(layer.width))
    first = empty_tape(g, layer.width, batch)

    def body(b: OnnxGraph, step: str, values: list[str]) -> tuple[list[str], str]:
        inputs = b.op("Gather", gates, step, axis=1), b.op("Gather", queries, step, axis=1)
        after = lstmn_step(b, layer, inputs, dict(zip(names, values, strict=True)))
        later = b.op("Sub", time, b.size(after.weights, 1))
        row = b.op("Expand", b.constant(0.0), b.op("Concat", batch, later, axis=0))
        return [after.tape[name] for name in names], b.op("Concat", after.weights, row, axis=1)

    *last, weights = g.loop(time, [first[name] for name in names], body)
    hidden, memory = g.ops("Split", last[names.index("values")], outputs=2, axis=-1, num_outputs=2)
    # onnxruntime stacks the rows of all steps, and the evaluator of the package `onnx` concatenates them.
    rows = g.op("Reshape", weights, g.op("Concat", time, batch, time, axis=0))
    return hidden, memory, g.op("Unsqueeze", g.op("Transpose", rows, perm=[1, 0, 2]), g.shape(1))


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
        if config.attention == "conditional":
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
        if self.config.scope == "global" or state is None:
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


_WRITERS: dict[str, Callable[[Any, int], DecoderWriter]] = {
    "rnn": RecurrentDecoderWriter,
    "lstmn": LSTMNDecoderWriter,
    "transformer": TransformerDecoderWriter,
    "tell": ShowAttendTellWriter,
}


def decoder_writer(kind: str, decoder: Any, memory: int) -> DecoderWriter:
    """The writer of a decoder over annotations `memory` wide, 0 where there are none."""
    if kind not in _WRITERS:
        raise ValueError(
            f"a decoder of kind {kind!r} is not exported to ONNX; exported are {', '.join(sorted(_WRITERS))}"
        )
    return _WRITERS[kind](decoder, memory)


class DecoderSwitchWriter(DecoderWriter):
    """`DecoderSwitch` over a `TagEncoder`: the memory has the number of each sentence's decoder among `tags`.

    All decoders have the same sizes, so their memories and states have the same shapes. A step computes every decoder
    for every row and keeps, row by row, the results of one.
    """

    def __init__(self, kind: str, decoder: Any, memory: int, tags: Sequence[int]) -> None:
        self.inner = [decoder_writer(kind, each, memory) for each in decoder.decoders]
        self.decoder, self.config, self.memory, self.tags = decoder, self.inner[0].config, memory, tags

    def shapes(self) -> DecoderShapes:
        shapes = self.inner[0].shapes()
        shapes.memory["decoder"] = TensorShape(INTEGER, ("sentences",))
        return shapes

    def source_ids(self, g: OnnxGraph, source: str) -> str:
        """<s> in place of the tag."""
        rest = g.op("Slice", source, g.shape(1), g.shape(2**31 - 1), g.shape(1))
        begin = g.op("Expand", g.constant(BEGIN, INTEGER), g.op("Concat", g.size(source, 0), g.shape(1), axis=0))
        return g.op("Concat", begin, rest, axis=1)

    def start(self, g: OnnxGraph, encoded: EncoderValues) -> tuple[Values, Values]:
        assert encoded.source is not None
        number, shapes = self._number(g, encoded.source), self.inner[0].shapes()
        memories, states = zip(*(writer.start(g, encoded) for writer in self.inner), strict=True)
        memory = self._select_values(g, number, memories, shapes.memory)
        return {**memory, "decoder": number}, self._select_values(g, number, states, shapes.state)

    def step(self, g: OnnxGraph, token: str, memory: Values, state: Values) -> StepValues:
        """Features [rows, decoders · width]: those of every decoder, side by side."""
        number = memory["decoder"]
        steps = [writer.step(g, token, memory, state) for writer in self.inner]
        after = self._select_values(g, number, [step.state for step in steps], self.inner[0].shapes().state)
        maps = []
        for values in ([step.weights for step in steps], [step.self_weights for step in steps]):
            each = [value for value in values if value is not None]
            maps.append(self._select(g, number, each, 3) if each else None)
        features = g.op("Concat", *(step.features for step in steps), axis=-1)
        return StepValues(features, after, *maps)

    def logits(self, g: OnnxGraph, step: StepValues, memory: Values) -> str:
        parts = g.ops("Split", step.features, outputs=len(self.inner), axis=-1, num_outputs=len(self.inner))
        each = [
            writer.logits(g, replace(step, features=features), memory)
            for writer, features in zip(self.inner, parts, strict=True)
        ]
        return self._select(g, memory["decoder"], each, 2)

    def _number(self, g: OnnxGraph, source: str) -> str:
        """The number of each sentence's tag, [batch]. Without a tag it is outside a table, which runtimes refuse."""
        first = g.op("Slice", source, g.shape(0), g.shape(1), g.shape(1))
        matches = g.cast(g.op("Equal", first, g.shape(*self.tags)), FLOAT)  # [batch, tags]
        none = g.op("Expand", g.constant(1.0), g.op("Concat", g.size(source, 0), g.shape(1), axis=0))
        place = g.op("ArgMax", g.op("Concat", matches, none, axis=1), axis=1, keepdims=0)
        return g.op("Gather", g.shape(*range(len(self.tags))), place)

    def _select_values(
        self, g: OnnxGraph, number: str, values: Sequence[Values], shapes: dict[str, TensorShape]
    ) -> Values:
        return {
            name: self._select(g, number, [each[name] for each in values], len(shape.shape))
            for name, shape in shapes.items()
        }

    def _select(self, g: OnnxGraph, number: str, values: list[str], axes: int) -> str:
        """Row by row one of the values, each [rows, …] with this many axes; one number may serve several rows."""
        chosen = values[0]
        for k, value in enumerate(values[1:], start=1):
            if value != chosen:
                own = g.op("Unsqueeze", g.op("Equal", number, g.constant(k, INTEGER)), g.shape(*range(1, axes)))
                chosen = g.op("Where", own, value, chosen)
        return chosen


class PointerDecoderWriter(DecoderWriter):
    """`PointerDecoder`: the memory has the ids of the source, and the logits are log p of the mixture."""

    def __init__(self, kind: str, decoder: Any, memory: int) -> None:
        super().__init__(decoder, memory)
        self.inner = decoder_writer(kind, decoder.decoder, memory)

    def shapes(self) -> DecoderShapes:
        shapes = self.inner.shapes()
        shapes.memory["source"] = TensorShape(INTEGER, ("sentences", "places"))
        return shapes

    def source_ids(self, g: OnnxGraph, source: str) -> str:
        return self._known(g, source)

    def start(self, g: OnnxGraph, encoded: EncoderValues) -> tuple[Values, Values]:
        memory, state = self.inner.start(g, encoded)
        assert encoded.source is not None
        return {**memory, "source": encoded.source}, state

    def step(self, g: OnnxGraph, token: str, memory: Values, state: Values) -> StepValues:
        return self.inner.step(g, self._known(g, token), memory, state)

    def logits(self, g: OnnxGraph, step: StepValues, memory: Values) -> str:
        decoder = self.decoder
        logits = linear_of(g, step.features, decoder.output)  # [rows, vocabulary]
        if decoder.slots:
            closed = torch.zeros(decoder.output.out_features)
            closed[decoder.first_slot :] = -torch.inf
            logits = g.op("Add", logits, g.constant(closed.numpy()))
        gate = g.op("Sigmoid", linear_of(g, step.features, decoder.gate))  # [rows, 1]
        assert step.weights is not None
        last = g.op("Slice", step.weights, g.shape(-decoder.heads), g.shape(2**31 - 1), g.shape(1))
        weights = g.op("ReduceMean", last, g.shape(1), keepdims=0)  # [rows, places]
        copied = g.op("Mul", g.op("Sub", g.constant(1.0), gate), weights)
        source = g.op("Expand", memory["source"], g.op("Shape", weights))  # one sentence may have several rows
        p = g.op("Mul", gate, g.op("Softmax", logits, axis=-1))
        p = g.op("ScatterElements", p, source, copied, axis=1, reduction="add")
        return g.op("Log", g.op("Max", p, g.constant(torch.finfo(torch.float32).tiny)))

    def _known(self, g: OnnxGraph, ids: str) -> str:
        """<unk> in place of the ids of unknown words."""
        unknown = g.op("GreaterOrEqual", ids, g.constant(self.decoder.first_slot, INTEGER))
        return g.op("Where", unknown, g.constant(UNKNOWN, INTEGER), ids)
