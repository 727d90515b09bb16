"""An ONNX graph under construction: operators are added one by one, and values are passed on by name."""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor

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
