"""BPE-dropout: other pieces for the same text, decided by a seed, in the room that a batch has."""

from __future__ import annotations

import pickle
import random
from random import Random

import numpy as np
import pytest

from regard.data import Batches, EncodedCorpus, Pair, Tokenizer, TokenizerPair
from regard.data import encoding as word_cache
from regard.data.corpora import phrasebook
from regard.data.encoding import BpeDropout, WordCache, _Merges, flat_ids
from regard.data.tokenizer import SPACE

pytest.importorskip("tokenizers")

PAIRS = list(phrasebook.pairs(120, seed=3))
TOKENIZERS = TokenizerPair.train("bpe", 300, PAIRS)
ENCODED = EncodedCorpus.build([Pair(p.source, p.target, i) for i, p in enumerate(PAIRS)], TOKENIZERS)


def test_without_dropout_the_pieces_are_those_of_the_tokenizer() -> None:
    tokenizer = Tokenizer.train("bpe", 300, [p.source for p in PAIRS])
    tokenizer.add_tags(["<2fr>"])
    merges = _Merges(tokenizer, 0.0)
    texts = [p.source for p in PAIRS] + ["<2fr> the cat", "the ☃cat's 42  l'été", "☃ cats ☃"]
    for text in texts:
        ids = tokenizer.encode(text)
        assert merges.cut_again(ids, 1000, Random(1)) == ids, text


def test_the_text_stays_and_the_pieces_are_more_and_decided_by_the_seed() -> None:
    merges = _Merges(TOKENIZERS.source, 0.1)
    before = after = 0
    for pair in PAIRS:
        ids = TOKENIZERS.source.encode(pair.source)
        cut = merges.cut_again(ids, 1000, Random(pair.source))
        assert TOKENIZERS.source.decode(cut) == TOKENIZERS.source.decode(ids)
        assert cut == merges.cut_again(ids, 1000, Random(pair.source))
        assert merges.cut_again(ids, len(ids) - 1, Random(1)) == ids, "no room"
        before, after = before + len(ids), after + len(cut)
    assert 1.05 * before < after < 1.5 * before


def test_each_merge_is_left_out_with_its_probability() -> None:
    """A vocabulary with one merge: a word of two characters is whole with probability 1 − p."""
    tokenizer = Tokenizer.train("bpe", 7, ["b b b"])
    assert tokenizer.pieces(tokenizer.encode("b")) == ["▁b"]
    merges, random = _Merges(tokenizer, 0.3), Random(1)
    lengths = [len(merges.cut_again(tokenizer.encode("b"), 9, random)) for _ in range(4000)]
    assert np.mean(np.array(lengths) == 1) == pytest.approx(0.7, abs=4 * (0.21 / 4000) ** 0.5)


def test_batches_differ_by_epoch_and_not_by_process_or_resuming() -> None:
    dropout = BpeDropout(TOKENIZERS, 0.2, longest=64)
    settings = {"tokens": 400, "seed": 5, "dropout": dropout}

    def texts(batches: Batches) -> dict[int, list[int]]:
        return {int(row): batch.target[i].tolist() for batch in batches for i, row in enumerate(batch.rows) if row >= 0}

    def stripped(rows: dict[int, list[int]]) -> dict[int, list[int]]:
        return {row: [token for token in ids if token] for row, ids in rows.items()}

    one = stripped(texts(Batches(ENCODED, epoch=1, **settings)))
    assert sorted(one) == list(range(len(PAIRS)))
    assert stripped(texts(pickle.loads(pickle.dumps(Batches(ENCODED, epoch=1, **settings))))) == one
    assert stripped(texts(Batches(ENCODED, epoch=2, **settings))) != one
    later = stripped(texts(Batches(ENCODED, epoch=1, start=2, **settings)))
    assert later
    assert all(one[row] == ids for row, ids in later.items())
    for batch in Batches(ENCODED, epoch=1, fixed_shapes=True, **settings):
        assert batch.source.numel() <= 400
        assert batch.target.shape[1] == batch.source.shape[1] + 1
    ranks = [stripped(texts(Batches(ENCODED, epoch=1, rank=rank, world=2, **settings))) for rank in (0, 1)]
    assert sorted([*ranks[0], *ranks[1]]) == sorted(one)


def test_only_merges_can_be_left_out() -> None:
    words = TokenizerPair.train("word", 300, PAIRS)
    with pytest.raises(ValueError, match='merges of "bpe"'):
        BpeDropout(words, 0.1, 64)


pytest.importorskip("tokenizers")

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
    monkeypatch.setattr(word_cache, "MOST_CHARACTERS", 1000)
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
