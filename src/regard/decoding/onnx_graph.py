"""An ONNX graph under construction: operators are added one by one, and values are passed on by name."""

from __future__ import annotations

import math
from itertools import count
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from ..attention.modifiers import BASE, Alibi, Modified, geometric_rates
from ..layers.positions import LearnedPositions

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor

    from ..layers.recurrent import RecurrentCell, RecurrentLayer
    from ..layers.transformer import MultiHead, Residual, TransformerLayer

OPSET = 20  # the first with Gelu
IR_VERSION = 10  # that of ONNX 1.16: older runtimes refuse newer ones
FLOAT, INTEGER = "float32", "int64"


class OnnxGraph:
    """Nodes, weights, inputs and outputs of one graph. Every method returns the names of the values it adds.

    Weights that float16 holds exactly are stored in it, with a cast to float32: the models that ship are written so,
    and their files stay as small.
    """

    def __init__(self, name: str, outer: OnnxGraph | None = None) -> None:
        """With `outer`, the body of a loop in that graph: it sees its values, and its weights are stored there."""
        self._onnx, self._name, self._outer = library(), name, outer
        self._numbers: count[int] = count() if outer is None else outer._numbers  # one name is never used twice
        self._nodes: list[Any] = []
        self._initializers: list[Any] = []
        self._inputs: list[Any] = []
        self._outputs: list[Any] = []
        self._weights: dict[tuple[int, tuple[int, ...], tuple[int, ...]], str] = {}
        self._transposed: dict[str, str] = {}
        self._kept: list[Tensor] = []  # whose addresses are keys of `_weights`

    def input(self, name: str, dtype: str, shape: Sequence[int | str]) -> str:
        self._inputs.append(self._value(name, dtype, shape))
        return name

    def output(self, name: str, value: str, dtype: str, shape: Sequence[int | str]) -> None:
        self._nodes.append(self._onnx.helper.make_node("Identity", [value], [name]))
        self._outputs.append(self._value(name, dtype, shape))

    def op(self, kind: str, *inputs: str, **attributes: Any) -> str:
        """The only output of an operator; an input "" is left out."""
        return self.ops(kind, *inputs, outputs=1, **attributes)[0]

    def ops(self, kind: str, *inputs: str, outputs: int, **attributes: Any) -> list[str]:
        number = next(self._numbers)
        names = [f"{kind}_{number}_{i}" for i in range(outputs)]
        self._nodes.append(self._onnx.helper.make_node(kind, list(inputs), names, **attributes))
        return names

    def constant(self, value: Any, dtype: str = FLOAT) -> str:
        return self._initializer(np.asarray(value, dtype=dtype))

    def shape(self, *sizes: int) -> str:
        """A shape for Reshape, or a list of axes."""
        return self.constant(sizes, INTEGER)

    def weight(self, tensor: Tensor) -> str:
        """A parameter. One that is used twice, as a tied embedding is, is stored once."""
        if self._outer is not None:
            return self._outer.weight(tensor)
        tensor = tensor.detach()
        key = tensor.data_ptr(), tuple(tensor.shape), tuple(tensor.stride())
        if key not in self._weights:
            self._kept.append(tensor)
            wide = tensor.cpu().float()
            half = wide.half()
            if torch.equal(half.float(), wide):
                stored = self._initializer(half.contiguous().numpy())
                self._weights[key] = self.op("Cast", stored, to=self._onnx.TensorProto.FLOAT)
            else:
                self._weights[key] = self._initializer(wide.contiguous().numpy())
        return self._weights[key]

    def transposed(self, matrix: Tensor) -> str:
        """Wᵀ of a parameter W. In a loop it is computed once, before the first step."""
        if self._outer is not None:
            return self._outer.transposed(matrix)
        weight = self.weight(matrix)
        if weight not in self._transposed:
            self._transposed[weight] = self.op("Transpose", weight, perm=[1, 0])
        return self._transposed[weight]

    def loop(
        self, steps: str, first: Sequence[str], body: Callable[[OnnxGraph, str, list[str]], tuple[list[str], str]]
    ) -> list[str]:
        """As many `steps` [1] of a body, each from the values of the last: (graph, step, values) → (values, output).

        Returns the values after the last step, and the outputs of all steps, stacked. The values and outputs are
        floats; values may change their shape from step to step.
        """
        g = OnnxGraph(f"body_{next(self._numbers)}", self)
        step, condition = (f"{name}_{next(self._numbers)}" for name in ("step", "condition"))
        names = [f"before_{next(self._numbers)}" for _ in first]
        after, output = body(g, step, names)
        inputs = [self._value(step, INTEGER, []), self._value(condition, "bool", [])]
        inputs += [self._value(name, FLOAT, None) for name in names]
        results = [g.op("Identity", value) for value in (condition, *after, output)]
        outputs = [self._value(results[0], "bool", []), *(self._value(name, FLOAT, None) for name in results[1:])]
        graph = self._onnx.helper.make_graph(g._nodes, g._name, inputs, outputs)
        limit, always = self.op("Squeeze", steps), self.constant(True, "bool")
        return self.ops("Loop", limit, always, *first, outputs=len(first) + 1, body=graph)

    def cast(self, value: str, dtype: str) -> str:
        return self.op("Cast", value, to=self._type(dtype))

    def size(self, value: str, axis: int) -> str:
        """The size of one axis, [1]."""
        return self.op("Shape", value, start=axis, end=axis + 1)

    def positions(self, count: str, first: str | None = None) -> str:
        """first, first + 1, …, as int64 [count]; `count` and `first` are [1]."""
        zero, one = self.constant(0, INTEGER), self.constant(1, INTEGER)
        start = zero if first is None else self.op("Squeeze", first)
        end = self.op("Squeeze", count)
        return self.op("Range", start, end if first is None else self.op("Add", start, end), one)

    def build(self) -> Any:
        """The finished model, checked."""
        helper = self._onnx.helper
        graph = helper.make_graph(self._nodes, self._name, self._inputs, self._outputs, self._initializers)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], producer_name="regard")
        model.ir_version = IR_VERSION
        self._onnx.checker.check_model(model)
        return model

    def _initializer(self, array: np.ndarray[Any, Any]) -> str:
        if self._outer is not None:
            return self._outer._initializer(array)
        name = f"weight_{len(self._initializers)}"
        self._initializers.append(self._onnx.numpy_helper.from_array(array, name))
        return name

    def _type(self, dtype: str) -> int:
        return int(self._onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))

    def _value(self, name: str, dtype: str, shape: Sequence[int | str] | None) -> Any:
        sizes = None if shape is None else list(shape)
        return self._onnx.helper.make_tensor_value_info(name, self._type(dtype), sizes)


