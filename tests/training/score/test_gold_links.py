"""Gold links are read against the words they were written for, or refused."""

from __future__ import annotations

from dataclasses import replace

import pytest

from regard.data import Pair, Tokenizer, TokenizerPair
from regard.training.score.forced_alignment import force_align
from regard.training.score.gold_links import gold_links, text_words
from regard.training.score.translation_evaluation import alignment_errors, evaluate_translation
from tests.support.small_translators import recurrent_translator

SOURCE, TARGET = "He hit me with a pie.", "Il m'a entarté."
PAIR = Pair(SOURCE, TARGET, 0, "line 1", "0-0 1-2 5-2 2-1")
SPACED = Pair("He hit me with a pie .", "Il m' a entarté .", 0, "line 1", "0-0 2-1 1-3 5-3 6-4", "3-3")


def split_punctuation() -> TokenizerPair:
    return TokenizerPair(*(Tokenizer.train("word", 20, [text], punctuation=True) for text in (SOURCE, TARGET)))


def test_links_of_words_that_the_tokenizer_splits_are_refused() -> None:
    tokenizers = split_punctuation()
    model = recurrent_translator(tokenizers)
    expected = "line 1 has gold links, and its source has 6 words between spaces but 7 words of the model: 0:He 1:hit"
    with pytest.raises(ValueError, match=expected):
        force_align(model, tokenizers, [PAIR])
    with pytest.raises(ValueError, match=expected):
        alignment_errors(model, tokenizers, [PAIR])
    with pytest.raises(ValueError, match=expected):
        evaluate_translation(model, tokenizers, [PAIR])
    with pytest.raises(ValueError, match=r"its target has 3 .* 5 words of the model: 0:Il 1:m' 2:a 3:entarté 4:\."):
        gold_links(replace(PAIR, source=SPACED.source), tokenizers)


def test_links_of_words_with_spaces_between_them_are_read() -> None:
    tokenizers = split_punctuation()
    sure, possible = gold_links(SPACED, tokenizers)
    assert sure == {(0, 0), (2, 1), (1, 3), (5, 3), (6, 4)}
    assert possible == {(3, 3)}
    [made] = force_align(recurrent_translator(tokenizers), tokenizers, [SPACED])
    assert (made.sure, made.target) == (sure, ["Il", "m'", "a", "entarté", "."])


def test_without_gold_links_the_model_splits_as_it_likes() -> None:
    tokenizers = split_punctuation()
    assert gold_links(Pair(SOURCE, TARGET), tokenizers) == (None, set())
    [made] = force_align(recurrent_translator(tokenizers), tokenizers, [Pair(SOURCE, TARGET)])
    assert made.target == ["Il", "m'", "a", "entarté", "."]
    assert alignment_errors(recurrent_translator(tokenizers, "none"), tokenizers, [PAIR]) == {}


def test_a_link_outside_the_pair_and_an_empty_text() -> None:
    tokenizers = split_punctuation()
    with pytest.raises(ValueError, match="link 7-0 is outside line 1, which has 7 words and 5 words"):
        gold_links(replace(SPACED, alignment="7-0"), tokenizers)
    assert text_words(tokenizers.source, "") == ([], [])
