"""CTranslate2: what we write for it translates greedily as we do, token for token."""

from __future__ import annotations

import json
import math
import sys
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest
import torch

from regard import cli
from regard.data import Tokenizer, TokenizerPair
from regard.data.corpora import phrasebook
from regard.decoding import (
    CTranslate2,
    Sample,
    export_ctranslate2,
    model_folders,
    translate,
)
from regard.decoding import ctranslate2 as ctranslate2_engine
from regard.models import (
    EncoderDecoder,
    EncoderDecoderConfig,
    RecurrentDecoderConfig,
    RecurrentEncoderConfig,
    TransformerDecoderConfig,
    TransformerEncoderConfig,
)
from tests.support.small_translators import with_sharp_logits

if TYPE_CHECKING:
    from pathlib import Path

pytest.importorskip("ctranslate2", reason="needs the extra `export`")

WORDS = [
    "the",
    "a",
    "red",
    "blue",
    "big",
    "small",
    "car",
    "house",
    "bird",
    "sees",
    "eats",
    "finds",
    "early",
    "late",
    "under",
]
TEXTS = [f"{a} {b} {c} {d} ." for a in WORDS[:2] for b in WORDS[2:6] for c in WORDS[6:9] for d in WORDS[9:]]


@pytest.fixture(scope="module")
def tokenizers() -> TokenizerPair:
    both = Tokenizer.train("bpe", 120, TEXTS)
    return TokenizerPair(both, both)


def transformer(size: int, *, norm: str = "pre", tied: str = "none", seed: int = 0, **part: object) -> EncoderDecoder:
    """Random, but sharp: logits far apart, and sentences that end."""
    torch.manual_seed(seed)
    sizes = {"width": 32, "heads": 4, "hidden": 64, "layers": 2, "norm": norm, **part}
    model = EncoderDecoder(
        EncoderDecoderConfig(
            size, size, TransformerEncoderConfig(**sizes), TransformerDecoderConfig(**sizes), tied=tied
        )
    )
    return with_sharp_logits(model)


@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize("tied", ["none", "all"])
def test_greedy_translations_are_the_same_tokens(
    norm: str, tied: str, tokenizers: TokenizerPair, tmp_path: Path
) -> None:
    model = transformer(len(tokenizers.source), norm=norm, tied=tied)
    engine = CTranslate2(export_ctranslate2(model, tokenizers, tmp_path / "fast"), tokenizers)
    texts = [*TEXTS, " ".join(TEXTS[:6]), ""]
    ours, theirs = (list(translate(it, tokenizers, texts, beams=1)) for it in (model, engine))
    assert [t.tokens for t in ours] == [t.tokens for t in theirs]
    assert [t.text for t in ours] == [t.text for t in theirs]
    assert len({tuple(t.tokens) for t in ours}) > 5, "the model says the same to everything"


@pytest.mark.skipif(
    model_folders.DEFAULT not in model_folders.shipped(),
    reason="the Transformer does not ship yet",
)
def test_the_model_that_ships_says_the_same_to_500_sentences(tmp_path: Path) -> None:
    folder, _ = model_folders.find(model_folders.DEFAULT)
    model, tokenizers = EncoderDecoder.from_pretrained(folder), TokenizerPair.load(folder)
    engine = CTranslate2(export_ctranslate2(model, tokenizers, tmp_path / "fast"), tokenizers)
    texts = [pair.source for pair in phrasebook.pairs(500, seed=1)]
    ours, theirs = (list(translate(it, tokenizers, texts, beams=1)) for it in (model, engine))
    assert [t.tokens for t in ours] == [t.tokens for t in theirs]


def test_longest_cuts_both_alike(tokenizers: TokenizerPair, tmp_path: Path) -> None:
    model = transformer(len(tokenizers.source))
    engine = CTranslate2(export_ctranslate2(model, tokenizers, tmp_path / "fast"), tokenizers)
    ours, theirs = (list(translate(it, tokenizers, TEXTS[:9], beams=1, longest=3)) for it in (model, engine))
    assert [t.tokens for t in ours] == [t.tokens for t in theirs]
    assert max(len(t.tokens) for t in ours) == 4  # with </s>


def test_beams_n_best_and_samples_run(tokenizers: TokenizerPair, tmp_path: Path) -> None:
    model = transformer(len(tokenizers.source))
    engine = CTranslate2(export_ctranslate2(model, tokenizers, tmp_path / "fast"), tokenizers)
    (several,) = translate(engine, tokenizers, TEXTS[:1], beams=4, best=3)
    assert len(set(several.texts)) == 3
    assert several.hypotheses[0].score >= several.hypotheses[2].score
    assert math.isnan(several.hypotheses[0].logprob), "a score that is no log p(y | x) must not pass for one"
    drawn = [
        [t.tokens for t in translate(engine, tokenizers, TEXTS[:5], beams=1, sample=Sample(1.0, seed=seed))]
        for seed in (1, 1, 2)
    ]
    assert drawn[0] != drawn[2]
    with pytest.raises(ValueError, match="no weights"):
        list(translate(engine, tokenizers, TEXTS[:1], weights=True))