def library() -> Any:
    """The package `onnx`, or an error that says how to install it."""
    try:
        import onnx
    except ModuleNotFoundError as missing:
        raise ValueError("ONNX is not installed; install it with: pip install 'regard[export]'") from missing
    return onnx


CLOSED = -1e30
"""Added to the energies of padding. Its softmax weight is exactly 0 in float32, as that of −∞ is."""


def linear(g: OnnxGraph, x: str, weight: torch.Tensor, bias: torch.Tensor | None = None) -> str:
    """x Wᵀ + b."""
    y = g.op("MatMul", x, g.transposed(weight))
    return y if bias is None else g.op("Add", y, g.weight(bias))


def linear_of(g: OnnxGraph, x: str, module: Any) -> str:
    return linear(g, x, module.weight, module.bias)


def layer_norm(g: OnnxGraph, x: str, norm: nn.Module) -> str:
    if not isinstance(norm, nn.LayerNorm):  # nn.Identity, after layers that end in a norm
        return x
    return g.op("LayerNormalization", x, g.weight(norm.weight), g.weight(norm.bias), axis=-1, epsilon=norm.eps)


def real_places(g: OnnxGraph, count: str, lengths: str) -> str:
    """True before each sentence's length, [batch, count]."""
    places = g.op("Unsqueeze", g.positions(count), g.shape(0))
    return g.op("Less", places, g.op("Unsqueeze", lengths, g.shape(1)))


