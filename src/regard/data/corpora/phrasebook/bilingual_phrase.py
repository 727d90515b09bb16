"""A phrase in both languages at once, every French word tied to the English words it comes from."""

from __future__ import annotations

from dataclasses import dataclass, field

from .french import contracted, elided

_A_DESPITE_VOWEL = ("european",)  # said with a y


@dataclass(eq=False)  # two words "the" of one sentence are two words
class Word:
    """An English word; the object itself is what French words are linked to."""

    text: str


@dataclass
class Mot:
    """A French word, the English words it surely comes from, and those it may be said to come from too."""

    text: str
    sure: list[Word]
    possible: list[Word] = field(default_factory=list)


@dataclass
class Phrase:
    en: list[Word]
    fr: list[Mot]

    def __add__(self, other: Phrase) -> Phrase:
        """One after the other, in both languages."""
        return Phrase(self.en + other.en, self.fr + other.fr)


EMPTY = Phrase([], [])


def mots(text: str, *sure: Word) -> list[Mot]:
    """French words that all come from these English ones."""
    return [Mot(word, list(sure)) for word in text.split()]


def said(english: str, french: str, sure: str | None = None, possible: str = "") -> Phrase:
    """A phrase written out, with its links "i-j"; without them, word n is word n."""
    en = [Word(text) for text in english.split()]
    fr = [Mot(text, []) for text in french.split()]
    if sure is None:
        sure = " ".join(f"{i}-{i}" for i in range(len(fr)))
    for links, side in ((sure, "sure"), (possible, "possible")):
        for i, j in (link.split("-") for link in links.split()):
            getattr(fr[int(j)], side).append(en[int(i)])
    return Phrase(en, fr)


def written(phrase: Phrase) -> tuple[str, str, str, str]:
    """English, French, sure links and possible ones, with a/an, elision and contraction in place."""
    en = [word.text for word in phrase.en]
    for i, following in enumerate(en[1:]):
        if en[i] == "a" and following[0] in "aeiou" and following not in _A_DESPITE_VOWEL:
            en[i] = "an"
    fr: list[Mot] = []
    for i, mot in enumerate(phrase.fr):
        following = phrase.fr[i + 1].text if i + 1 < len(phrase.fr) else "."
        mot = Mot(elided(mot.text, following), mot.sure, mot.possible)
        if fr and (one := contracted(fr[-1].text, mot.text)):
            first = fr.pop()
            mot = Mot(one, first.sure + mot.sure, first.possible + mot.possible)
        fr.append(mot)
    place = {id(word): i for i, word in enumerate(phrase.en)}
    sure = {(place[id(word)], j) for j, mot in enumerate(fr) for word in mot.sure}
    possible = {(place[id(word)], j) for j, mot in enumerate(fr) for word in mot.possible} - sure
    return " ".join(en), " ".join(mot.text for mot in fr), _links(sure), _links(possible)


def _links(links: set[tuple[int, int]]) -> str:
    return " ".join(f"{i}-{j}" for i, j in sorted(links))
