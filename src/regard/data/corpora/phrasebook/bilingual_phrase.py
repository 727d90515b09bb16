"""A phrase in two languages at once, with links from every French or Spanish word to English words."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from .french import contracted, elided
from .spanish import contracted as contracted_spanish

Language = Literal["french", "spanish"]

_A_DESPITE_VOWEL = ("european",)  # pronounced with a y
_CONTRACTION = {"french": contracted, "spanish": contracted_spanish}


@dataclass(eq=False)  # compared by identity: a sentence may have "the" twice
class EnglishWord:
    """An English word; the object itself is what the words of the other language are linked to."""

    text: str


@dataclass
class TargetWord:
    """A French or Spanish word, its sure links to English words, and its possible links."""

    text: str
    sure: list[EnglishWord]
    possible: list[EnglishWord] = field(default_factory=list)


@dataclass
class Phrase:
    en: list[EnglishWord]
    target: list[TargetWord]

    def __add__(self, other: Phrase) -> Phrase:
        """Concatenation in both languages."""
        return Phrase(self.en + other.en, self.target + other.target)


EMPTY = Phrase([], [])


def target_words(text: str, *sure: EnglishWord) -> list[TargetWord]:
    """Words of the target language, each linked to all of these English words."""
    return [TargetWord(word, list(sure)) for word in text.split()]


def phrase_pair(english: str, french: str, sure: str | None = None, possible: str = "") -> Phrase:
    """A phrase written out, with its links "i-j"; without links, word n is linked to word n."""
    en = [EnglishWord(text) for text in english.split()]
    fr = [TargetWord(text, []) for text in french.split()]
    if sure is None:
        sure = " ".join(f"{i}-{i}" for i in range(len(fr)))
    for links, side in ((sure, "sure"), (possible, "possible")):
        for i, j in (link.split("-") for link in links.split()):
            getattr(fr[int(j)], side).append(en[int(i)])
    return Phrase(en, fr)


def rendered(phrase: Phrase, language: Language = "french") -> tuple[str, str, str, str]:
    """English, the other language, sure links and possible ones, with a/an, elision and contraction in place."""
    en = [word.text for word in phrase.en]
    for i, following in enumerate(en[1:]):
        if en[i] == "a" and following[0] in "aeiou" and following not in _A_DESPITE_VOWEL:
            en[i] = "an"
    target: list[TargetWord] = []
    for i, written in enumerate(phrase.target):
        following = phrase.target[i + 1].text if i + 1 < len(phrase.target) else "."
        text = elided(written.text, following) if language == "french" else written.text
        word = TargetWord(text, written.sure, written.possible)
        if target and (one := _CONTRACTION[language](target[-1].text, text)):
            first = target.pop()
            word = TargetWord(one, first.sure + word.sure, first.possible + word.possible)
        target.append(word)
    place = {id(word): i for i, word in enumerate(phrase.en)}
    sure = {(place[id(word)], j) for j, mot in enumerate(target) for word in mot.sure}
    possible = {(place[id(word)], j) for j, mot in enumerate(target) for word in mot.possible} - sure
    return " ".join(en), " ".join(mot.text for mot in target), _links(sure), _links(possible)


def _links(links: set[tuple[int, int]]) -> str:
    return " ".join(f"{i}-{j}" for i, j in sorted(links))