def closed_places(g: OnnxGraph, count: str, lengths: str) -> str:
    """0 before each sentence's length and `CLOSED` from there on, [batch, count]."""
    real = real_places(g, count, lengths)
    return g.op("Where", real, g.constant(0.0), g.constant(CLOSED))


def zero_padding(g: OnnxGraph, x: str, lengths: str) -> str:
    """x [batch, places, width] with zeros on padding."""
    real = g.cast(real_places(g, g.size(x, 1), lengths), FLOAT)
    return g.op("Mul", x, g.op("Unsqueeze", real, g.shape(2)))


def masked_mean(g: OnnxGraph, x: str, lengths: str) -> str:
    total = g.op("ReduceSum", zero_padding(g, x, lengths), g.shape(1), keepdims=0)
    return g.op("Div", total, g.op("Unsqueeze", g.cast(lengths, FLOAT), g.shape(1)))


def angles(g: OnnxGraph, positions: str, planes: int) -> tuple[str, str]:
    """The cosines and sines of p · base^(−i/planes), each [positions, planes], from angles in float64."""
    rates = g.constant(geometric_rates(planes, BASE).numpy(), "float64")
    angle = g.op("Mul", g.op("Unsqueeze", g.cast(positions, "float64"), g.shape(1)), rates)
    return g.cast(g.op("Cos", angle), FLOAT), g.cast(g.op("Sin", angle), FLOAT)


