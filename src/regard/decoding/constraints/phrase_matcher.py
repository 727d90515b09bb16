"""Which tokens of given phrases a growing text has: one Knuth–Morris–Pratt automaton for each phrase."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

Progress = tuple[int, ...]
"""For each phrase, how many of its tokens the text ends in; all of them once the text has the phrase."""


@dataclass(frozen=True)
class PhraseMatcher:
    """Phrases that a text must contain, each in one piece, in any order; they may overlap."""

    phrases: tuple[tuple[int, ...], ...]
    fallbacks: tuple[tuple[int, ...], ...]
    """Of each phrase and number of tokens n: the longest proper ending of its first n tokens that it begins with."""

    @classmethod
    def of(cls, phrases: Sequence[Sequence[int]]) -> PhraseMatcher:
        different = tuple(dict.fromkeys(tuple(phrase) for phrase in phrases if phrase))
        return cls(different, tuple(_fallback(phrase) for phrase in different))

    @property
    def start(self) -> Progress:
        return (0,) * len(self.phrases)

    @property
    def total(self) -> int:
        """The number of tokens of all phrases."""
        return sum(map(len, self.phrases))

    def advance(self, progress: Progress, token: int) -> Progress:
        """After one more token."""
        after = []
        for phrase, fallback, n in zip(self.phrases, self.fallbacks, progress, strict=True):
            if n < len(phrase):
                while n and phrase[n] != token:
                    n = fallback[n]
                n += phrase[n] == token
            after.append(n)
        return tuple(after)

    def complete(self, progress: Progress) -> bool:
        return all(n == len(phrase) for phrase, n in zip(self.phrases, progress, strict=True))

    def wanted(self, progress: Progress) -> set[int]:
        """The tokens that continue a phrase which is not complete."""
        return {phrase[n] for phrase, n in zip(self.phrases, progress, strict=True) if n < len(phrase)}

    def missing(self, progress: Progress) -> int:
        """As many tokens suffice to complete all phrases: one goes on where it is, the others begin again."""
        open_phrases = [(len(p), n) for p, n in zip(self.phrases, progress, strict=True) if n < len(p)]
        return sum(length for length, _ in open_phrases) - max((n for _, n in open_phrases), default=0)


def _fallback(phrase: tuple[int, ...]) -> tuple[int, ...]:
    table, n = [0, 0], 0
    for token in phrase[1:]:
        while n and phrase[n] != token:
            n = table[n]
        n += phrase[n] == token
        table.append(n)
    return tuple(table)
