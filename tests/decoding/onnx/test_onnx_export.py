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
from regard.data import LabelSet, Tokenizer, TokenizerPair
from regard.data.picture_reader import PictureReader
from regard.data.sound_reader import SoundReader
from regard.data.source_reader import EmptyReader
from regard.decoding import load_model_and_tokenizers, translate
from regard.decoding.onnx import export_onnx
from regard.models import (
    Classifier,
    ClassifierConfig,
    EncoderDecoder,
    EncoderDecoderConfig,
    HeadConfig,
    LSTMNDecoderConfig,
    LSTMNEncoderConfig,
    NoEncoderConfig,
    RecurrentDecoderConfig,
    RecurrentEncoderConfig,
    ShowAttendTellDecoderConfig,
    TransformerDecoderConfig,
    TransformerEncoderConfig,
)
from regard.models.encoders.efficientnet_encoder import EfficientNetEncoderConfig
from tools import systems_page as systems

if TYPE_CHECKING:
    from pathlib import Path

onnxruntime = pytest.importorskip("onnxruntime", reason="needs the extra `dev`")

CLOSE = 1e-4  # float32, of numbers about 1
WORDS = 40  # of the vocabularies
NOT_EXPORTED = (LSTMNEncoderConfig, LSTMNDecoderConfig, EfficientNetEncoderConfig)


def sources(reads: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Two sources of different lengths."""
    torch.manual_seed(1)
    if reads == "picture":
        return torch.randint(0, 256, (2, 64, 64, 3), dtype=torch.uint8), torch.ones(2, dtype=torch.long)
    if reads == "sound":
        return torch.randint(-9000, 9000, (2, 2400), dtype=torch.int16), torch.tensor([2400, 1500])
    ids = torch.randint(4, WORDS, (2, 7))
    ids[1, 5:] = 0
    return ids, torch.tensor([7, 5])


def tokenizers(reads: str, classifies: bool) -> TokenizerPair:
    text = Tokenizer.train("character", WORDS, ["abcdefghijklmnopqrstuvwxyz"])
    readers: dict[str, Any] = {"picture": PictureReader(64), "sound": SoundReader(), "none": EmptyReader()}
    return TokenizerPair(readers.get(reads, text), LabelSet(["a", "b", "c"]) if classifies else text)


def graph(folder: Path, name: str) -> Any:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(folder / f"{name}.onnx", options)
    names = [output.name for output in session.get_outputs()]
    return lambda inputs: dict(zip(names, session.run(names, inputs), strict=True))


def fed(source: torch.Tensor, lengths: torch.Tensor) -> dict[str, np.ndarray]:
    array = source.numpy() if source.dtype == torch.long else source.float().numpy()
    return {"source": array, "lengths": lengths.numpy()}


def close(ours: torch.Tensor, theirs: np.ndarray) -> None:
    torch.testing.assert_close(ours, torch.from_numpy(theirs), atol=CLOSE, rtol=CLOSE)


def varied(model: Any) -> Any:
    """A model whose biases are not zero, as those of a new one are."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += torch.randn_like(parameter) * 0.1
    return model.eval()


@torch.no_grad()
def check_steps(model: EncoderDecoder, folder: Path) -> None:
    """Four steps with the same tokens: logits and weights of `forward`."""
    reads = model.config.encoder.reads
    tokens = torch.randint(4, WORDS, (2, 4))
    if reads == "none":
        annotations = model.encode(torch.ones(2, 1, dtype=torch.long), torch.ones(2, dtype=torch.long))
        state = {
            f"state.{name}": np.zeros([2 if n == "rows" else 0 if n == "steps" else n for n in x["shape"]], x["dtype"])
            for name, x in json.loads((folder / "onnx.json").read_text())["state"].items()
        }
        memory = {}
    else:
        source, lengths = sources(reads)
        annotations = model.encode(source, lengths)
        start = graph(folder, "encoder")(fed(source, lengths))
        state, memory = ({k: v for k, v in start.items() if k.startswith(f"{x}.")} for x in ("state", "memory"))
    decoded = model.decoder(tokens, annotations, weights=True)
    logits, step = model.readout(decoded.features), graph(folder, "decoder")
    for t in range(tokens.shape[1]):
        result = step({"token": tokens[:, t].numpy(), **memory, **state})
        close(logits[:, t], result["logits"])
        assert ("weights" in result) == (decoded.weights is not None)
        if decoded.weights is not None:
            close(decoded.weights[:, :, t].float(), result["weights"])
        state = {k.replace("next.", "state."): v for k, v in result.items() if k.startswith("next.")}


@pytest.mark.parametrize(("reads", "encoder", "part"), systems.cells(), ids=lambda name: str(name).replace(" ", "-"))
def test_every_system_computes_the_same_or_says_why_not(reads: str, encoder: str, part: str, tmp_path: Path) -> None:
    head, below = systems.HEADS.get(part), systems.ENCODERS[reads, encoder]
    words = WORDS if below.reads == "text" else 0
    torch.manual_seed(0)
    model: Any
    if head is not None:
        model = varied(Classifier(ClassifierConfig(words, 3, below, head)))
    else:
        decoder = systems.paired(below, systems.WRITERS[part])
        model = varied(EncoderDecoder(EncoderDecoderConfig(words, WORDS, below, decoder)))
    sides = tokenizers(below.reads, head is not None)
    if isinstance(below, NOT_EXPORTED) or isinstance(getattr(model.config, "decoder", None), NOT_EXPORTED):
        with pytest.raises(ValueError, match="is not exported to ONNX; exported are"):
            export_onnx(model, sides, tmp_path / "onnx")
        assert not (tmp_path / "onnx").exists()
        return
    folder = export_onnx(model, sides, tmp_path / "onnx")
    if head is None:
        check_steps(model, folder)
        return
    source, lengths = sources(below.reads)
    with torch.no_grad():
        expected = model(source, lengths, weights=True)
    result = graph(folder, "classifier")(fed(source, lengths))
    close(expected.logits, result["logits"])
    assert result["places"].tolist() == expected.places.tolist()
    assert ("weights" in result) == (expected.weights is not None)
    if expected.weights is not None:
        close(expected.weights.float(), result["weights"])
    if words:
        close(model.rarity(source, lengths), result["static"])


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
    "language-model-lstm": (NoEncoderConfig(), RecurrentDecoderConfig(attention="none", cell="lstm", **RNN)),
}


