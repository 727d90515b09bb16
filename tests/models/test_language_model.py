"""Language models: windows of running text, and writers over nothing that learn from them."""

from __future__ import annotations

import csv
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch

import regard
from regard.data import EncodedCorpus, Pair, Tokenizer, TokenizerPair
from regard.data.batches import AdjacentWindows, RandomWindows
from regard.data.corpora import phrasebook
from regard.data.tokenizer import passages
from regard.data.tokenizer_pair import EmptyReader
from regard.models import (
    DecoderConfig,
    EncoderDecoder,
    EncoderDecoderConfig,
    LSTMNDecoderConfig,
    NoEncoderConfig,
    RecurrentDecoderConfig,
    TransformerDecoderConfig,
)
from tests.support.small_models import VOCABULARY

if TYPE_CHECKING:
    from pathlib import Path

WORDS = "".join(f"{pair.source}\n" for pair in phrasebook.pairs(400, seed=3))


def encoded(text: str, kind: str = "character") -> tuple[EncodedCorpus, Tokenizer]:
    tokenizer = Tokenizer.train(kind, 400, [text])  # type: ignore[arg-type]
    return EncodedCorpus.build([Pair("", text, 0)], TokenizerPair(EmptyReader(), tokenizer)), tokenizer


# ------------------------------------------------------------------------------------------------------------- windows


@pytest.mark.parametrize("kind", ["character", "bpe", "word", "unigram"])
def test_a_long_text_is_tokenised_in_parts_as_it_would_be_whole(kind: str) -> None:
    tokenizer = Tokenizer.train(kind, 300, [WORDS])  # type: ignore[arg-type]
    text = WORDS.replace(" a ", "  a ")  # two spaces, where no part may end
    parts = list(passages(text, 100))
    assert len(parts) > 10
    together = [i for part in parts for i in tokenizer.encode(part)]
    assert together == tokenizer.encode(text)


def test_characters_hold_line_ends_and_text_comes_back() -> None:
    tokenizer = Tokenizer.train("character", 300, [WORDS])
    text = "The dog.\n\nA cat  sees it\n"
    known = "".join(character for character in text if character in WORDS)
    ids = tokenizer.continued(known)
    assert len(ids) == len(known)
    assert tokenizer.running(ids) == known


def test_a_window_is_the_text() -> None:
    corpus, _ = encoded(WORDS)
    whole = corpus.target[1:-1]
    windows = RandomWindows(corpus, block=20, rows=3, seed=5)
    for batch in [windows[0], windows[len(windows) - 1]]:
        assert batch.target.shape == (3, 21)
        for row, start in zip(batch.target.numpy(), batch.rows.tolist(), strict=True):
            np.testing.assert_array_equal(row, whole[start : start + 21])


def test_seed_epoch_and_number_decide_a_batch_and_ranks_share_it() -> None:
    corpus, _ = encoded(WORDS)
    how = {"block": 16, "rows": 4}
    first = RandomWindows(corpus, seed=1, **how)[7].rows
    assert torch.equal(first, RandomWindows(corpus, seed=1, **how)[7].rows)
    others = [RandomWindows(corpus, seed=1, **how)[8], RandomWindows(corpus, seed=2, **how)[7]]
    others.append(RandomWindows(corpus, seed=1, epoch=1, **how)[7])
    assert all(not torch.equal(first, other.rows) for other in others)
    two = [RandomWindows(corpus, block=16, rows=2, seed=1, rank=rank, world=2)[7].rows for rank in (0, 1)]
    assert torch.equal(torch.cat(two), first)


def test_windows_begin_everywhere() -> None:
    corpus, _ = encoded("abcdefgh")
    windows = RandomWindows(corpus, block=5, rows=64, seed=0)
    assert set(windows[0].rows.tolist()) == set(range(len(corpus.target) - 2 - 5))


