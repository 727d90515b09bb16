"""int8 graphs: matrices and embedding tables as bytes with a scale, activations rounded while the graph runs.

Dynamic quantization, by onnxruntime's own tool. Each column of a matrix has a scale of its own. Only operators of the
ONNX standard are written (MatMulInteger, DynamicQuantizeLinear, DequantizeLinear), so any runtime computes the result.
Recurrent layers of encoders stay in float32: the standard has no such operator for GRUs and LSTMs, and the tool leaves
the loop of an LSTMN as it is. Convolutions stay so too.
"""

from __future__ import annotations

import logging
from graphlib import TopologicalSorter
from typing import TYPE_CHECKING, Any

import numpy as np

from .onnx_graph import library

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

QUANTIZED = ("MatMul", "Gather")
"""The operators whose constant operand becomes int8."""


def quantize_file(file: Path) -> None:
    """Replace the graph in a file by its int8 form."""
    try:
        from onnxruntime.quantization import QuantType, quantize_dynamic
    except ModuleNotFoundError as missing:
        raise ValueError(
            f"int8 graphs need {missing.name}, which is not installed; install it with: pip install 'regard[export]'"
        ) from missing
    onnx = library()
    model = onnx.load(file)
    fold_weights(model)
    logger = logging.getLogger()
    before = logger.level
    logger.setLevel(logging.ERROR)  # it advises a preparation that these graphs do not need
    try:
        quantize_dynamic(
            model,
            file,
            op_types_to_quantize=list(QUANTIZED),
            per_channel=True,
            reduce_range=True,  # seven bits: CPUs without VNNI add two products in sixteen bits, which would overflow
            weight_type=QuantType.QInt8,
        )
    finally:
        logger.setLevel(before)
    quantized = onnx.load(file)
    sort_nodes(quantized)
    onnx.checker.check_model(quantized)
    file.write_bytes(quantized.SerializeToString())


def fold_weights(model: Any) -> None:
    """Replace casts and transposes of weights by the weights that they give: only constants are quantized."""
    onnx = library()
    to_array, graph = onnx.numpy_helper.to_array, model.graph
    weights = {weight.name: weight for weight in graph.initializer}
    nodes = []
    for node in graph.node:
        constant = weights.get(node.input[0]) if len(node.input) == 1 else None
        attributes = {attribute.name: onnx.helper.get_attribute_value(attribute) for attribute in node.attribute}
        if constant is not None and node.op_type == "Cast" and attributes["to"] == onnx.TensorProto.FLOAT:
            array = to_array(constant).astype(np.float32)
        elif constant is not None and node.op_type == "Transpose":
            array = np.ascontiguousarray(to_array(constant).transpose(attributes["perm"]))
        else:
            nodes.append(node)
            continue
        weights[node.output[0]] = onnx.numpy_helper.from_array(array, node.output[0])
    used = _names_read(nodes)
    del graph.node[:], graph.initializer[:]
    graph.node.extend(nodes)
    graph.initializer.extend(weight for name, weight in weights.items() if name in used)


def sort_nodes(model: Any) -> None:
    """Put every node after those whose results it reads. The tool's own sort does not look into the bodies of loops."""
    nodes = list(model.graph.node)
    makers = {name: number for number, node in enumerate(nodes) for name in node.output}
    reads = {
        number: {makers[name] for name in _names_read([node]) & makers.keys()} for number, node in enumerate(nodes)
    }
    del model.graph.node[:]
    model.graph.node.extend(nodes[number] for number in TopologicalSorter(reads).static_order())


def _names_read(nodes: Iterable[Any]) -> set[str]:
    """The values that nodes read, also inside the bodies of loops."""
    names = set()
    for node in nodes:
        names.update(node.input)
        for attribute in node.attribute:
            names |= _names_read(attribute.g.node)
    return names
