"""Phrases in a growing text, against a search for them in the whole text."""

from __future__ import annotations

import itertools

from regard.decoding.constraints.phrase_matcher import PhraseMatcher


def contains(text: tuple[int, ...], phrase: tuple[int, ...]) -> bool:
    return any(text[i : i + len(phrase)] == phrase for i in range(len(text)))


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
