"""A phrase in both languages at once, with links from every French word to English words."""

from __future__ import annotations

from dataclasses import dataclass, field

from .french import contracted, elided

_A_DESPITE_VOWEL = ("european",)  # pronounced with a y


@dataclass(eq=False)  # compared by identity: a sentence may have "the" twice
class EnglishWord:
    """An English word; the object itself is what French words are linked to."""

    text: str


@dataclass
class FrenchWord:
    """A French word, its sure links to English words, and its possible links."""

    text: str
    sure: list[EnglishWord]
    possible: list[EnglishWord] = field(default_factory=list)


@dataclass
class Phrase:
    en: list[EnglishWord]
    fr: list[FrenchWord]

    def __add__(self, other: Phrase) -> Phrase:
        """Concatenation in both languages."""
        return Phrase(self.en + other.en, self.fr + other.fr)


EMPTY = Phrase([], [])


def french_words(text: str, *sure: EnglishWord) -> list[FrenchWord]:
    """French words, each linked to all of these English words."""
    return [FrenchWord(word, list(sure)) for word in text.split()]


def phrase_pair(english: str, french: str, sure: str | None = None, possible: str = "") -> Phrase:
    """A phrase written out, with its links "i-j"; without links, word n is linked to word n."""
    en = [EnglishWord(text) for text in english.split()]
    fr = [FrenchWord(text, []) for text in french.split()]
    if sure is None:
        sure = " ".join(f"{i}-{i}" for i in range(len(fr)))
    for links, side in ((sure, "sure"), (possible, "possible")):
        for i, j in (link.split("-") for link in links.split()):
            getattr(fr[int(j)], side).append(en[int(i)])
    return Phrase(en, fr)


def rendered(phrase: Phrase) -> tuple[str, str, str, str]:
    """English, French, sure links and possible ones, with a/an, elision and contraction in place."""
    en = [word.text for word in phrase.en]
    for i, following in enumerate(en[1:]):
        if en[i] == "a" and following[0] in "aeiou" and following not in _A_DESPITE_VOWEL:
            en[i] = "an"
    fr: list[FrenchWord] = []
    for i, mot in enumerate(phrase.fr):
        following = phrase.fr[i + 1].text if i + 1 < len(phrase.fr) else "."
        mot = FrenchWord(elided(mot.text, following), mot.sure, mot.possible)
        if fr and (one := contracted(fr[-1].text, mot.text)):
            first = fr.pop()
            mot = FrenchWord(one, first.sure + mot.sure, first.possible + mot.possible)
        fr.append(mot)
    place = {id(word): i for i, word in enumerate(phrase.en)}
    sure = {(place[id(word)], j) for j, mot in enumerate(fr) for word in mot.sure}
    possible = {(place[id(word)], j) for j, mot in enumerate(fr) for word in mot.possible} - sure
    return " ".join(en), " ".join(mot.text for mot in fr), _links(sure), _links(possible)


def _links(links: set[tuple[int, int]]) -> str:
    return " ".join(f"{i}-{j}" for i, j in sorted(links))
