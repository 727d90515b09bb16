"""BPE-dropout: other pieces for the same text, decided by a seed, in the room that a batch has."""

from __future__ import annotations

import pickle
from random import Random

import numpy as np
import pytest

from regard.data import Batches, EncodedCorpus, Pair, Tokenizer, TokenizerPair
from regard.data.bpe_dropout import BpeDropout, _Merges
from regard.data.corpora import phrasebook

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