def add_positions(g: OnnxGraph, x: str, module: nn.Module | None, positions: str, width: int) -> str:
    """x [batch, time, width] with the module's positions added; None adds nothing."""
    if module is None:
        return x
    if isinstance(module, LearnedPositions):
        return g.op("Add", x, g.op("Gather", g.weight(module.table), positions))
    cos, sin = (g.op("Unsqueeze", part, g.shape(2)) for part in angles(g, positions, width // 2))
    table = g.op("Reshape", g.op("Concat", sin, cos, axis=2), g.shape(-1, width))  # sin and cos take turns
    return g.op("Add", x, table)


def rotate(g: OnnxGraph, x: str, positions: str, width: int) -> str:
    """Rotary positions: plane (x_i, x_{i + d/2}) of x [batch, heads, time, d] is turned by its position's angle."""
    cos, sin = angles(g, positions, width // 2)
    left, right = g.ops("Split", x, outputs=2, axis=-1, num_outputs=2)
    first = g.op("Sub", g.op("Mul", left, cos), g.op("Mul", right, sin))
    return g.op("Concat", first, g.op("Add", g.op("Mul", right, cos), g.op("Mul", left, sin)), axis=-1)


def keys_and_values(g: OnnxGraph, attention: MultiHead, memory: str, positions: str | None) -> tuple[str, str]:
    """Keys and values of a memory [batch, places, width], each [batch, key_heads, places, d]."""
    heads, width = attention.key_heads, attention.head_width
    both = linear_of(g, memory, attention.key_value)
    k, v = (
        g.op(
            "Transpose",
            g.op("Reshape", part, g.shape(0, -1, heads, width)),
            perm=[0, 2, 1, 3],
        )
        for part in g.ops("Split", both, outputs=2, axis=-1, num_outputs=2)
    )
    return (k if attention.rotary is None or positions is None else rotate(g, k, positions, width)), v


def multihead(
    g: OnnxGraph, attention: MultiHead, x: str, k: str, v: str, closed: str | None, positions: str | None
) -> tuple[str, str]:
    """The output [batch, queries, width] and the weights [batch, heads, queries, places].

    `closed` [batch, places] is added to the energies; `positions` are those of the queries.
    """
    heads, width = attention.heads, attention.head_width
    q = g.op("Reshape", linear_of(g, x, attention.query), g.shape(0, -1, heads, width))
    q = g.op("Transpose", q, perm=[0, 2, 1, 3])
    if attention.rotary is not None and positions is not None:
        q = rotate(g, q, positions, width)
    k, v = (_shared_heads(g, part, attention) for part in (k, v))
    energy: Any = attention.energy.energy if isinstance(attention.energy, Modified) else attention.energy
    q = g.op("Mul", q, g.constant(1 / math.sqrt(width) if energy.scale is None else energy.scale))
    energies = g.op("MatMul", q, g.op("Transpose", k, perm=[0, 1, 3, 2]))
    if isinstance(attention.energy, Modified) and positions is not None:
        energies = g.op("Sub", energies, _alibi(g, heads, positions, g.size(k, 2)))
    if closed is not None:
        energies = g.op("Add", energies, g.op("Unsqueeze", closed, g.shape(1, 2)))
    weights = g.op("Softmax", energies, axis=-1)
    z = g.op("Transpose", g.op("MatMul", weights, v), perm=[0, 2, 1, 3])
    return linear_of(g, g.op("Reshape", z, g.shape(0, -1, heads * width)), attention.output), weights


def _shared_heads(g: OnnxGraph, x: str, attention: MultiHead) -> str:
    """Each key head once for every query head that shares it."""
    groups = attention.heads // attention.key_heads
    if groups == 1:
        return x
    several = g.op("Expand", g.op("Unsqueeze", x, g.shape(2)), g.shape(1, 1, groups, 1, 1))
    return g.op("Reshape", several, g.shape(0, attention.heads, -1, attention.head_width))


def _alibi(g: OnnxGraph, heads: int, queries: str, keys: str) -> str:
    """m_h |i − j|, [heads, queries, keys]."""
    i = g.op("Unsqueeze", queries, g.shape(1))
    distance = g.cast(g.op("Abs", g.op("Sub", i, g.positions(keys))), FLOAT)
    return g.op("Mul", g.constant(Alibi(heads).slopes.reshape(-1, 1, 1).numpy()), distance)


class LayerWriter:
    """The parts of a Transformer layer that encoders and decoders have in common."""

    def __init__(self, g: OnnxGraph, layer: TransformerLayer) -> None:
        self.g, self.layer = g, layer

    def attention(
        self, x: str, keys: Callable[[str], tuple[str, str]], closed: str | None, positions: str
    ) -> tuple[str, str]:
        """Self-attention. `keys` turns the normed x into all keys and values."""
        y = self._before(x, self.layer.around_attention)
        k, v = keys(y)
        z, weights = multihead(self.g, self.layer.attention, y, k, v, closed, positions)
        return self._after(x, z, self.layer.around_attention), weights

    def cross(self, x: str, k: str, v: str, closed: str) -> tuple[str, str]:
        assert self.layer.cross is not None
        assert self.layer.around_cross is not None
        y = self._before(x, self.layer.around_cross)
        z, weights = multihead(self.g, self.layer.cross, y, k, v, closed, None)
        return self._after(x, z, self.layer.around_cross), weights

    def feed_forward(self, x: str) -> str:
        y = self._before(x, self.layer.around_feed_forward)
        return self._after(x, feed_forward(self.g, y, self.layer.feed_forward), self.layer.around_feed_forward)

    def _before(self, x: str, residual: Residual) -> str:
        return layer_norm(self.g, x, residual.norm) if residual.first else x

    def _after(self, x: str, y: str, residual: Residual) -> str:
        total = self.g.op("Add", x, y) if residual.adds else y
        return total if residual.first else layer_norm(self.g, total, residual.norm)


def feed_forward(g: OnnxGraph, x: str, module: nn.Sequential) -> str:
    return linear_of(g, g.op("Relu", linear_of(g, x, module[0])), module[3])


# ONNX orders the gates of a GRU z, r, n and those of an LSTM i, o, f, g; PyTorch has r, z, n and i, f, g, o.
_GATES = {"gru": [1, 0, 2], "lstm": [0, 3, 1, 2]}


def recurrent_layer(g: OnnxGraph, x: str, layer: RecurrentLayer, lengths: str) -> tuple[str, str]:
    """All states [batch, time, out] and the last of each sentence [batch, out]."""
    inputs, recurrent, biases = [], [], []
    for rnn in layer.directions:
        w, u, b, b_u = (_reordered(part, layer.kind) for part in rnn.all_weights[0])
        inputs.append(w)
        recurrent.append(u)
        biases.append(torch.cat([b, b_u]))
    directions = len(inputs)
    options: dict[str, Any] = {
        "hidden_size": layer.width,
        "direction": "bidirectional" if directions == 2 else "forward",
    }
    if layer.kind == "gru":
        options["linear_before_reset"] = 1  # b' is inside the product with r, as in PyTorch
    states, last = g.ops(
        layer.kind.upper(),
        g.op("Transpose", x, perm=[1, 0, 2]),
        *(g.weight(torch.stack(parts)) for parts in (inputs, recurrent, biases)),
        g.cast(lengths, "int32"),
        outputs=2,
        **options,
    )
    out = directions * layer.width
    states = g.op("Reshape", g.op("Transpose", states, perm=[2, 0, 1, 3]), g.shape(0, -1, out))
    return states, g.op("Reshape", g.op("Transpose", last, perm=[1, 0, 2]), g.shape(-1, out))


def _reordered(parameter: torch.Tensor, kind: str) -> torch.Tensor:
    gates = parameter.detach().chunk(len(_GATES[kind]))
    return torch.cat([gates[i] for i in _GATES[kind]])


def cell_step(g: OnnxGraph, cell: RecurrentCell, early: str | None, late: str | None, hidden: list[str]) -> list[str]:
    """The next state of a GRU [h] or an LSTM [h, c], from inputs [rows, early] and [rows, late]."""
    total = None
    if early is not None and cell.early is not None:
        total = linear(g, early, cell.early, cell.bias)
    if late is not None and cell.late is not None:
        part = linear(g, late, cell.late, cell.bias if total is None else None)
        total = part if total is None else g.op("Add", total, part)
    assert total is not None
    return cell_gates(g, cell, total, hidden)


def cell_gates(
    g: OnnxGraph, cell: RecurrentCell, inputs: str, hidden: list[str], added: str | None = None
) -> list[str]:
    """The next state from W x + b, [rows, gates]; `added` [rows, width] is one more summand of an LSTM's memory."""
    recurrent = linear(g, hidden[0], cell.recall, cell.recall_bias)
    if cell.kind == "gru":
        xr, xz, xn = g.ops("Split", inputs, outputs=3, axis=-1, num_outputs=3)
        hr, hz, hn = g.ops("Split", recurrent, outputs=3, axis=-1, num_outputs=3)
        r, z = (g.op("Sigmoid", g.op("Add", a, b)) for a, b in ((xr, hr), (xz, hz)))
        n = g.op("Tanh", g.op("Add", xn, g.op("Mul", r, hn)))
        return [g.op("Add", n, g.op("Mul", z, g.op("Sub", hidden[0], n)))]
    total = g.op("Add", inputs, recurrent)
    i, f, n, o = g.ops("Split", total, outputs=4, axis=-1, num_outputs=4)
    i, f, o = (g.op("Sigmoid", gate) for gate in (i, f, o))
    c = g.op("Add", g.op("Mul", f, hidden[1]), g.op("Mul", i, g.op("Tanh", n)))
    c = c if added is None else g.op("Add", c, added)
    return [g.op("Mul", o, g.op("Tanh", c)), c]


def embed(g: OnnxGraph, table: nn.Embedding, tokens: str, scale: float = 1.0) -> str:
    x = g.op("Gather", g.weight(table.weight), tokens)
    return x if scale == 1 else g.op("Mul", x, g.constant(scale))


def as_integer(g: OnnxGraph, value: int) -> str:
    return g.constant([value], INTEGER)
