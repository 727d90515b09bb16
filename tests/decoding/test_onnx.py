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
from regard.decoding import load_model_and_tokenizers, translate
from regard.decoding.onnx import export_onnx
from regard.models import (
    Classifier,
    ClassifierConfig,
    EncoderDecoder,
    EncoderDecoderConfig,
    HeadConfig,
    NoEncoderConfig,
    RecurrentDecoderConfig,
    RecurrentEncoderConfig,
    ShowAttendTellDecoderConfig,
    TransformerDecoderConfig,
    TransformerEncoderConfig,
)
from tests.support.onnx_graphs import WORDS, check, check_steps, close, export_graphs, greedy, sources, varied
from tools import systems_page as systems

if TYPE_CHECKING:
    from pathlib import Path

pytest.importorskip("onnxruntime", reason="needs the extra `dev`")


@pytest.mark.parametrize(("reads", "encoder", "part"), systems.cells(), ids=lambda name: str(name).replace(" ", "-"))
def test_every_system_computes_the_same(reads: str, encoder: str, part: str, tmp_path: Path) -> None:
    head, below = systems.HEADS.get(part), systems.ENCODERS[reads, encoder]
    words = WORDS if below.reads == "text" else 0
    torch.manual_seed(0)
    model: Any
    if head is not None:
        model = varied(Classifier(ClassifierConfig(words, 3, below, head)))
    else:
        decoder = systems.paired(below, systems.WRITERS[part])
        model = varied(EncoderDecoder(EncoderDecoderConfig(words, WORDS, below, decoder)))
    check(model, export_graphs(model, tmp_path / "onnx"))


TEXT = RecurrentEncoderConfig(embedding=12, width=8, dropout=0.0)
DEEP: dict[str, Any] = {"width": 16, "heads": 4, "hidden": 24, "layers": 2, "dropout": 0.0}
RNN: dict[str, Any] = {"embedding": 12, "width": 16, "dropout": 0.0}
VARIANTS: dict[str, tuple[Any, Any]] = {
    **{
        f"{positions}-{norm}-{key_heads}": (
            TransformerEncoderConfig(positions=positions, norm=norm, key_heads=key_heads, **DEEP),
            TransformerDecoderConfig(positions=positions, norm=norm, key_heads=key_heads, **DEEP),
        )
        for positions, norm, key_heads in (
            ("sinusoidal", "post", 0),
            ("learned", "pre", 2),
            ("rotary", "pre", 1),
            ("alibi", "post", 2),
        )
    },
    **{
        f"{attention}-{energy}-{scope}": (
            TEXT,
            RecurrentDecoderConfig(attention=attention, energy=energy, scope=scope, window=2, **RNN),
        )
        for attention, energy, scope in (
            ("bahdanau", "dot", "global"),
            ("bahdanau", "concat", "global"),
            ("conditional", "additive", "global"),
            ("conditional", "dot", "global"),
            ("luong", "dot", "local-m"),
            ("luong", "general", "local-p"),
            ("luong", "additive", "global"),
        )
    },
    "lstm-two-layers": (
        RecurrentEncoderConfig(cell="lstm", layers=2, **RNN),
        RecurrentDecoderConfig(cell="lstm", layers=2, readout="maxout", **RNN),
    ),
    "conditional-lstm-two-layers": (
        TEXT,
        RecurrentDecoderConfig(attention="conditional", cell="lstm", layers=2, readout="maxout", **RNN),
    ),
    "luong-not-fed": (TEXT, RecurrentDecoderConfig(attention="luong", input_feeding=False, layers=2, **RNN)),
    "hard": (TEXT, ShowAttendTellDecoderConfig(attention="hard", hidden=8, **RNN)),
    "not-attending": (TEXT, ShowAttendTellDecoderConfig(attention="none", hidden=8, **RNN)),
    "nothing-but-attention": (
        TransformerEncoderConfig(positions="none", norm="none", residual=False, scaled=False, **DEEP),
        TransformerDecoderConfig(positions="none", norm="none", residual=False, scaled=False, **DEEP),
    ),
    "language-model-unmasked": (NoEncoderConfig(), TransformerDecoderConfig(masked=False, **DEEP)),
    "language-model-lstm": (NoEncoderConfig(), RecurrentDecoderConfig(attention="none", cell="lstm", **RNN)),
}


@pytest.mark.parametrize("name", VARIANTS)
def test_variants_compute_the_same(name: str, tmp_path: Path) -> None:
    """Also several rows of one sentence, as a beam has them: its memory serves every row."""
    torch.manual_seed(0)
    encoder, decoder = VARIANTS[name]
    words = 0 if encoder.kind == "none" else WORDS
    model = varied(EncoderDecoder(EncoderDecoderConfig(words, WORDS, encoder, decoder, longest=32)))
    folder = export_graphs(model, tmp_path / "onnx")
    check_steps(model, folder)
    check_steps(model, folder, beams=3)


