"""ONNX: what is exported computes what torch computes, logits and weights, in onnxruntime."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from regard.commands import app
from regard.decoding import model_folders, translate
from regard.decoding.onnx import export_onnx
from regard.models import (
    BagEncoderConfig,
    Classifier,
    ClassifierConfig,
    ConvolutionEncoderConfig,
    EfficientNetEncoderConfig,
    EncoderDecoder,
    EncoderDecoderConfig,
    GridEncoderConfig,
    HeadConfig,
    LSTMNDecoderConfig,
    LSTMNEncoderConfig,
    MultiDecoder,
    MultiDecoderConfig,
    NoEncoderConfig,
    RecurrentDecoderConfig,
    RecurrentEncoderConfig,
    ShowAttendTellDecoderConfig,
    TransformerDecoderConfig,
    TransformerEncoderConfig,
)
from tests.support.onnx_graphs import (
    WORDS,
    check,
    check_steps,
    close,
    export_graphs,
    fed,
    graph,
    greedy,
    sources,
    varied,
)

if TYPE_CHECKING:
    from pathlib import Path

pytest.importorskip("onnxruntime", reason="needs the extra `export`")
pytest.importorskip("onnxscript", reason="needs the extra `export`")

RNN: dict[str, Any] = {"embedding": 16, "width": 16, "dropout": 0.0}
DEEP: dict[str, Any] = {"width": 16, "heads": 4, "hidden": 24, "layers": 1, "dropout": 0.0}
TEXT = RecurrentEncoderConfig(embedding=12, width=8, dropout=0.0)
WRITERS: dict[str, tuple[Any, Any]] = {
    "transformer": (
        TransformerEncoderConfig(positions="rotary", key_heads=1, **DEEP),
        TransformerDecoderConfig(positions="alibi", norm="post", key_heads=2, **DEEP),
    ),
    "language-model": (NoEncoderConfig(), TransformerDecoderConfig(positions="learned", **{**DEEP, "layers": 2})),
    "bahdanau": (RecurrentEncoderConfig(reads="sound", **RNN), RecurrentDecoderConfig(energy="concat", **RNN)),
    "conditional": (
        RecurrentEncoderConfig(cell="lstm", layers=2, **RNN),
        RecurrentDecoderConfig(attention="conditional", cell="lstm", layers=2, readout="maxout", **RNN),
    ),
    "local": (TEXT, RecurrentDecoderConfig(attention="luong", energy="general", scope="local-p", window=2, **RNN)),
    "no-attention": (TEXT, RecurrentDecoderConfig(attention="none", **RNN)),
    "pointer": (TEXT, TransformerDecoderConfig(copy=True, **DEEP)),
    "soft": (EfficientNetEncoderConfig(size=64), ShowAttendTellDecoderConfig(hidden=8, **RNN)),
    "hard": (GridEncoderConfig(size=64, width=16), ShowAttendTellDecoderConfig(attention="hard", hidden=8, **RNN)),
    "lstmn": (LSTMNEncoderConfig(**RNN), LSTMNDecoderConfig(fusion="deep", layers=2, **RNN)),
    "shallow": (TEXT, LSTMNDecoderConfig(fusion="shallow", **RNN)),
}
CLASSIFIERS: dict[str, tuple[Any, HeadConfig]] = {
    "bag": (BagEncoderConfig(), HeadConfig(pooling="static", idf="plain")),
    "windows": (ConvolutionEncoderConfig(embedding=12, width=5), HeadConfig(pooling="max")),
    "attention": (TransformerEncoderConfig(**DEEP), HeadConfig(pooling="attention", hidden=8)),
    "words": (TEXT, HeadConfig(pooling="learned")),
}


@pytest.mark.parametrize("name", WRITERS)
def test_writers_compute_the_same(name: str, tmp_path: Path) -> None:
    """Also several rows of one sentence, as a beam has them: its memory serves every row."""
    torch.manual_seed(0)
    encoder, decoder = WRITERS[name]
    config = EncoderDecoderConfig(WORDS if encoder.reads == "text" else 0, WORDS, encoder, decoder, longest=32)
    if name == "pointer":
        config = EncoderDecoderConfig(WORDS, WORDS, encoder, decoder, slots=20)
    model = varied(EncoderDecoder(config))
    folder = export_graphs(model, tmp_path / "onnx")
    check_steps(model, folder)
    check_steps(model, folder, beams=3)


@pytest.mark.parametrize("name", CLASSIFIERS)
def test_classifiers_compute_the_same(name: str, tmp_path: Path) -> None:
    """A text of words that every text has: with the plain formula no weight anywhere, and the vector 0."""
    torch.manual_seed(0)
    model = varied(Classifier(ClassifierConfig(WORDS, 3, *CLASSIFIERS[name])))
    model.static.idf.copy_(torch.rand(WORDS))
    model.static.idf[sources(model)[0][1]] = 0.0
    check(model, export_graphs(model, tmp_path / "onnx"))


def test_each_row_is_that_of_its_decoder(tmp_path: Path) -> None:
    """A batch of two sentences for two decoders, and a beam of one sentence; without a tag a source is refused."""
    torch.manual_seed(0)
    parts = RecurrentEncoderConfig(embedding=16, width=8, dropout=0.0), RecurrentDecoderConfig(**RNN)
    model = varied(MultiDecoder(MultiDecoderConfig(WORDS, WORDS, *parts, tags=[9, 5])))
    folder = export_graphs(model, tmp_path / "onnx")
    tags = json.loads((folder / "onnx.json").read_text())["tags"]
    assert list(tags.values()) == [9, 5]
    check_steps(model, folder)
    check_steps(model, folder, beams=3)
    source, lengths = sources(model)
    encoder = graph(folder / "encoder.onnx")
    assert encoder(fed(source.flip(0), lengths.flip(0)))["memory.choice"].tolist() == [1, 0]
    with pytest.raises(Exception, match=r"out of data bounds|invalid index"):
        encoder({"source": np.array([[6, 8, 2]]), "lengths": np.array([3])})


def test_a_graph_that_computes_something_else_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def spoiled(*arguments: Any, **options: Any) -> Any:
        program = export(*arguments, **options)
        program.model.graph.initializers["model.bias"].const_value = ir.tensor(np.ones(3, np.float32))
        return program

    ir, export = pytest.importorskip("onnx_ir"), torch.onnx.export
    monkeypatch.setattr(torch.onnx, "export", spoiled)
    torch.manual_seed(0)
    model = varied(Classifier(ClassifierConfig(WORDS, 3, *CLASSIFIERS["bag"])))
    with pytest.raises(ValueError, match="gives another logits than the model"):
        export_graphs(model, tmp_path / "onnx")
    assert not (tmp_path / "onnx").exists()


@pytest.mark.parametrize("name", [name for name in model_folders.shipped() if "tatoeba" in name])
def test_shipped_translators_write_the_same(name: str, tmp_path: Path) -> None:
    """Greedy search over the graphs gives the tokens and weights of our own, and tied weights are stored once."""
    loaded = model_folders.load(name)
    folder = export_onnx(loaded.model, loaded.tokenizers, tmp_path / "onnx")
    largest = max((folder / f"{part}.onnx").stat().st_size for part in ("encoder", "decoder"))
    assert largest < 0.8 * (loaded.folder / "model.safetensors").stat().st_size
    (result,) = translate(loaded.model, loaded.tokenizers, ["My sister has a small black dog."], beams=1, weights=True)
    tokens, weights = greedy(folder, result.source_tokens, len(result.tokens))
    assert tokens == result.tokens
    assert result.weights is not None
    close(result.weights, np.stack(weights, 1))


def test_an_existing_folder_is_refused(tmp_path: Path) -> None:
    loaded = model_folders.load("opinions-lstm")
    with pytest.raises(ValueError, match="is there already"):
        export_onnx(loaded.model, loaded.tokenizers, tmp_path)


def test_without_the_package_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = model_folders.load("opinions-lstm")
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(ValueError, match=r"pip install 'regard\[export\]'"):
        export_onnx(loaded.model, loaded.tokenizers, tmp_path / "onnx")


def test_the_command(tmp_path: Path) -> None:
    wrong = CliRunner().invoke(app, ["export", "opinions-lstm", "--to", "onnx", "--quantization", "int8"])
    assert "onnxruntime.quantization.quantize_dynamic" in str(wrong.exception)
    done = CliRunner().invoke(app, ["export", "opinions-lstm", "--to", "onnx", "--out", str(tmp_path / "onnx")])
    assert done.exit_code == 0
    assert "wrote" in done.output
    assert (tmp_path / "onnx" / "classifier.onnx").is_file()
    assert (tmp_path / "onnx" / "labels.json").is_file()