@pytest.mark.parametrize("world", [1, 3])
def test_blocks_predict_every_token_once(world: int) -> None:
    corpus, _ = encoded(WORDS[:301])
    seen = []
    for rank in range(world):
        for batch in AdjacentWindows(corpus, block=16, rows=4, rank=rank, world=world):
            for row, start, length in zip(
                batch.target, batch.rows.tolist(), batch.target_lengths.tolist(), strict=True
            ):
                seen += [(start + at, int(row[at])) for at in range(1, length)]
                assert row[length:].eq(0).all()
    assert sorted(seen) == list(enumerate(corpus.target[1:-1].tolist()))[1:]


def test_a_text_too_short_is_reported() -> None:
    corpus, _ = encoded("ab")
    with pytest.raises(ValueError, match="give more text"):
        RandomWindows(corpus, block=16, rows=2)
    with pytest.raises(ValueError, match=r"raise training\.tokens"):
        RandomWindows(corpus, block=16, rows=0)


# -------------------------------------------------------------------------------------------------------------- models

NOTHING = NoEncoderConfig()
WRITERS: dict[str, DecoderConfig] = {
    "Transformer": TransformerDecoderConfig(width=32, heads=2, hidden=64, layers=2, positions="learned", dropout=0.0),
    "LSTM": RecurrentDecoderConfig(
        attention="none", cell="lstm", embedding=32, width=48, layers=2, readout="plain", dropout=0.0
    ),
    "LSTMN": LSTMNDecoderConfig(fusion="none", embedding=32, width=40, layers=2, dropout=0.0),
}


def writer(decoder: DecoderConfig, vocabulary: int, longest: int = 64) -> EncoderDecoder:
    torch.manual_seed(1)
    return EncoderDecoder(EncoderDecoderConfig(0, vocabulary, NOTHING, decoder, longest=longest))


@pytest.mark.parametrize("name", WRITERS)
def test_a_language_model_learns(name: str) -> None:
    """Better than the frequencies of characters, on text it has not seen."""
    corpus, tokenizer = encoded(WORDS)
    unseen = "".join(f"{pair.source}\n" for pair in phrasebook.pairs(30, seed=3, split="test"))
    valid = EncodedCorpus.build([Pair("", unseen, 0)], TokenizerPair(EmptyReader(), tokenizer))
    model = writer(WRITERS[name], len(tokenizer))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    windows = RandomWindows(corpus, block=24, rows=8, seed=0)
    for update in range(60):
        loss = model.loss(windows[update % len(windows)])
        optimizer.zero_grad()
        (loss.total / loss.tokens).backward()
        optimizer.step()
    with torch.no_grad():
        losses = [model.eval().loss(batch) for batch in AdjacentWindows(valid, block=24, rows=16)]
    nll = sum(loss.nll.item() for loss in losses) / sum(loss.tokens.item() for loss in losses)
    counts = torch.bincount(torch.from_numpy(corpus.target).long()).double()
    share = counts[counts > 0] / counts.sum()
    frequencies = -(share * share.log()).sum().item()
    assert nll < 0.85 * frequencies, f"{nll:.2f} nats a character; frequencies alone give {frequencies:.2f}"


@pytest.mark.parametrize("name", WRITERS)
def test_forward_and_step_agree(name: str) -> None:
    model = writer(WRITERS[name], VOCABULARY).double().eval()
    tokens, source = torch.randint(4, VOCABULARY, (2, 9)), torch.full((2, 1), 2)
    with torch.no_grad():
        nothing = model.encode(source, torch.ones(2, dtype=torch.int64))
        whole = model(source, torch.ones(2, dtype=torch.int64), tokens, weights=True)
        state = model.decoder.start(nothing, beams=2, steps=9)
        for t in range(9):
            features, state, maps = model.decoder.step(tokens[:, t].repeat_interleave(2), state, weights=True)
            state = state.reorder(torch.tensor([1, 0, 3, 2]))
            torch.testing.assert_close(features[::2], whole.features[:, t])
            assert maps is None
    assert whole.weights is None


