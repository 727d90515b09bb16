"""int8 graphs: matrices and embedding tables as bytes with a scale, activations rounded while the graph runs.

Dynamic quantization, by onnxruntime's own tool. Each column of a matrix has a scale of its own. Only operators of the
ONNX standard are written (MatMulInteger, DynamicQuantizeLinear, DequantizeLinear), so any runtime computes the result.
Recurrent layers of encoders stay in float32: the standard has no such operator for GRUs and LSTMs, and the tool leaves
the loop of an LSTMN as it is. Convolutions stay so too.
"""

from __future__ import annotations

import json
import logging
from dataclasses import replace
from graphlib import TopologicalSorter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from torch import nn

from ..files import write_text
from ..models.classifier import Classifier
from ..models.multi_decoder import MultiDecoder, TagEncoder
from ..special_tokens import BEGIN, END, PAD, UNKNOWN
from .exports import export_files, require_free
from .onnx_decoders import DecoderSwitchWriter, PointerDecoderWriter, decoder_writer
from .onnx_encoders import source_inputs, static_weights, write_encoder, write_pooling
from .onnx_graph import FLOAT, INTEGER, OnnxGraph, library, linear

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable

    from ..data.tokenizer_pair import TokenizerPair
    from ..models.encoder_decoder import EncoderDecoder
    from ..models.encoders import Encoder
    from .onnx_decoders import DecoderWriter, TensorShape

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


DESCRIPTION = "onnx.json"


def export_onnx(
    model: EncoderDecoder | Classifier,
    tokenizers: TokenizerPair,
    folder: str | os.PathLike[str],
    *,
    quantization: Literal["none", "int8"] = "none",
    force: bool = False,
    weights: Path | None = None,
) -> Path:
    """Writes a model as ONNX graphs into a new folder, with its tokenizers and `onnx.json`, which describes them.

    An encoder-decoder has two graphs, a language model the second alone:

    - `encoder.onnx`: `source`, `lengths` → `memory.*`, constant while a sentence is decoded, the first `state.*`, and
      `encoder_weights` [sentences, maps, places, places] of self-attention, where the encoder has it;
    - `decoder.onnx`, one step: `token` [rows], `memory.*`, `state.*` → `logits` [rows, vocabulary], `next.*` (the new
      state), `weights` [rows, maps, places] over the source and `self_weights` [rows, maps, steps] over the tokens so
      far, where the decoder has them; those of an LSTMN are over its tape, whose first entry is computed from the
      source. The memory has as many sentences as there are rows, or one.

    One encoder with several decoders has the same two graphs. A tag begins the source and names the decoder, and
    `tags` in `onnx.json` has their ids; rows of different decoders can be in one batch.

    A classifier is `classifier.onnx`: `source`, `lengths` → `logits` [batch, classes], `weights` [batch, places] where
    its pooling has them, and `static` [batch, tokens], the TF-IDF weights, where it reads text.

    With `quantization` "int8", matrices and tables are bytes with scales (`onnx_quantization.py`): smaller files, and
    results that differ in the second or third digit. docs/serving.md has sizes and agreement, measured.

    `force` replaces an export that is there. `weights` is the file that the model was loaded from: its SHA-256 is
    recorded in the folder.
    """
    folder = require_free(folder, "onnx", force=force)
    if problem := model.config.export_problem("onnx"):
        raise ValueError(problem)
    graphs, description = _classifier(model) if isinstance(model, Classifier) else _encoder_decoder(model, tokenizers)
    values = {
        "task": model.task,
        "reads": model.config.encoder.reads,
        "longest": model.config.longest,
        "quantization": quantization,
        "specials": {"pad": PAD, "begin": BEGIN, "end": END, "unknown": UNKNOWN},
        **description,
    }
    with export_files(folder, weights) as unfinished:
        for name, graph in graphs.items():
            file = Path(unfinished) / f"{name}.onnx"
            file.write_bytes(graph.build().SerializeToString())
            if quantization == "int8":
                quantize_file(file)
        tokenizers.save(unfinished)
        files = sorted(Path(unfinished).iterdir())
        values |= {"files": [file.name for file in files], "size": sum(file.stat().st_size for file in files)}
        write_text(Path(unfinished) / DESCRIPTION, json.dumps(values, indent=2) + "\n")
    return folder


