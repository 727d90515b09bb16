"""Pairs as numbers: the same by any number of processes, and with words looked up."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch

from regard.data import EncodedCorpus, Pair, Tokenizer, TokenizerPair, encoding
from regard.data.corpora import phrasebook
from regard.data.encoding import ARRAYS, WordCache, flat_ids
from regard.data.tokenizer import SPACE

if TYPE_CHECKING:
    from pathlib import Path

pytest.importorskip("tokenizers")

PAIRS = [Pair(p.source, p.target, 10 * i) for i, p in enumerate(phrasebook.pairs(120, seed=3))]


def test_processes_make_the_same_as_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoding, "CHUNK", 7)
    tokenizers = TokenizerPair.train("bpe", 300, PAIRS)
    states = torch.get_rng_state()
    made = [EncodedCorpus.build(PAIRS, tokenizers, longest=9, processes=processes) for processes in (1, 2)]
    made.append(EncodedCorpus.build(PAIRS, tokenizers, longest=9, processes=2, folder=tmp_path / "corpus"))
    for other in made[1:]:
        assert 0 < other.about.dropped == made[0].about.dropped
        for name in ARRAYS:
            np.testing.assert_array_equal(getattr(other, name), getattr(made[0], name), err_msg=name)
    assert torch.equal(torch.get_rng_state(), states)


TEXTS = [text for pair in phrasebook.pairs(200, seed=5) for text in (pair.source, pair.target)]
ODD = [
    "\u2581",
    "\u0301",
    "e\u0301",
    "\u00a0",
    "\t",
    "\n",
    "\u3000",
    "İ",
    "Σ",
    "ß",
    "’",
    "l'",
    "&apos;",
    "☃",
    "</s>",
    "中文",
    "3",
    ".",
]
TRAINED = [("bpe", {}), ("unigram", {}), ("word", {}), ("word", {"punctuation": True}), ("character", {})]


def _strange(seed: int, count: int) -> list[str]:
    """Texts of words, odd characters and spaces in any order; some empty, some with spaces at their ends."""
    source = random.Random(seed)
    words = sorted({word for text in TEXTS for word in text.split()})
    parts = [*words[:40], *ODD]
    return [
        "".join(source.choice(parts) + source.choice(["", " ", " ", "  "]) for _ in range(source.randrange(6)))
        for _ in range(count)
    ]


@pytest.mark.parametrize(("kind", "settings"), TRAINED)
@pytest.mark.parametrize("lowercase", [False, True])
def test_ids_are_those_of_encode_batch(kind: str, settings: dict[str, bool], lowercase: bool) -> None:
    tokenizer = Tokenizer.train(kind, 600, [*TEXTS, *ODD], lowercase=lowercase, **settings)
    assert tokenizer.encodes_words_alone
    loaded = Tokenizer(type(tokenizer._backend).from_str(tokenizer.to_json()))
    assert loaded.encodes_words_alone
    for texts in (TEXTS, _strange(1, 300), [], [""], [" "], TEXTS):
        ids, lengths = tokenizer.encode_flat(texts)
        expected = flat_ids(tokenizer.encode_batch(texts))
        np.testing.assert_array_equal(ids, expected[0])
        np.testing.assert_array_equal(lengths, expected[1])
        assert ids.dtype == np.int32


def test_half_a_surrogate_pair_is_named_by_its_place_in_the_text_and_spoils_nothing() -> None:
    tokenizer = Tokenizer.train("bpe", 300, TEXTS)
    with pytest.raises(UnicodeEncodeError) as flat:
        tokenizer.encode_flat(["a cat", "the b\ud800 cat"])
    with pytest.raises(UnicodeEncodeError) as batch:
        tokenizer.encode_batch(["a cat", "the b\ud800 cat"])
    assert (flat.value.start, flat.value.object) == (batch.value.start, batch.value.object)
    np.testing.assert_array_equal(tokenizer.encode_flat(TEXTS)[0], flat_ids(tokenizer.encode_batch(TEXTS))[0])


def test_a_tokenizer_that_looks_at_the_whole_text_is_not_asked_for_words() -> None:
    tokenizers = pytest.importorskip("tokenizers")
    backend = Tokenizer.train("bpe", 300, TEXTS)._backend
    backend.normalizer = tokenizers.normalizers.Replace("a b", "c")
    tokenizer = Tokenizer(backend)
    assert not tokenizer.encodes_words_alone
    np.testing.assert_array_equal(tokenizer.encode_flat(TEXTS)[0], flat_ids(tokenizer.encode_batch(TEXTS))[0])


def test_texts_that_are_not_words_between_single_spaces_are_encoded_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoding, "MOST_CHARACTERS", 1000)
    tokenizer = Tokenizer.train("bpe", 300, TEXTS)
    cache = WordCache(tokenizer.encode_batch, SPACE)
    source = random.Random(1)
    for _ in range(20):
        sentences = ["".join(source.choices("abcdefg", k=source.randint(40, 90))) for _ in range(30)]
        words = ["".join(source.choices("abcdefg", k=20)) + " the cat" for _ in range(30)]
        spaces = [f"{sentence[:20]}  cat" for sentence in sentences]
        texts = [text for texts in zip(words, sentences, spaces, strict=True) for text in texts]
        ids, lengths = cache.encode(texts)
        expected = flat_ids(tokenizer.encode_batch(texts))
        np.testing.assert_array_equal(ids, expected[0])
        np.testing.assert_array_equal(lengths, expected[1])
    assert cache.encode(sentences)[1].tolist() == flat_ids(tokenizer.encode_batch(sentences))[1].tolist()
