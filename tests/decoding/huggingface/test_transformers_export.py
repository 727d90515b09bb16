"""Folders for `transformers`: what is loaded from them computes what our model computes, token for token."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

import pytest
import torch

pytest.importorskip("transformers", reason="needs the extra `export`")

from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM, AutoTokenizer

from regard import cli
from regard.data import Tokenizer, TokenizerPair
from regard.data.corpora import phrasebook
from regard.data.source_reader import EmptyReader
from regard.decoding import generate, load_model_and_tokenizers, translate
from regard.decoding.huggingface import export_transformers, transformers_export
from regard.models import (
    EncoderDecoder,
    EncoderDecoderConfig,
    NoEncoderConfig,
    RecurrentDecoderConfig,
    RecurrentEncoderConfig,
    TransformerDecoderConfig,
    TransformerEncoderConfig,
)
from tests.support.small_translators import with_sharp_logits

if TYPE_CHECKING:
    from pathlib import Path

PAIRS = list(phrasebook.pairs(120, seed=3))
TEXTS = [pair.source for pair in PAIRS[:40]]
SIZES: dict[str, Any] = {"width": 32, "heads": 4, "hidden": 48, "layers": 2}


@pytest.fixture(scope="module")
def shared() -> TokenizerPair:
    return TokenizerPair.train("bpe", 200, PAIRS)


@pytest.fixture(scope="module")
def separate() -> TokenizerPair:
    source = Tokenizer.train("bpe", 180, [pair.source for pair in PAIRS])
    return TokenizerPair(source, Tokenizer.train("bpe", 130, [pair.target for pair in PAIRS]))


def _translator(tokenizers: TokenizerPair, tied: str = "none", **part: Any) -> EncoderDecoder:
    torch.manual_seed(0)
    sides = (
        TransformerEncoderConfig(**{**SIZES, "layers": 1, **part}),
        TransformerDecoderConfig(**{**SIZES, "heads": 2, **part}),
    )
    sizes = tokenizers.source_size, len(tokenizers.target)
    return with_sharp_logits(EncoderDecoder(EncoderDecoderConfig(*sizes, *sides, tied=tied, longest=96)))  # type: ignore[arg-type]


def _language_model(tokenizers: TokenizerPair, **part: Any) -> EncoderDecoder:
    torch.manual_seed(0)
    decoder = TransformerDecoderConfig(**{**SIZES, **part})
    config = EncoderDecoderConfig(0, len(tokenizers.target), NoEncoderConfig(), decoder, longest=128)
    return with_sharp_logits(EncoderDecoder(config))


def _translations(folder: Path, texts: list[str], **how: Any) -> list[list[int]]:
    """Ids that `generate` of the loaded folder writes, without <s>, </s> and <pad>."""
    model, tokenizer = AutoModelForSeq2SeqLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    batch = tokenizer(texts, padding=True, return_tensors="pt")
    return [[i for i in row if i > 2] for row in model.generate(**batch, **how).tolist()]


@pytest.mark.parametrize(
    ("norm", "positions", "kind"),
    [("post", "sinusoidal", "marian"), ("pre", "sinusoidal", "pegasus"), ("pre", "learned", "blenderbot")],
)
@pytest.mark.parametrize("tied", ["none", "decoder", "all"])
def test_greedy_translations_are_the_same_tokens(
    norm: str, positions: str, kind: str, tied: str, shared: TokenizerPair, tmp_path: Path
) -> None:
    model = _translator(shared, tied, norm=norm, positions=positions)
    folder = export_transformers(model, shared, tmp_path / "out")
    assert json.loads((folder / "config.json").read_text())["model_type"] == kind
    ours = [[i for i in t.tokens if i > 2] for t in translate(model, shared, TEXTS, beams=1, longest=12)]
    assert _translations(folder, TEXTS, num_beams=1, max_new_tokens=12) == ours
    assert len({tuple(each) for each in ours}) > 2, "the model says the same to everything"


def test_vocabularies_of_their_own(separate: TokenizerPair, tmp_path: Path) -> None:
    for number, (first, second) in enumerate([(separate.source, separate.target), (separate.target, separate.source)]):
        tokenizers = TokenizerPair(first, second)
        model = _translator(tokenizers, norm="post")
        folder = export_transformers(model, tokenizers, tmp_path / str(number))
        texts = TEXTS[:8]
        ours = list(translate(model, tokenizers, texts, beams=1, longest=12))
        found = _translations(folder, texts, num_beams=1, max_new_tokens=12)
        assert found == [[i for i in t.tokens if i > 2] for t in ours]
        target = AutoTokenizer.from_pretrained(folder, subfolder="target_tokenizer")
        assert target.batch_decode(found, skip_special_tokens=True) == [t.text for t in ours]
        assert 'subfolder="target_tokenizer"' in (folder / "README.md").read_text()


@pytest.mark.parametrize(
    ("norm", "positions", "kind"),
    [
        ("pre", "learned", "opt"),
        ("post", "learned", "opt"),
        ("pre", "sinusoidal", "opt"),
        ("pre", "rotary", "gpt_neox"),
    ],
)
@pytest.mark.parametrize("letters", [True, False])
def test_language_models_write_the_same(norm: str, positions: str, kind: str, letters: bool, tmp_path: Path) -> None:
    text = "\n".join(pair.source for pair in PAIRS)
    tokenizer = Tokenizer.train("character" if letters else "bpe", 150, [text])
    tokenizers = TokenizerPair(EmptyReader(), tokenizer)
    model = _language_model(tokenizers, norm=norm, positions=positions)
    folder = export_transformers(model, tokenizers, tmp_path / "out")
    assert json.loads((folder / "config.json").read_text())["model_type"] == kind
    loaded, theirs = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    for prompt in (TEXTS[0][:30], f"{TEXTS[1][:20]}\n{TEXTS[2][:9]}"):
        batch = theirs([prompt], return_tensors="pt")
        assert batch["input_ids"][0].tolist() == tokenizer.continued(prompt)
        written = loaded.generate(**batch, max_new_tokens=9)[0].tolist()
        ours = "".join(generate(model, tokenizer, prompt, tokens=9))
        assert tokenizer.running([i for i in written[batch["input_ids"].shape[1] :] if i > 2]) == ours


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        ("bpe", {}),
        ("bpe", {"lowercase": True}),
        ("unigram", {}),
        ("word", {}),
        ("word", {"punctuation": True}),
        ("character", {}),
    ],
)
def test_texts_are_encoded_and_decoded_alike(kind: str, settings: dict[str, bool], tmp_path: Path) -> None:
    tokenizers = TokenizerPair.train(kind, 200, PAIRS, **settings)
    tokenizers.source.add_tags(["<2fr>"])
    folder = export_transformers(_translator(tokenizers), tokenizers, tmp_path / "out")
    theirs = AutoTokenizer.from_pretrained(folder)
    texts = [*TEXTS[:5], "what </s> a <pad> is", "<s>", "a</s>b", "Où   est-elle ?", "<2fr> the bird", ""]
    for text in texts:
        assert theirs(text)["input_ids"] == [*tokenizers.source.encode(text), 2]
    ids = [i for i in tokenizers.target.encode(PAIRS[0].target) if i > 3]  # without <unk>, which they leave out
    assert theirs.decode([1, *ids, 2, 0], skip_special_tokens=True) == tokenizers.target.decode(ids)


CARD = "A Transformer.\n\n## Data\n\nSentences.\n"


def _run_card(folder: Path) -> str:
    """The script of the model card, with random weights, which write until the limit of the folder."""
    card = (folder / "README.md").read_text(encoding="utf-8")
    exec(compile(card.split("```python\n")[1].split("```")[0], "README.md", "exec"), {})
    return card


@pytest.mark.parametrize("joint", [True, False])
@pytest.mark.parametrize("positions", ["sinusoidal", "learned"])
def test_the_script_of_a_translators_card_runs(
    joint: bool,
    positions: str,
    shared: TokenizerPair,
    separate: TokenizerPair,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    tokenizers = shared if joint else separate
    export_transformers(_translator(tokenizers, positions=positions), tokenizers, 'a "good" one', card=CARD)
    card = _run_card(tmp_path / 'a "good" one')
    head = "---\nlibrary_name: transformers\npipeline_tag: translation\n---\n\n"
    assert card.startswith(f'{head}# a "good" one\n\nA Transformer.\n')
    assert card.endswith("```\n\n## Data\n\nSentences.\n")


@pytest.mark.parametrize("positions", ["sinusoidal", "learned", "rotary"])
def test_the_script_of_a_language_models_card_runs(
    positions: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    tokenizer = Tokenizer.train("character", 150, ["The beginning of a text"])
    tokenizers = TokenizerPair(EmptyReader(), tokenizer)
    export_transformers(_language_model(tokenizers, positions=positions), tokenizers, "out")
    assert "pipeline_tag: text-generation" in _run_card(tmp_path / "out")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_models_of_other_precisions_are_exported_in_float32(
    dtype: torch.dtype, shared: TokenizerPair, tmp_path: Path
) -> None:
    tokenizers = TokenizerPair(EmptyReader(), shared.target)
    for model, pair in ((_translator(shared), shared), (_language_model(tokenizers), tokenizers)):
        folder = export_transformers(model.to(dtype), pair, tmp_path / model.task)
        assert json.loads((folder / "config.json").read_text())["dtype"] == "float32"
        assert next(model.parameters()).dtype == dtype


@pytest.mark.skipif(
    load_model_and_tokenizers.DEFAULT not in load_model_and_tokenizers.shipped(),
    reason="the Transformer does not ship yet",
)
def test_the_models_that_ship_by_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in (load_model_and_tokenizers.DEFAULT, "shakespeare-transformer"):
        monkeypatch.setattr(sys, "argv", ["regard", "export", name, "--to", "transformers", "--out", f"out/{name}"])
        with pytest.raises(SystemExit) as left:
            cli.main()
        assert not left.value.code
        assert capsys.readouterr().out.startswith(f"wrote out/{name} (")
    loaded = load_model_and_tokenizers.load(load_model_and_tokenizers.DEFAULT)
    folder, texts = tmp_path / "out" / load_model_and_tokenizers.DEFAULT, [pair.source for pair in PAIRS[:60]]
    ours = [[i for i in t.tokens if i > 2] for t in translate(loaded.model, loaded.tokenizers, texts, beams=1)]
    theirs = _translations(folder, texts, num_beams=1)
    assert [
        found[: len(each)] for found, each in zip(theirs, ours, strict=True)
    ] == ours  # ours stop at 2 · source + 10
    assert sum(found == each for found, each in zip(theirs, ours, strict=True)) > 50
    card = (folder / "README.md").read_text(encoding="utf-8")
    assert card.startswith("---\nlibrary_name: transformers\n")
    assert card.index("AutoModelForSeq2SeqLM") < card.index("## Where the sentences come from")
    monkeypatch.setattr(sys, "argv", ["regard", "translate", "--model", str(folder), "It rains."])
    with pytest.raises(SystemExit) as left:
        cli.main()
    assert "it is a model of transformers" in str(left.value.code)


def test_the_loaded_model_can_be_fine_tuned(separate: TokenizerPair, tmp_path: Path) -> None:
    folder = export_transformers(_translator(separate, norm="post"), separate, tmp_path / "out")
    model = AutoModelForSeq2SeqLM.from_pretrained(folder).train()
    source = AutoTokenizer.from_pretrained(folder)
    target = AutoTokenizer.from_pretrained(folder, subfolder="target_tokenizer")
    batch = source(TEXTS[:4], padding=True, return_tensors="pt")
    labels = target([pair.target for pair in PAIRS[:4]], padding=True, return_tensors="pt")["input_ids"]
    optimizer = torch.optim.Adam(model.parameters(), 5e-3)
    losses = []
    for _ in range(20):
        loss = model(**batch, labels=labels.masked_fill(labels == 0, -100)).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < 0.8 * losses[0]
    logits = model(**batch, labels=labels).logits
    smoothed = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), label_smoothing=0.1)
    assert smoothed < 20  # the ids that only the source has add a constant


@pytest.mark.parametrize(
    ("part", "reason"),
    [
        ({"positions": "rotary"}, r"no class for this translator: .* \('pre', 'rotary'\)"),
        ({"positions": "learned", "norm": "post"}, "no class for this translator"),
        ({"key_heads": 1}, "shared key/value heads"),
        ({"norm": "none"}, "only layers with norms"),
    ],
)
def test_other_transformers_are_refused_with_the_reason(
    part: dict[str, Any], reason: str, shared: TokenizerPair, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=reason):
        export_transformers(_translator(shared, **part), shared, tmp_path / "out")
    assert not list(tmp_path.iterdir())


def test_other_models_settings_and_folders_are_refused(shared: TokenizerPair, tmp_path: Path) -> None:
    small = RecurrentEncoderConfig(embedding=8, width=8), RecurrentDecoderConfig(embedding=8, width=8)
    recurrent = EncoderDecoder(EncoderDecoderConfig(len(shared.source), len(shared.source), *small))
    with pytest.raises(ValueError, match="transformers runs Transformers; this model's encoder is of kind 'rnn'"):
        export_transformers(recurrent, shared, tmp_path / "out")
    with pytest.raises(ValueError, match="int8 folders are not written for transformers"):
        export_transformers(_translator(shared), shared, tmp_path / "out", quantization="int8")
    language_model = _language_model(shared, norm="post", positions="rotary")
    with pytest.raises(ValueError, match="no class for this language model: norm = 'post', positions = 'rotary'"):
        export_transformers(language_model, TokenizerPair(EmptyReader(), shared.target), tmp_path / "out")
    classifier = load_model_and_tokenizers.load("opinions-lstm")
    with pytest.raises(ValueError, match="no classifier with attention as its pooling"):
        export_transformers(classifier.model, classifier.tokenizers, tmp_path / "out")
    with pytest.raises(ValueError, match="is there already"):
        export_transformers(_translator(shared), shared, tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_class_that_computes_something_else_is_refused(
    shared: TokenizerPair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build = transformers_export.build_translator

    def changed(*arguments: Any) -> Any:
        model = build(*arguments)
        with torch.no_grad():
            model.model.encoder.layers[0].fc1.bias += 0.01
        return model

    monkeypatch.setattr(transformers_export, "build_translator", changed)
    with pytest.raises(RuntimeError, match=r"the logits of Pegasus\w+ .* nothing was written"):
        export_transformers(_translator(shared), shared, tmp_path / "out")
    assert not list(tmp_path.iterdir())
