"""Forced alignment: the weights of the decoder on the reference, gold links, and a model without attention."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

from regard.data import Pair, Tokenizer, TokenizerPair
from regard.training.score.forced_alignment import error_rate, force_align
from tests.support.small_translators import recurrent_translator

if TYPE_CHECKING:
    from regard.models import EncoderDecoder

PAIRS = [Pair("a b c", "x y", 0, "one", "0-0 2-1", "1-1"), Pair("c a", "y x x", 1, "two")]


def system(attention: str) -> tuple[EncoderDecoder, TokenizerPair]:
    tokenizers = TokenizerPair(Tokenizer.train("word", 20, ["a b c"]), Tokenizer.train("word", 20, ["x y"]))
    return recurrent_translator(tokenizers, attention), tokenizers


def test_the_weights_are_those_of_the_decoder_on_the_reference() -> None:
    model, tokenizers = system("bahdanau")
    first, second = force_align(model, tokenizers, PAIRS)
    assert (first.source, first.target) == (["a", "b", "c"], ["x", "y"])
    ids = torch.tensor([[*tokenizers.source.encode("a b c"), 2]])
    target = torch.tensor([[1, *tokenizers.target.encode("x y")]])
    with torch.no_grad():
        weights = model(ids, torch.tensor([4]), target, weights=True).weights[0, 0]
    torch.testing.assert_close(first.weights, weights[:2, :3])
    assert first.sure == {(0, 0), (2, 1)}
    assert second.sure is None
    assert error_rate([second]) is None
    links = first.links
    expected = 1 - (len(links & {(0, 0), (2, 1)}) + len(links & {(0, 0), (2, 1), (1, 1)})) / (len(links) + 2)
    assert error_rate([first, second]) == pytest.approx(expected)


def test_unknown_words_are_named_and_shown_as_written() -> None:
    model, tokenizers = system("bahdanau")
    [made] = force_align(model, tokenizers, [Pair("a zebra", "x y")])
    assert made.source == ["a", "zebra"]
    assert made.unknown == ["zebra"]


def test_a_model_without_attention_aligns_nothing() -> None:
    model, tokenizers = system("none")
    with pytest.raises(ValueError, match="no attention, so it aligns nothing"):
        force_align(model, tokenizers, PAIRS)
