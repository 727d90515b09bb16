"""Invented names and numbers in a sentence: words that a translator cannot know, only copy."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .lexicon import NAMES

if TYPE_CHECKING:
    from random import Random

    from .bilingual_phrase import Phrase

_NUMBERS = {"two": "deux", "three": "trois", "four": "quatre"}
_FIRST = ["b", "d", "f", "g", "k", "l", "m", "n", "p", "r", "s", "t", "v", "z", "br", "dr", "kr", "tr", "st"]
_VOWELS = ["a", "e", "i", "o", "u"]


def with_invented_words(phrase: Phrase, r: Random) -> Phrase | None:
    """The phrase with other names and numbers, changed in place; None where it has neither.

    A name begins with a consonant, so that nothing is elided before it, and is one of a million; a number has two to
    five digits.
    """
    changed = False
    for word in phrase.en:
        old, translated = word.text, _NUMBERS.get(word.text, word.text)
        if old not in NAMES and old not in _NUMBERS:
            continue
        word.text = _name(r, female=NAMES[old]) if old in NAMES else str(r.randrange(10, 10 ** r.randint(2, 5)))
        for other in phrase.target:
            if other.text == translated and any(word is linked for linked in other.sure):
                other.text, changed = word.text, True
    return phrase if changed else None


def _name(r: Random, *, female: bool) -> str:
    syllables = "".join(r.choice(_FIRST) + r.choice(_VOWELS) for _ in range(3))
    return syllables + ("la" if female else "k")