@pytest.mark.parametrize("name", VARIANTS)
def test_variants_compute_the_same(name: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    encoder, decoder = VARIANTS[name]
    words = 0 if encoder.kind == "none" else WORDS
    model = varied(EncoderDecoder(EncoderDecoderConfig(words, WORDS, encoder, decoder, longest=32)))
    check_steps(model, export_onnx(model, tokenizers(encoder.reads, False), tmp_path / "onnx"))


@pytest.mark.parametrize("attention", ["bahdanau", "conditional", "luong", "transformer"])
def test_a_pointer_computes_the_same(attention: Any, tmp_path: Path) -> None:
    """Unknown words on both sides, and a beam of three rows over the memory of one sentence."""
    torch.manual_seed(0)
    decoder: Any = TransformerDecoderConfig(copy=True, **DEEP)
    if attention != "transformer":
        decoder = RecurrentDecoderConfig(attention=attention, energy="general", copy=True, **RNN)
    model = varied(EncoderDecoder(EncoderDecoderConfig(WORDS, WORDS, TEXT, decoder, slots=20)))
    folder = export_onnx(model, tokenizers("text", False), tmp_path / "onnx")
    assert bool((sources("text")[0] >= WORDS - 20).any())
    check_steps(model, folder)
    source, lengths = sources("text")
    start = graph(folder, "encoder")(fed(source[:1], lengths[:1]))
    memory = {k: v for k, v in start.items() if k.startswith("memory.")}
    state = {k: v.repeat(3, 0) for k, v in start.items() if k.startswith("state.")}
    logits = graph(folder, "decoder")({"token": np.array([5, WORDS - 1, 5]), **memory, **state})["logits"]
    with torch.no_grad():
        annotations = model.encode(source[:1], lengths[:1]).select(torch.zeros(3, dtype=torch.long))
        tokens = torch.tensor([[5], [WORDS - 1], [5]])
        close(model.readout(model.decoder(tokens, annotations).features)[:, 0], logits)


@pytest.mark.parametrize("pooling", ["mean", "last", "max", "static", "learned", "attention"])
def test_poolings_compute_the_same(pooling: Any, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = varied(Classifier(ClassifierConfig(WORDS, 3, TEXT, HeadConfig(pooling=pooling, hidden=8))))
    source, lengths = sources("text")
    with torch.no_grad():
        expected = model(source, lengths, weights=True)
    result = graph(export_onnx(model, tokenizers("text", True), tmp_path / "onnx"), "classifier")(fed(source, lengths))
    close(expected.logits, result["logits"])
    if expected.weights is not None:
        close(expected.weights, result["weights"])


@pytest.mark.parametrize("name", [name for name in load_model_and_tokenizers.shipped() if "tatoeba" in name])
def test_shipped_translators_write_the_same(name: str, tmp_path: Path) -> None:
    """Greedy search over the graphs gives the tokens and weights of our own, and tied weights are stored once."""
    loaded = load_model_and_tokenizers.load(name)
    folder = export_onnx(loaded.model, loaded.tokenizers, tmp_path / "onnx")
    largest = max((folder / f"{part}.onnx").stat().st_size for part in ("encoder", "decoder"))
    assert largest < 0.8 * (loaded.folder / "model.safetensors").stat().st_size
    (result,) = translate(loaded.model, loaded.tokenizers, ["My sister has a small black dog."], beams=1, weights=True)
    source = torch.tensor([result.source_tokens])
    start = graph(folder, "encoder")(fed(source, torch.tensor([source.shape[1]])))
    state, memory = ({k: v for k, v in start.items() if k.startswith(f"{x}.")} for x in ("state", "memory"))
    token, step, weights = 1, graph(folder, "decoder"), []
    for expected in result.tokens:
        values = step({"token": np.array([token]), **memory, **state})
        state = {k.replace("next.", "state."): v for k, v in values.items() if k.startswith("next.")}
        token = int(values["logits"][0, 2:].argmax()) + 2  # <pad> and <s> are no words
        assert token == expected
        weights.append(values["weights"][0])
    assert result.weights is not None
    close(result.weights, np.stack(weights, 1))


def test_one_sentence_has_several_rows(tmp_path: Path) -> None:
    """A beam: the memory of one sentence serves every row."""
    torch.manual_seed(0)
    for name in (
        "sinusoidal-post-0",
        "bahdanau-concat-global",
        "conditional-additive-global",
        "luong-dot-local-m",
        "hard",
        "not-attending",
    ):
        model = varied(EncoderDecoder(EncoderDecoderConfig(WORDS, WORDS, *VARIANTS[name], longest=32)))
        folder = export_onnx(model, tokenizers("text", False), tmp_path / name)
        source, lengths = sources("text")
        start = graph(folder, "encoder")(fed(source[:1], lengths[:1]))
        memory = {k: v for k, v in start.items() if k.startswith("memory.")}
        state = {k: v.repeat(3, 0) for k, v in start.items() if k.startswith("state.")}
        logits = graph(folder, "decoder")({"token": np.array([5, 6, 5]), **memory, **state})["logits"]
        tokens = torch.tensor([[5], [6], [5]])
        rows = torch.zeros(3, dtype=torch.long)
        with torch.no_grad():
            annotations = model.encode(source[:1], lengths[:1]).select(rows)
            close(model.readout(model.decoder(tokens, annotations).features)[:, 0], logits)


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
