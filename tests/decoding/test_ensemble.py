"""Ensembles: the mean of the models' probabilities, token by token."""

from __future__ import annotations

import itertools

import pytest
import torch

from regard.data import Tokenizer, TokenizerPair
from regard.data.batches import Batch
from regard.decoding import Ensemble, search, target_logprobs, translate
from regard.decoding.ensemble import check_same_tokenizers
from regard.models import EncoderDecoder, EncoderDecoderConfig
from tests.support.small_models import DECODERS, ENCODERS, VOCABULARY, batch

KINDS = ["Bahdanau", "Transformer", "no attention", "Bahdanau, copy"]


def model(kind: str, seed: int, size: int = VOCABULARY) -> EncoderDecoder:
    torch.manual_seed(seed)
    return EncoderDecoder(EncoderDecoderConfig(size, size, ENCODERS["bidirectional GRU"], DECODERS[kind])).eval()


MODELS = [model(kind, seed) for seed, kind in enumerate(KINDS)]


@torch.no_grad()
def test_it_is_the_mean_of_the_probabilities() -> None:
    together, pairs = Ensemble(MODELS), batch()
    annotations = together.encode(pairs.source, pairs.source_lengths)
    got = together.decoder(pairs.target[:, :-1], annotations, weights=True)
    alone = [each(pairs.source, pairs.source_lengths, pairs.target[:, :-1], weights=True) for each in MODELS]
    mean = sum(each.readout(one.features).softmax(-1) for each, one in zip(MODELS, alone, strict=True)) / len(MODELS)
    torch.testing.assert_close(got.features.exp(), mean)
    own = [one.weights.mean(1) for one in alone if one.weights is not None]
    torch.testing.assert_close(got.weights, torch.stack(own, 1))  # one map for each model that attends


@torch.no_grad()
def test_forward_and_step_agree() -> None:
    together, pairs = Ensemble(MODELS), batch()
    annotations = together.encode(pairs.source, pairs.source_lengths)
    whole = together.decoder(pairs.target[:, :-1], annotations, weights=True)
    state, chosen = together.decoder.start(annotations, beams=2, steps=6), torch.arange(3)
    for t in range(6):
        if t == 3:
            chosen = torch.tensor([0, 2])
            state = state.keep(chosen)
        features, state, maps = together.decoder.step(pairs.target[chosen, t].repeat_interleave(2), state, weights=True)
        for beam in (0, 1):
            torch.testing.assert_close(features[beam::2], whole.features[chosen, t])
            torch.testing.assert_close(maps[beam::2], whole.weights[chosen, :, t])
        state = state.reorder(torch.arange(len(features)).view(-1, 2).flip(1).flatten())


@torch.no_grad()
def test_search_finds_what_enumeration_finds() -> None:
    small = [model("Bahdanau", seed, size=6) for seed in (5, 6, 7)]
    together = Ensemble(small)
    source, lengths = torch.tensor([[4, 5, 3, 2]]), torch.tensor([4])
    annotations = together.encode(source, lengths)

    def logprob(tokens: tuple[int, ...]) -> float:
        inputs, wanted = torch.tensor([[1, *tokens]]), torch.tensor([[*tokens, 2]])
        p = sum(each.readout(each(source, lengths, inputs).features).softmax(-1) for each in small) / 3
        return float(p.gather(-1, wanted[..., None]).log().sum())

    everything = [tokens for n in range(4) for tokens in itertools.product(range(3, 6), repeat=n)]
    best = max(everything, key=logprob)
    ((found,),) = search(together, annotations, beams=200, longest=3, length_penalty=0.0, weights=True)
    assert tuple(found.tokens) == best
    assert found.logprob == pytest.approx(logprob(best), abs=1e-4)
    assert found.weights is not None
    assert found.weights.shape == (3, len(best) + 1, 4)


def test_one_model_is_itself_and_texts_are_translated() -> None:
    both = Tokenizer.train("character", 40, ["abcdefgh"])
    tokenizers = TokenizerPair(both, both)
    one = model("Bahdanau", 1, size=len(both))
    texts = ["abc", "", "hgfe"]
    alone = [each.text for each in translate(one, tokenizers, texts, longest=5)]
    assert [each.text for each in translate(Ensemble([one, one]), tokenizers, texts, longest=5)] == alone
    begun = list(translate(one, tokenizers, texts, longest=5, prefix=["ab", "", "c"]))
    assert begun[0].text.startswith("ab")
    assert begun[2].text.startswith("c")
    with pytest.raises(ValueError, match="one entry for each sentence"):
        list(translate(one, tokenizers, texts, prefix=["ab"]))
    with pytest.raises(ValueError, match="the target vocabulary lacks it"):
        list(translate(one, tokenizers, ["abc"], prefix=["ü"]))


def test_a_name_that_is_gone_says_what_to_do() -> None:
    with pytest.raises(ImportError, match="add target_logprobs of the other model"):
        from regard.decoding import rescore  # noqa: F401
    with pytest.raises(ImportError, match="cannot import name 'nothing'"):
        from regard.decoding import nothing  # noqa: F401


def test_models_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match="need the same vocabularies"):
        Ensemble([MODELS[0], model("Bahdanau", 0, size=VOCABULARY + 1)])
    with pytest.raises(ValueError, match="at least one"):
        Ensemble([])
    one, other = (TokenizerPair(each, each) for each in (Tokenizer.train("word", 9, [text]) for text in ("a", "b")))
    check_same_tokenizers(["x", "y"], [one, one])
    with pytest.raises(ValueError, match="y has other vocabularies than x"):
        check_same_tokenizers(["x", "y"], [one, other])
    together, pairs = Ensemble(MODELS[:2]), batch()
    with pytest.raises(TypeError, match="annotations of all its models"):
        search(together, MODELS[0].encode(pairs.source, pairs.source_lengths))
    annotations = together.encode(pairs.source, pairs.source_lengths)
    with pytest.raises(ValueError, match=f"a prefix has the id {VOCABULARY}, and the vocabulary of this decoder has"):
        search(together, annotations, prefixes=[[VOCABULARY], [], []])


LETTERS = Tokenizer.train("character", 40, ["abcdefgh"])
WORDS = Tokenizer.train("word", 40, ["abc", "hgfe"])
PAIRS = [("abc", "hgf"), ("hgfe", "a"), ("a", "abcdefgh")]


def model_rescoring(tokenizer: Tokenizer, seed: int) -> EncoderDecoder:
    torch.manual_seed(seed)
    size = len(tokenizer)
    made = EncoderDecoder(EncoderDecoderConfig(size, size, ENCODERS["bidirectional GRU"], DECODERS["Bahdanau"]))
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.mul_(2.5)
    return made.eval()


@torch.no_grad()
def test_a_batch_is_scored_as_each_pair_alone() -> None:
    it, tokenizers = model_rescoring(LETTERS, 0), TokenizerPair(LETTERS, LETTERS)
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
