"""One encoder with several decoders as ONNX graphs: each row is that of its own decoder."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from regard.commands import app
from regard.data import Tokenizer, TokenizerPair
from regard.decoding import translate
from regard.models import (
    LSTMNDecoderConfig,
    LSTMNEncoderConfig,
    MultiDecoder,
    MultiDecoderConfig,
    RecurrentDecoderConfig,
    RecurrentEncoderConfig,
    ShowAttendTellDecoderConfig,
    TransformerDecoderConfig,
    TransformerEncoderConfig,
)
from tests.support.onnx_graphs import (
    STEPS,
    WORDS,
    check_steps,
    export_graphs,
    fed,
    first_values,
    graph,
    greedy,
    next_state,
    sources,
    steps_of,
    varied,
)

if TYPE_CHECKING:
    from pathlib import Path

pytest.importorskip("onnxruntime", reason="needs the extra `dev`")

TAGS = [9, 5, 7]
RNN: dict[str, Any] = {"embedding": 16, "width": 16, "dropout": 0.0}
DEEP: dict[str, Any] = {"width": 16, "heads": 4, "hidden": 24, "layers": 2, "dropout": 0.0}
TEXT = RecurrentEncoderConfig(embedding=16, width=8, dropout=0.0)
MODELS: dict[str, tuple[Any, Any]] = {
    "bahdanau": (TEXT, RecurrentDecoderConfig(**RNN)),
    "no attention": (TEXT, RecurrentDecoderConfig(attention="none", **RNN)),
    "local": (TEXT, RecurrentDecoderConfig(attention="luong", scope="local-m", window=2, **RNN)),
    "lstmn": (LSTMNEncoderConfig(**RNN), LSTMNDecoderConfig(layers=2, **RNN)),
    "tell": (TEXT, ShowAttendTellDecoderConfig(hidden=8, **RNN)),
    "transformer": (TransformerEncoderConfig(**DEEP), TransformerDecoderConfig(**DEEP)),
}


def model_of(name: str, tied: Any = "none") -> MultiDecoder:
    torch.manual_seed(0)
    config = MultiDecoderConfig(WORDS, WORDS, *MODELS[name], tied=tied, tags=TAGS)
    model: MultiDecoder = varied(MultiDecoder(config))
    return model


@pytest.mark.parametrize("name", MODELS)
def test_each_row_is_that_of_its_decoder(name: str, tmp_path: Path) -> None:
    """A batch of two sentences for two decoders, and a beam of one sentence."""
    model = model_of(name)
    folder = export_graphs(model, tmp_path / "onnx")
    check_steps(model, folder)
    check_steps(model, folder, beams=3)
    source, lengths = sources(model)
    start = graph(folder / "encoder.onnx")(fed(source.flip(0), lengths.flip(0)))
    assert start["memory.decoder"].tolist() == [1, 0]


@torch.no_grad()
def test_int8(tmp_path: Path) -> None:
    model = model_of("bahdanau", tied="decoder")
    folder = export_graphs(model, tmp_path / "int8", quantization="int8")
    source, lengths = sources(model)
    memory, state = first_values(model, folder, source, lengths)
    tokens, step = torch.randint(4, WORDS, (2, STEPS)), graph(folder / "decoder.onnx")
    for t, (logits, _, _) in enumerate(steps_of(model, model.encode(source, lengths), tokens)):
        result = step({"token": tokens[:, t].numpy(), **memory, **state})
        assert (torch.from_numpy(result["logits"]) - logits).norm() < 0.05 * logits.norm()
        state = next_state(result)


def test_a_source_without_a_tag_is_refused(tmp_path: Path) -> None:
    model = model_of("bahdanau")
    encoder = graph(export_graphs(model, tmp_path / "onnx") / "encoder.onnx")
    with pytest.raises(Exception, match="indices element out of data bounds"):
        encoder({"source": np.array([[6, 8, 2]]), "lengths": np.array([3])})


def test_the_command(tmp_path: Path) -> None:
    """The folder names the tags, and each of them leads to another translation, that of torch."""
    words = "<2fr> <2es> the cat sees a dog . le chat voit un chien . el gato ve un perro ."
    text = Tokenizer.train("word", WORDS, [words])
    tags = [text.encode(tag)[0] for tag in ("<2fr>", "<2es>")]
    torch.manual_seed(0)
    parts = RecurrentEncoderConfig(embedding=16, width=8), RecurrentDecoderConfig(embedding=16, width=16)
    model = varied(MultiDecoder(MultiDecoderConfig(len(text), len(text), *parts, tags=tags)))
    model.save_pretrained(tmp_path / "model")
    TokenizerPair(text, text).save(tmp_path / "model")
    folder = tmp_path / "onnx"
    done = CliRunner().invoke(app, ["export", str(tmp_path / "model"), "--to", "onnx", "--out", str(folder)])
    assert done.exit_code == 0, done.output
    assert json.loads((folder / "onnx.json").read_text())["tags"] == {"<2fr>": tags[0], "<2es>": tags[1]}
    texts = [f"{tag} the cat sees a dog ." for tag in ("<2fr>", "<2es>")]
    results = list(translate(model, TokenizerPair(text, text), texts, beams=1))
    assert results[0].tokens != results[1].tokens
    for result in results:
        count = len(result.tokens) - 1  # a translation of random weights ends where it has to
        assert greedy(folder, result.source_tokens, count)[0] == result.tokens[:count]
