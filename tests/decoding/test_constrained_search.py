"""Search for translations with given beginnings and phrases, against the enumeration of all sequences."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import pytest
import torch

from regard.decoding import Sample, search
from regard.decoding.constrained_search import PartialHypothesis, PhraseMatcher, allocate
from tests.decoding.test_beam import VOCABULARY, annotations, decoder, logprob, score

if TYPE_CHECKING:
    from collections.abc import Sequence

LONGEST = 4
WORDS = range(3, VOCABULARY)
EVERYTHING = [list(s) for n in range(LONGEST + 1) for s in itertools.product(WORDS, repeat=n)]


def contains(tokens: Sequence[int], phrase: Sequence[int]) -> bool:
    return any(tokens[i : i + len(phrase)] == phrase for i in range(len(tokens)))


@pytest.mark.parametrize("alpha", [0.0, 1.0])
@torch.no_grad()
def test_a_wide_beam_finds_the_best_with_the_phrases(alpha: float) -> None:
    torch.manual_seed(0)
    model, a = decoder(), annotations()
    phrases = [[[4, 5]], [[3], [5, 4]], []]
    found = search(model, a, beams=400, longest=LONGEST, length_penalty=alpha, best=3, phrases=phrases)
    for sentence, wanted in enumerate(phrases):
        fitting = [tokens for tokens in EVERYTHING if all(contains(tokens, phrase) for phrase in wanted)]
        ranked = sorted(fitting, key=lambda tokens: -score(model, a, sentence, tokens, alpha, 0.0))
        assert [hypothesis.tokens for hypothesis in found[sentence]] == ranked[:3]
        for hypothesis in found[sentence]:
            value, _ = logprob(model, a, sentence, hypothesis.tokens)
            assert hypothesis.logprob == pytest.approx(value, abs=1e-4)
            expected = score(model, a, sentence, hypothesis.tokens, alpha, 0.0)
            assert hypothesis.score == pytest.approx(expected, abs=1e-4)


@torch.no_grad()
def test_a_wide_beam_finds_the_best_with_the_prefix() -> None:
    torch.manual_seed(1)
    model, a = decoder(), annotations()
    prefixes = [[4], [5, 3, 3], []]
    found = search(model, a, beams=400, longest=LONGEST, best=2, prefixes=prefixes)
    both = search(model, a, beams=400, longest=LONGEST, best=2, prefixes=prefixes, phrases=[[[3]], [[4]], [[5]]])
    for sentence, prefix in enumerate(prefixes):
        fitting = [tokens for tokens in EVERYTHING if tokens[: len(prefix)] == prefix]
        ranked = sorted(fitting, key=lambda tokens: -score(model, a, sentence, tokens, 1.0, 0.0))
        assert [hypothesis.tokens for hypothesis in found[sentence]] == ranked[:2]
        with_phrase = [tokens for tokens in ranked if 3 + sentence in tokens]
        assert [hypothesis.tokens for hypothesis in both[sentence]] == with_phrase[:2]


@pytest.mark.parametrize("beams", [1, 2, 5])
@torch.no_grad()
def test_without_a_constraint_it_is_the_plain_search(beams: int) -> None:
    torch.manual_seed(2)
    model, a = decoder(), annotations(batch=4)
    plain = search(model, a, beams=beams, best=beams, longest=6)
    # A phrase for one sentence: the others are searched beside it, without one.
    beside = search(model, a, beams=beams, best=beams, longest=6, phrases=[[[4, 4]], [], [], []])
    for sentence in (1, 2, 3):
        assert [each.tokens for each in beside[sentence]] == [each.tokens for each in plain[sentence]]
    forced = search(model, a, beams=beams, best=beams, longest=6, prefixes=[[]] * 4)
    assert [[each.tokens for each in several] for several in forced] == [
        [each.tokens for each in several] for several in plain
    ]


@pytest.mark.parametrize("beams", [1, 3])
@torch.no_grad()
def test_a_narrow_beam_and_a_short_limit_still_hold_all_phrases(beams: int) -> None:
    for seed in range(10):
        torch.manual_seed(seed)
        model, a = decoder(), annotations()
        phrases = [[[5, 5, 4], [3]], [[4, 3]], [[3, 4, 5], [5, 3], [4]]]
        prefixes = [[4], [], [5]]
        found = search(model, a, beams=beams, longest=2, phrases=phrases, prefixes=prefixes, weights=True)
        for several, wanted, prefix in zip(found, phrases, prefixes, strict=True):
            (best,) = several
            assert all(contains(best.tokens, phrase) for phrase in wanted)
            assert best.tokens[: len(prefix)] == prefix
            assert best.weights is not None
            assert best.weights.shape[1] == len(best.tokens) + 1
    long = search(model, a, beams=beams, longest=0, prefixes=[[4, 4, 4], [], [3]])
    assert [several[0].tokens for several in long] == [[4, 4, 4], [], [3]]


def test_samples_begin_with_the_prefix() -> None:
    torch.manual_seed(0)
    found = search(decoder(), annotations(), beams=4, best=4, longest=6, sample=Sample(), prefixes=[[4, 3]] * 3)
    assert all(hypothesis.tokens[:2] == [4, 3] for several in found for hypothesis in several)


def test_banks_share_the_beam() -> None:
    def bank(*logprobs: float) -> list[PartialHypothesis]:
        return [PartialHypothesis([3], value, ()) for value in logprobs]

    banks = {0: bank(-1, -2, -3, -4), 2: bank(-9, -10), 1: bank(-20)}
    assert [each.logprob for each in allocate(banks, 3, 3)] == [-1, -9, -20]
    assert [each.logprob for each in allocate(banks, 3, 5)] == [-1, -2, -9, -10, -20]
    assert [each.logprob for each in allocate(banks, 3, 1)] == [-9]
    assert [each.logprob for each in allocate({0: banks[0]}, 3, 3)] == [-1, -2, -3]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"prefixes": [[3]]}, "3 sentences, and 1 prefixes"),
        ({"prefixes": [[2], [], []]}, "a prefix has words only"),
        ({"prefixes": [[], [3, 6], []]}, "a prefix has the id 6, and the vocabulary of this decoder has 6"),
        ({"phrases": [[[3]]]}, "3 sentences, and phrases for 1"),
        ({"phrases": [[]]}, "3 sentences, and phrases for 1"),
        ({"phrases": [[[2]], [], []]}, "a phrase has words only"),
        ({"phrases": [[], [[4], [3, -1]], []]}, "a phrase has words only"),
        ({"phrases": [[], [[4], [3, 10**6]], []]}, "a phrase has the id 1000000, and the vocabulary of this decoder"),
        ({"phrases": [[[3]], [], []], "coverage_penalty": 0.5}, "neither samples nor counts coverage"),
        ({"phrases": [[[3]], [], []], "sample": Sample()}, "neither samples nor counts coverage"),
    ],
)
def test_what_does_not_fit_is_refused(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        search(decoder(), annotations(), **settings)  # type: ignore[arg-type]


def test_every_text_of_two_words() -> None:
    """Phrases that overlap with themselves and with one another."""
    phrases = ((1, 1, 2), (1, 2, 1), (2,))
    matcher = PhraseMatcher.of(phrases)
    for text in itertools.product((1, 2), repeat=7):
        progress = matcher.start
        for n, token in enumerate(text, 1):
            wanted = matcher.wanted(progress)
            before, progress = progress, matcher.advance(progress, token)
            assert (token in wanted) == any(b == a + 1 for a, b in zip(before, progress, strict=True))
            for phrase, count in zip(phrases, progress, strict=True):
                met = contains(text[:n], phrase)
                assert (count == len(phrase)) == met
                if not met:  # the longest beginning of the phrase that the text ends in
                    assert count == max(k for k in range(len(phrase)) if text[n - k : n] == phrase[:k] and k <= n)
        assert matcher.complete(progress) == all(contains(text, phrase) for phrase in phrases)


def test_so_many_tokens_suffice() -> None:
    matcher = PhraseMatcher.of([(1, 2, 3), (4, 5), (1, 2, 3), ()])
    assert matcher.phrases == ((1, 2, 3), (4, 5))
    assert matcher.total == matcher.missing(matcher.start) == 5
    for text in itertools.product(range(1, 6), repeat=3):
        progress = matcher.start
        for token in text:
            progress = matcher.advance(progress, token)
        fewest = next(
            n
            for n in range(6)
            if any(
                all(contains(text + more, phrase) for phrase in matcher.phrases)
                for more in itertools.islice(itertools.product(range(1, 6), repeat=n), None)
            )
        )
        assert matcher.missing(progress) == fewest  # these phrases do not overlap
