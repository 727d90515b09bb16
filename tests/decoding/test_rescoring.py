"""Scores of given translations, one by one; a list in the order of another model."""

from __future__ import annotations

import pytest
import torch

from regard.data import Tokenizer, TokenizerPair
from regard.data.batch import Batch
from regard.decoding import rescore, target_logprobs, translate
from regard.models import EncoderDecoder, EncoderDecoderConfig
from tests.support.small_models import DECODERS, ENCODERS

LETTERS = Tokenizer.train("character", 40, ["abcdefgh"])
WORDS = Tokenizer.train("word", 40, ["abc", "hgfe"])
PAIRS = [("abc", "hgf"), ("hgfe", "a"), ("a", "abcdefgh")]


def model(tokenizer: Tokenizer, seed: int) -> EncoderDecoder:
    torch.manual_seed(seed)
    size = len(tokenizer)
    made = EncoderDecoder(EncoderDecoderConfig(size, size, ENCODERS["bidirectional GRU"], DECODERS["Bahdanau"]))
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.mul_(2.5)
    return made.eval()


@torch.no_grad()
def test_a_batch_is_scored_as_each_pair_alone() -> None:
    it, tokenizers = model(LETTERS, 0), TokenizerPair(LETTERS, LETTERS)
    for (source, target), got in zip(PAIRS, target_logprobs(it, tokenizers, PAIRS, tokens=20), strict=True):
        x, y = torch.tensor([[*LETTERS.encode(source), 2]]), [1, *LETTERS.encode(target), 2]
        logits = it.readout(it(x, torch.tensor([x.shape[1]]), torch.tensor([y[:-1]])).features)[0]
        expected = sum(logits.log_softmax(-1)[t, token].item() for t, token in enumerate(y[1:]))
        assert got.logprob == pytest.approx(expected, abs=1e-4)
        assert got.tokens == len(y) - 1


@pytest.mark.parametrize("decoder", DECODERS)
def test_the_score_is_the_models_own_loss(decoder: str) -> None:
    """A decoder that copies counts an unknown word that the source lacks (Zork) as <unk>, in both."""
    config = DECODERS[decoder]
    slots = 7 if config.copies else 0
    words = Tokenizer.train("word", 40, ["the red car", "sees a bird"], slots=slots)
    torch.manual_seed(3)
    size = len(words)
    it = EncoderDecoder(EncoderDecoderConfig(size, size, ENCODERS["LSTM, 2 layers"], config, slots=slots)).eval()
    pairs = [("the Blip car", "a Blip Zork bird"), ("sees the red bird", "the car")]
    for (source, target), score in zip(pairs, target_logprobs(it, TokenizerPair(words, words), pairs), strict=True):
        x, y = torch.tensor([[*words.encode(source), 2]]), torch.tensor([[1, *words.encode(target), 2]])
        loss = it.loss(Batch(x, torch.tensor([x.shape[1]]), y, torch.tensor([y.shape[1]]), torch.arange(1)))
        assert score.logprob == pytest.approx(-loss.nll.item(), abs=1e-4)
        assert score.tokens == int(loss.tokens)


def test_the_other_model_decides_as_far_as_its_share() -> None:
    first, second = model(LETTERS, 1), model(WORDS, 2)
    own, other = TokenizerPair(LETTERS, LETTERS), TokenizerPair(WORDS, WORDS)
    found = list(translate(first, own, ["abc", "hgfe"], beams=6, best=6, longest=4))
    assert [each.texts for each in rescore(found, second, other, share=0.0)] == [each.texts for each in found]
    for share in (0.3, 1.0):
        for before, after in zip(found, rescore(found, second, other, share=share), strict=True):
            scores = {}
            for text, hypothesis in zip(before.texts, before.hypotheses, strict=True):
                (theirs,) = target_logprobs(second, other, [(before.source, text)])
                penalty = (5 + theirs.tokens) / 6
                scores[text] = (1 - share) * hypothesis.score + share * theirs.logprob / penalty
            assert {text: each.score for text, each in zip(after.texts, after.hypotheses, strict=True)} == (
                pytest.approx(scores, abs=1e-4)
            )
            assert after.hypotheses == sorted(after.hypotheses, key=lambda each: -each.score)
    with pytest.raises(ValueError, match="0 to 1"):
        rescore(found, second, other, share=1.5)