def _classifier(model: Classifier) -> tuple[dict[str, OnnxGraph], dict[str, Any]]:
    g, config = OnnxGraph("classifier"), model.config
    source, lengths = source_inputs(g, config.encoder.reads, model.encoder)
    encoded = write_encoder(g, config.encoder.kind, model.encoder, source, lengths)
    pooled, weights = write_pooling(g, config.head.pooling, model.pooling, encoded, source)
    # A linear classifier of word counts has no matrix above the pooled vector.
    logits = linear(g, pooled, model.output.weight) if isinstance(model.output, nn.Linear) else pooled
    logits = g.op("Add", logits, g.weight(model.bias))
    g.output("logits", logits, FLOAT, ["batch", config.classes])
    g.output("places", encoded.lengths, INTEGER, ["batch"])
    outputs = ["logits", "places"]
    if weights is not None:
        g.output("weights", weights, FLOAT, ["batch", "places"])
        outputs.append("weights")
    if model.static is not None:
        static = static_weights(g, model.static.idf, source, lengths)
        g.output("static", static, FLOAT, ["batch", "tokens"])
        outputs.append("static")
    return {"classifier": g}, {"outputs": outputs}


def _encoder_decoder(model: EncoderDecoder, tokenizers: TokenizerPair) -> tuple[dict[str, OnnxGraph], dict[str, Any]]:
    encoder = model.encoder.encoder if isinstance(model.encoder, TagEncoder) else model.encoder
    writer, tags = _writer(model), getattr(model.config, "tags", [])
    graphs = {"decoder": _step_graph(model, writer)}
    if encoder.width:
        graphs = {"encoder": _start_graph(model, encoder, writer), **graphs}
    shapes = writer.shapes()
    return graphs, {
        "memory": {name: _described(value) for name, value in shapes.memory.items()},
        "state": {name: _described(value) for name, value in shapes.state.items()},
        "most_steps": model.decoder.most_steps,
        "slots": model.config.slots,  # the last ids, for unknown words of the source
        "tags": dict(zip(tokenizers.source.pieces(tags), tags, strict=True)) if tags else {},  # of several decoders
        "layers": {side: getattr(part, "layers", 1) for side, part in _sides(model)},
        "picture": getattr(model.config.encoder, "size", None),
    }


def _writer(model: EncoderDecoder) -> DecoderWriter:
    parts = model.config.decoder.kind, model.decoder, model.encoder.width
    if isinstance(model, MultiDecoder):
        return DecoderSwitchWriter(*parts, model.config.tags)
    return PointerDecoderWriter(*parts) if model.config.decoder.copies else decoder_writer(*parts)


def _sides(model: EncoderDecoder) -> list[tuple[str, Any]]:
    return [("encoder", model.config.encoder), ("decoder", model.config.decoder)]


def _described(value: TensorShape) -> dict[str, Any]:
    return {"dtype": value.dtype, "shape": list(value.shape)}


def _start_graph(model: EncoderDecoder, encoder: Encoder, writer: DecoderWriter) -> OnnxGraph:
    g, config, shapes = OnnxGraph("encoder"), model.config.encoder, writer.shapes()
    source, lengths = source_inputs(g, config.reads, encoder)
    encoded = write_encoder(g, config.kind, encoder, writer.source_ids(g, source), lengths)
    memory, state = writer.start(g, replace(encoded, source=source))
    for kind, values, shape in (("memory", memory, shapes.memory), ("state", state, shapes.state)):
        for name, expected in shape.items():
            g.output(f"{kind}.{name}", values[name], expected.dtype, expected.shape)
    if encoded.weights is not None:
        g.output("encoder_weights", encoded.weights, FLOAT, ["sentences", "maps", "places", "places"])
    return g


def _step_graph(model: EncoderDecoder, writer: DecoderWriter) -> OnnxGraph:
    g, shapes = OnnxGraph("decoder"), writer.shapes()
    token = g.input("token", INTEGER, ["rows"])
    memory = {name: g.input(f"memory.{name}", value.dtype, value.shape) for name, value in shapes.memory.items()}
    state = {name: g.input(f"state.{name}", value.dtype, value.shape) for name, value in shapes.state.items()}
    step = writer.step(g, token, memory, state)
    g.output("logits", writer.logits(g, step, memory), FLOAT, ["rows", model.config.target_vocabulary])
    for name, value in shapes.state.items():
        longer = tuple("longer" if size == "steps" else size for size in value.shape)
        g.output(f"next.{name}", step.state[name], value.dtype, longer)
    if step.weights is not None:
        g.output("weights", step.weights, FLOAT, ["rows", "maps", "places"])
    if step.self_weights is not None:
        g.output("self_weights", step.self_weights, FLOAT, ["rows", "maps", "seen"])
    return g
