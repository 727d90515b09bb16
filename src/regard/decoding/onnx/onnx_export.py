"""Export to ONNX: `encoder.onnx` and `decoder.onnx`, or `classifier.onnx`, with tokenizers and a description."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from torch import nn

from ...atomic_write import write_text
from ...data.batch import BEGIN, END, PAD, UNKNOWN
from ...models import Classifier, MultiDecoder
from ...models.multi_decoder import TagEncoder
from ..export_folder import export_files, require_free
from .onnx_decoder_switch import DecoderSwitchWriter
from .onnx_decoders import decoder_writer
from .onnx_encoders import source_inputs, static_weights, write_encoder, write_pooling
from .onnx_graph import FLOAT, INTEGER, OnnxGraph
from .onnx_layers import linear
from .onnx_pointer import PointerDecoderWriter
from .onnx_quantization import quantize_file

if TYPE_CHECKING:
    import os

    from ...data import TokenizerPair
    from ...models import EncoderDecoder
    from ...models.encoders.encoder import Encoder
    from .onnx_decoder_writer import DecoderWriter, TensorShape

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
