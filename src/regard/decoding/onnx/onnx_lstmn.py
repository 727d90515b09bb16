"""A layer of an LSTMN as ONNX operators: one step with its tape, for decoders, and a loop of steps, for encoders."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from .onnx_decoder_writer import TensorShape
from .onnx_graph import FLOAT
from .onnx_layers import CLOSED, cell_gates, linear
from .onnx_memory import additive_energies, weighted_values

if TYPE_CHECKING:
    from ...layers import LSTMN
    from .onnx_decoder_writer import Values
    from .onnx_graph import OnnxGraph


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
