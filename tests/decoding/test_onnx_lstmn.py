"""LSTMNs as ONNX graphs: logits, tapes and the weights over them are those of torch, step by step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import regard
from regard.commands import app
from regard.decoding import load_model_and_tokenizers
from regard.models import (
    Classifier,
    ClassifierConfig,
    EncoderDecoder,
    EncoderDecoderConfig,
    HeadConfig,
    LSTMNDecoderConfig,
    LSTMNEncoderConfig,
    NoEncoderConfig,
    RecurrentEncoderConfig,
    TransformerDecoderConfig,
)
from tests.support.onnx_graphs import (
    STEPS,
    WORDS,
    check,
    check_steps,
    close,
    export_graphs,
    fed,
    first_state,
    first_values,
    graph,
    next_state,
    parts,
    sources,
    steps_of,
    varied,
)

if TYPE_CHECKING:
    from pathlib import Path

    from regard.models.lstmn_decoder import LSTMNDecoder

pytest.importorskip("onnxruntime", reason="needs the extra `dev`")

SHIPPED = "phrasebook-lstmn-en"
RNN: dict[str, Any] = {"embedding": 12, "width": 16, "dropout": 0.0}
ONE, TWO = LSTMNEncoderConfig(**RNN), LSTMNEncoderConfig(layers=2, **RNN)
WIDE = LSTMNEncoderConfig(embedding=12, width=24, dropout=0.0)  # its tape is mapped to the decoder's width
BOTH_WAYS = RecurrentEncoderConfig(embedding=12, width=8, dropout=0.0)  # it has no tape of memories
DECODERS = {
    (fusion, layers): LSTMNDecoderConfig(fusion=fusion, layers=layers, **RNN)  # type: ignore[arg-type]
    for fusion in ("none", "shallow", "deep")
    for layers in (1, 2)
}
MODELS: dict[str, tuple[Any, Any]] = {
    "language-model": (NoEncoderConfig(), DECODERS["none", 1]),
    "language-model-two-layers": (NoEncoderConfig(), DECODERS["none", 2]),
    "shallow": (ONE, DECODERS["shallow", 1]),
    "shallow-two-layers": (TWO, DECODERS["shallow", 2]),
    "shallow-wide": (WIDE, DECODERS["shallow", 1]),
    "deep": (ONE, DECODERS["deep", 1]),
    "deep-two-layers": (TWO, DECODERS["deep", 2]),
    "deep-wide": (WIDE, DECODERS["deep", 2]),
    "deep-without-memories": (BOTH_WAYS, DECODERS["deep", 1]),
    "encoder-alone": (TWO, TransformerDecoderConfig(width=16, heads=4, hidden=24, layers=1, dropout=0.0)),
}


def model_of(name: str) -> EncoderDecoder:
    torch.manual_seed(0)
    encoder, decoder = MODELS[name]
    words = 0 if encoder.kind == "none" else WORDS
    model: EncoderDecoder = varied(EncoderDecoder(EncoderDecoderConfig(words, WORDS, encoder, decoder)))
    return model


def check_tapes(decoder: LSTMNDecoder, state: Any, theirs: dict[str, np.ndarray]) -> None:
    """The state after a step: the tape of every layer, and what the next queries begin with."""
    for number, (layer, at) in enumerate(zip(decoder.layers, state.layers, strict=True)):
        close(at.tape.keys, theirs[f"state.keys.{number}"])
        close(at.tape.values, theirs[f"state.values.{number}"])
        close(at.summary @ layer.energy.query.weight[:, layer.width_in :].mT, theirs[f"state.query.{number}"])
    assert ("state.source_query" in theirs) == (state.read is not None)
    if decoder.energy is not None:
        late = decoder.energy.query.weight[:, -state.read.shape[-1] :]
        close(state.read @ late.mT, theirs["state.source_query"])


@pytest.mark.parametrize("name", [name for name in MODELS if name != "encoder-alone"])
@torch.no_grad()
def test_steps_have_the_tapes_and_weights_of_torch(name: str, tmp_path: Path) -> None:
    model = model_of(name)
    folder = export_graphs(model, tmp_path / "onnx")
    source, lengths = sources(model)
    tokens = torch.randint(4, WORDS, (2, STEPS))
    memory, state = first_values(model, folder, source, lengths)
    annotations, step = model.encode(source, lengths), graph(folder / "decoder.onnx")
    with regard.watch(model) as seen:
        model.decoder(tokens, annotations)
    layers = [seen[f"decoder.layers.{layer}"].weights.dense() for layer in range(model.config.decoder.layers)]
    expected = torch.stack(layers, 1)  # [2, layers, steps with a tape, entries]
    empty_steps = 0 if memory else 1  # without a source the tape is empty at the first step
    for t, (logits, after, weights) in enumerate(steps_of(model, annotations, tokens)):
        result = step({"token": tokens[:, t].numpy(), **memory, **state})
        close(logits, result["logits"])
        if weights is not None:
            close(weights, result["weights"])
        entries = t + 1 - empty_steps
        assert result["self_weights"].shape == (2, len(layers), entries)
        if entries:
            close(expected[:, :, t - empty_steps, :entries], result["self_weights"])
        state = next_state(result)
        check_tapes(model.decoder, after, state)


@pytest.mark.parametrize("name", MODELS)
def test_one_sentence_has_several_rows(name: str, tmp_path: Path) -> None:
    model = model_of(name)
    check_steps(model, export_graphs(model, tmp_path / "onnx"), beams=3)


@torch.no_grad()
def test_the_graph_of_an_encoder_has_its_weights(tmp_path: Path) -> None:
    model = model_of("encoder-alone")
    source, lengths = sources(model)
    with regard.watch(model) as seen:
        model.encode(source, lengths)
    folder = export_graphs(model, tmp_path / "onnx")
    weights = graph(folder / "encoder.onnx")(fed(source, lengths))["encoder_weights"]  # [2, layers, places, places]
    assert weights.shape == (2, 2, 7, 7)
    assert not weights[:, :, 0].any(), "the first word has nothing before it"
    for layer in range(2):
        close(seen[f"encoder.layers.{layer}"].weights.dense(), weights[:, layer, 1:, :-1])
    assert np.abs(np.triu(weights)).max() == 0


@pytest.mark.parametrize("pooling", ["last", "attention"])
@pytest.mark.parametrize("reads", ["text", "sound"])
def test_a_classifier(reads: Any, pooling: Any, tmp_path: Path) -> None:
    torch.manual_seed(0)
    encoder = LSTMNEncoderConfig(reads=reads, layers=2, **RNN)
    words = WORDS if reads == "text" else 0
    model = varied(Classifier(ClassifierConfig(words, 3, encoder, HeadConfig(pooling=pooling, hidden=8))))
    check(model, export_graphs(model, tmp_path / "onnx"))


@pytest.mark.parametrize("name", ["deep-two-layers", "language-model"])
@torch.no_grad()
def test_int8(name: str, tmp_path: Path) -> None:
    """The matrices inside the loop of an encoder stay floats; those of a step become bytes."""
    model = model_of(name)
    folder = export_graphs(model, tmp_path / "int8", quantization="int8")
    source, lengths = sources(model)
    memory, state = first_values(model, folder, source, lengths)
    tokens, step = torch.randint(4, WORDS, (2, STEPS)), graph(folder / "decoder.onnx")
    for t, (logits, _, _) in enumerate(steps_of(model, model.encode(source, lengths), tokens)):
        result = step({"token": tokens[:, t].numpy(), **memory, **state})
        error = torch.from_numpy(result["logits"]) - logits
        assert error.norm() < 0.05 * logits.norm()
        state = next_state(result)


def logits_of(folder: Path, tokens: list[int]) -> torch.Tensor:
    """What the graph of a language model predicts after each of the tokens, [tokens, vocabulary]."""
    step, state, logits = graph(folder / "decoder.onnx"), first_state(folder, 1), []
    for token in tokens:
        result = step({"token": np.array([token]), **state})
        state = next_state(result)
        logits.append(result["logits"][0])
    return torch.from_numpy(np.stack(logits))


@torch.no_grad()
def test_the_shipped_one_by_the_command(tmp_path: Path) -> None:
    """A hundred tokens that torch wrote, the likeliest each time, are the likeliest of the graph too."""
    loaded = load_model_and_tokenizers.load(SHIPPED)
    for kind in ("none", "int8"):
        words = ["export", SHIPPED, "--to", "onnx", "--quantization", kind, "--out", str(tmp_path / kind)]
        assert CliRunner().invoke(app, words).exit_code == 0
    assert not (tmp_path / "none" / "encoder.onnx").exists()
    model, tokens, expected = loaded.model, [1, *loaded.tokenizers.target.encode("the small")], []
    annotations = model.encode(torch.ones(1, 1, dtype=torch.long), torch.ones(1, dtype=torch.long))
    state = model.decoder.start(annotations, steps=100)
    for t in range(100):
        features, state, _ = model.decoder.step(torch.tensor(tokens[t : t + 1]), state)
        expected.append(model.readout(features)[0])
        if t == len(tokens) - 1:
            tokens.append(int(expected[-1].argmax()))
    right = torch.stack(expected)
    given = logits_of(tmp_path / "none", tokens[:100])
    close(right, given.numpy())
    assert given.argmax(-1).tolist() == right.argmax(-1).tolist()
    assert (logits_of(tmp_path / "int8", tokens[:100]) - right).norm() < 0.03 * right.norm()
    floats, bytes_ = ((tmp_path / kind / "decoder.onnx").stat().st_size for kind in ("none", "int8"))
    assert bytes_ < 0.8 * floats


def test_tapes_of_the_encoder_enter_the_memory(tmp_path: Path) -> None:
    """Deep fusion: values are [γ; α], the states of the encoder and its memories."""
    model = model_of("deep")
    source, lengths = sources(model)
    with torch.no_grad():
        annotations = model.encode(source, lengths)
    memory, _ = parts(graph(export_graphs(model, tmp_path / "onnx") / "encoder.onnx")(fed(source, lengths)))
    assert annotations.tape is not None
    close(torch.cat([annotations.vectors, annotations.tape], -1), memory["memory.values"])
