"""The share of unknown words that were copied, counted by hand."""

from __future__ import annotations

import pytest

from regard.data import Pair, TokenizerPair
from regard.training.score.copy_recall import copy_recall


@pytest.mark.parametrize("slots", [0, 20])
def test_unknown_words_of_source_and_reference_count(slots: int) -> None:
    known = [Pair("the bird sees paul", "paul voit le oiseau", 0)]
    tokenizers = TokenizerPair.train("word", 100, known, joint=True, slots=slots)
    pairs = [
        Pair("zork sees paul and zork", "zork voit paul et zork", 0),  # zork twice; paul is known
        Pair("the bird 47", "le oiseau 47", 1),
        Pair("the bird", "le oiseau", 2),
    ]
    texts = ["zork voit <unk>", "le oiseau 74", ""]
    assert copy_recall(texts, pairs, tokenizers) == pytest.approx(1 / 3)
    assert copy_recall(["zork zork zork", "47", ""], pairs, tokenizers) == 1
    assert copy_recall([""], pairs[2:], tokenizers) is None