def test_the_folder_stands_alone_and_nothing_is_left_beside_it(tokenizers: TokenizerPair, tmp_path: Path) -> None:
    folder = export_ctranslate2(transformer(len(tokenizers.source)), tokenizers, tmp_path / "fast")
    assert [path.name for path in tmp_path.iterdir()] == ["fast"]
    assert {"model.bin", "config.json", "tokenizer.json", "shared_vocabulary.json"} <= {
        p.name for p in folder.iterdir()
    }
    vocabulary = json.loads((folder / "shared_vocabulary.json").read_text(encoding="utf-8"))
    assert vocabulary[:4] == ["<pad>", "<s>", "</s>", "<unk>"]
    with pytest.raises(ValueError, match="is there already"):
        export_ctranslate2(transformer(len(tokenizers.source)), tokenizers, folder)


@pytest.mark.parametrize(
    ("part", "reason"),
    [
        ({"positions": "rotary"}, "only sinusoidal positions .* 'rotary'"),
        ({"positions": "learned"}, "only sinusoidal positions .* 'learned'"),
        ({"key_heads": 2}, "shared key/value heads"),
    ],
)
def test_other_transformers_are_refused_with_the_reason(
    part: dict[str, object], reason: str, tokenizers: TokenizerPair, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=reason):
        export_ctranslate2(transformer(len(tokenizers.source), **part), tokenizers, tmp_path / "fast")
    assert not (tmp_path / "fast").exists()


def test_rnns_are_refused(tokenizers: TokenizerPair, tmp_path: Path) -> None:
    small = RecurrentEncoderConfig(embedding=8, width=8), RecurrentDecoderConfig(embedding=8, width=8)
    model = EncoderDecoder(EncoderDecoderConfig(len(tokenizers.source), len(tokenizers.source), *small))
    with pytest.raises(ValueError, match="CTranslate2 runs Transformers; this model's encoder is of kind 'rnn'"):
        export_ctranslate2(model, tokenizers, tmp_path / "fast")


def test_what_reads_sound_is_refused(tokenizers: TokenizerPair, tmp_path: Path) -> None:
    encoder = TransformerEncoderConfig(reads="sound", width=16, heads=2, layers=1, hidden=16)
    decoder = TransformerDecoderConfig(width=16, heads=2, layers=1, hidden=16)
    model = EncoderDecoder(EncoderDecoderConfig(0, len(tokenizers.source), encoder, decoder))
    with pytest.raises(ValueError, match="CTranslate2 runs models of text; this model reads sound"):
        export_ctranslate2(model, tokenizers, tmp_path / "fast")


def test_a_folder_without_a_model_is_refused(tokenizers: TokenizerPair, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="regard export"):
        CTranslate2(tmp_path, tokenizers)


@pytest.mark.parametrize(("name", "expected"), [("cpu", ("cpu", 0)), ("cuda", ("cuda", 0)), ("cuda:1", ("cuda", 1))])
def test_devices_are_named_as_pytorch_names_them(
    name: str,
    expected: tuple[str, int],
    tokenizers: TokenizerPair,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen = {}
    (tmp_path / "model.bin").touch()
    library = SimpleNamespace(Translator=lambda folder, **how: seen.update(how))
    monkeypatch.setattr(ctranslate2_engine, "library", lambda: library)
    CTranslate2(tmp_path, tokenizers, name)
    assert (seen["device"], seen["device_index"]) == expected


def test_a_model_that_ships_is_written_into_the_current_folder(
    tokenizers: TokenizerPair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shipped, here = tmp_path / "shipped", tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    monkeypatch.setattr(model_folders, "SHIPPED", shipped)
    for model in (shipped / "small", here / "run" / "model"):
        transformer(len(tokenizers.source)).save_pretrained(model)
        tokenizers.save(model)
    before = sorted(shipped.rglob("*"))
    with pytest.raises(ValueError, match="no folder small-ctranslate2; write it with: regard export small"):
        model_folders.load("small", engine="ctranslate2")
    for name, written in (("small", "small-ctranslate2"), ("run", "run/ctranslate2")):
        monkeypatch.setattr(sys, "argv", ["regard", "export", name])
        with pytest.raises(SystemExit) as left:
            cli.main()
        assert not left.value.code
        assert capsys.readouterr().out.startswith(f"wrote {written} (")
        assert str(model_folders.load(name, engine="ctranslate2").folder) == written
    assert sorted(shipped.rglob("*")) == before


def test_int8_translates_nearly_the_same(tmp_path: Path) -> None:
    """Of 200 sentences of the test set, 198 were the same; the file is less than half as large."""
    loaded = model_folders.load("tatoeba-transformer-en-fr")
    sentences = ["Where is the library?", "It is raining.", "I like this red car.", "What time is it?", "He is tired."]
    folders = [
        export_ctranslate2(loaded.model, loaded.tokenizers, tmp_path / kind, quantization=kind)  # type: ignore[arg-type]
        for kind in ("none", "int8")
    ]
    floats, bytes_ = ((folder / "model.bin").stat().st_size for folder in folders)
    assert bytes_ < 0.5 * floats
    outputs = [
        [each.text for each in translate(CTranslate2(folder, loaded.tokenizers), loaded.tokenizers, sentences, beams=1)]
        for folder in folders
    ]
    assert sum(a == b for a, b in zip(*outputs, strict=True)) >= len(sentences) - 1