@pytest.mark.parametrize("name", ["Transformer", "LSTMN"])
def test_what_a_language_model_looks_at_is_seen(name: str) -> None:
    model = writer(WRITERS[name], VOCABULARY).eval()
    tokens, one = torch.randint(4, VOCABULARY, (1, 9)), torch.ones(1, dtype=torch.int64)
    with torch.no_grad(), regard.watch(model) as seen:
        model(torch.full((1, 1), 2), one, tokens)
    assert seen.faithful, seen
    assert len({call.name for call in seen}) == 2  # one for each layer
    for call in seen:
        assert call.kind == "self"
        assert call.weights.dense().triu(1).abs().max() == 0


def test_settings_that_need_a_source_are_refused() -> None:
    with pytest.raises(ValueError, match="has nothing to attend to"):
        writer(replace(WRITERS["LSTM"], attention="bahdanau"), VOCABULARY)  # type: ignore[type-var]


# ------------------------------------------------------------------------------------------------------------- recipes


def test_a_run_is_measured_on_the_held_out_text_and_writes_on(tmp_path: Path) -> None:
    """That every recipe of ours trains is tested in tests/training/test_recipe_files.py."""
    pytest.importorskip("pydantic")
    from regard.decoding import generate, model_folders
    from regard.training import fit, recipe_files

    small = ["data.sentences=100", "data.longest=32", "training.tokens=256", "training.updates=8", "training.warmup=2"]
    small += ["training.validate_every=4", "training.accelerator=cpu", "training.average=1", "training.save_every=4"]
    run = fit(recipe_files.load_recipe("lstmn-phrases", [*small]), tmp_path / "run")
    with run.metrics.open(encoding="utf-8", newline="") as file:
        losses = [float(line["valid_nll"]) for line in csv.DictReader(file) if line["valid_nll"]]
    assert losses[1] < losses[0]
    loaded = model_folders.load(run.folder)
    assert isinstance(loaded.model, EncoderDecoder)
    held_out = EncodedCorpus.load(run.data / "valid")
    with torch.no_grad():
        batch_losses = [loaded.model.loss(batch) for batch in AdjacentWindows(held_out, block=32, rows=50)]
    nll = sum(loss.nll.item() for loss in batch_losses) / sum(loss.tokens.item() for loss in batch_losses)
    assert nll == pytest.approx(min(losses), rel=1e-4)
    with regard.watch(loaded.model) as seen:
        assert len("".join(generate(loaded.model, loaded.tokenizers.target, "the ", tokens=12))) == 12
    assert seen.faithful


@pytest.mark.parametrize(
    ("recipe", "given", "message"),
    [
        ("lstmn-phrases", "decoder.fusion=deep", 'it is "none" without an encoder'),
        ("lstm-phrases", "decoder.attention=bahdanau", "nothing to attend to"),
        ("lstm-phrases", "training.tokens=10", "training.tokens = 10"),
        ("lstm-phrases", 'task="translate"', 'task = "translate"'),
    ],
)
def test_recipes_that_cannot_be_are_reported_before_anything_is_read(recipe: str, given: str, message: str) -> None:
    pytest.importorskip("pydantic")
    from regard.training import recipe_files
    from regard.training.recipe_sections import RecipeError

    with pytest.raises(RecipeError) as mistakes:
        recipe_files.load_recipe(recipe, [given])
    assert message in str(mistakes.value)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "none is left for data.train"),
        (b"a", "none is left for data.train"),
        (b"caf\xe9", "UTF-8"),
        (None, "there is no"),
    ],
    ids=["empty", "one character", "not UTF-8", "missing"],
)
def test_texts_that_cannot_be_read(tmp_path: Path, data: bytes | None, message: str) -> None:
    pytest.importorskip("pydantic")
    from regard.training import recipe_files
    from regard.training.corpora import read

    if data is not None:
        (tmp_path / "my.txt").write_bytes(data)
    recipe = recipe_files.load_recipe("lstm-shakespeare", [f"data.root={tmp_path}", 'data.files=["my.txt"]'])
    with pytest.raises(ValueError, match=message):
        read(recipe.data, "train")