@pytest.mark.parametrize("attention", ["bahdanau", "conditional", "luong", "transformer"])
def test_a_pointer_computes_the_same(attention: Any, tmp_path: Path) -> None:
    """Unknown words on both sides, and a beam of three rows over the memory of one sentence."""
    torch.manual_seed(0)
    decoder: Any = TransformerDecoderConfig(copy=True, **DEEP)
    if attention != "transformer":
        decoder = RecurrentDecoderConfig(attention=attention, energy="general", copy=True, **RNN)
    model = varied(EncoderDecoder(EncoderDecoderConfig(WORDS, WORDS, TEXT, decoder, slots=20)))
    folder = export_graphs(model, tmp_path / "onnx")
    assert bool((sources(model)[0] >= WORDS - 20).any())
    check_steps(model, folder)
    check_steps(model, folder, beams=3)


@pytest.mark.parametrize("pooling", ["mean", "last", "max", "static", "learned", "attention"])
def test_poolings_compute_the_same(pooling: Any, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = varied(Classifier(ClassifierConfig(WORDS, 3, TEXT, HeadConfig(pooling=pooling, hidden=8))))
    check(model, export_graphs(model, tmp_path / "onnx"))


def test_a_text_of_words_that_every_text_has(tmp_path: Path) -> None:
    """With the plain formula their TF-IDF is 0: no weight anywhere, and the vector 0."""
    torch.manual_seed(0)
    model = varied(Classifier(ClassifierConfig(WORDS, 3, TEXT, HeadConfig(pooling="static", idf="plain"))))
    model.static.idf.copy_(torch.rand(WORDS))
    model.static.idf[sources(model)[0][1]] = 0.0
    check(model, export_graphs(model, tmp_path / "onnx"))


@pytest.mark.parametrize("name", [name for name in load_model_and_tokenizers.shipped() if "tatoeba" in name])
def test_shipped_translators_write_the_same(name: str, tmp_path: Path) -> None:
    """Greedy search over the graphs gives the tokens and weights of our own, and tied weights are stored once."""
    loaded = load_model_and_tokenizers.load(name)
    folder = export_onnx(loaded.model, loaded.tokenizers, tmp_path / "onnx")
    largest = max((folder / f"{part}.onnx").stat().st_size for part in ("encoder", "decoder"))
    assert largest < 0.8 * (loaded.folder / "model.safetensors").stat().st_size
    (result,) = translate(loaded.model, loaded.tokenizers, ["My sister has a small black dog."], beams=1, weights=True)
    tokens, weights = greedy(folder, result.source_tokens, len(result.tokens))
    assert tokens == result.tokens
    assert result.weights is not None
    close(result.weights, np.stack(weights, 1))


def test_an_existing_folder_is_refused(tmp_path: Path) -> None:
    loaded = load_model_and_tokenizers.load("opinions-lstm")
    with pytest.raises(ValueError, match="is there already"):
        export_onnx(loaded.model, loaded.tokenizers, tmp_path)


def test_without_the_package_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = load_model_and_tokenizers.load("opinions-lstm")
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(ValueError, match=r"pip install 'regard\[export\]'"):
        export_onnx(loaded.model, loaded.tokenizers, tmp_path / "onnx")


def test_the_command(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["export", "opinions-lstm", "--to", "onnx", "--out", str(tmp_path / "onnx")])
    assert done.exit_code == 0
    assert "wrote" in done.output
    assert (tmp_path / "onnx" / "classifier.onnx").is_file()
    assert (tmp_path / "onnx" / "labels.json").is_file()


pytest.importorskip("onnxruntime", reason="needs the extra `export`")

SENTENCES = [
    "Where is the library?",
    "My sister has a small black dog.",
    "I have never seen such a beautiful garden.",
    "It is raining.",
    "He did not say anything because he was tired.",
    "We will have to wait until tomorrow morning.",
    "What time is it?",
    "She works for a small company.",
    "I like this red car.",
    "Do you speak French?",
]


@pytest.mark.parametrize("name", ["tatoeba-transformer-en-fr", "tatoeba-bahdanau-en-fr"])
def test_most_translations_are_those_of_torch(name: str, tmp_path: Path) -> None:
    """Of 200 sentences of the test set, 195 and 193 were the same; of these ten, two may differ."""
    loaded = load_model_and_tokenizers.load(name)
    folders = [
        export_onnx(loaded.model, loaded.tokenizers, tmp_path / kind, quantization=kind) for kind in ("none", "int8")
    ]
    assert json.loads((folders[1] / "onnx.json").read_text())["quantization"] == "int8"
    floats, bytes_ = (sum(file.stat().st_size for file in folder.glob("*.onnx")) for folder in folders)
    assert bytes_ < 0.85 * floats  # the floats of models that ship have two bytes, and recurrent layers stay so
    assert not list(folders[1].glob("*.float.onnx"))
    expected = list(translate(loaded.model, loaded.tokenizers, SENTENCES, beams=1))
    same = [greedy(folders[1], each.source_tokens, 60)[0] == each.tokens for each in expected]
    assert sum(same) >= len(SENTENCES) - 2


def test_without_onnxruntime_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = load_model_and_tokenizers.load("opinions-lstm")
    monkeypatch.setitem(sys.modules, "onnxruntime.quantization", None)
    with pytest.raises(ValueError, match=r"int8 graphs need .* pip install 'regard\[export\]'"):
        export_onnx(loaded.model, loaded.tokenizers, tmp_path / "onnx", quantization="int8")
    assert not (tmp_path / "onnx").exists()
