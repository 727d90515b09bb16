"""A phrase in two languages at once, with links between their words; French morphology; the tables of lexicon.toml."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Literal

Language = Literal["french", "spanish"]
Person = Literal["je", "il", "nous", "vous", "ils"]  # of the verb; the phrase book has no "tu"
PERSONS: tuple[Person, ...] = ("je", "il", "nous", "vous", "ils")
_VOWELS = "aeiouyàâéèêîïôûœh"  # every h of the phrase book is mute
_ELIDED = {"le", "la", "de", "je", "ne", "me", "que"}
_CONTRACTED = {
    "french": {("de", "le"): "du", ("de", "les"): "des", ("à", "le"): "au", ("à", "les"): "aux"},
    "spanish": {("de", "el"): "del", ("a", "el"): "al"},
}


@cache
def _lexicon() -> dict[str, dict[str, str]]:
    return tomllib.loads(Path(__file__).with_name("lexicon.toml").read_text(encoding="utf-8"))


@cache
def table(section: str, name: str) -> list[list[str]]:
    """The rows of a table of lexicon.toml; `|` separates their cells."""
    return [[cell.strip() for cell in line.split("|")] for line in _lexicon()[section][name].strip().splitlines()]


@dataclass(frozen=True)
class Conjugation:
    infinitive: str
    present: dict[Person, str]
    future: dict[Person, str]
    participle: str
    etre: bool  # arriver, partir …: the perfect with être, and a participle that agrees with the subject


def conjugation(forms: list[str]) -> Conjugation:
    """From the infinitive alone (regular in -er), or with the present, the stem of the future and the participle."""
    etre = forms[-1] == "être"
    infinitive, *stems = forms[: len(forms) - etre]
    if not stems:
        stem = infinitive.removesuffix("er")
        soft = stem + "e" if stem.endswith("g") else stem  # nous mangeons
        stems = [stem + "e", stem + "e", soft + "ons", stem + "ez", stem + "ent", infinitive + "-", stem + "é"]
    *present, stem, participle = stems
    endings = ("ai", "a", "ons", "ez", "ont")
    future = {who: stem.removesuffix("-") + ending for who, ending in zip(PERSONS, endings, strict=True)}
    return Conjugation(infinitive, dict(zip(PERSONS, present, strict=True)), future, participle, etre)


def by_person(forms: str) -> dict[Person, str]:
    """Five forms, as a table."""
    return dict(zip(PERSONS, forms.split(), strict=True))


@cache
def forms(language: Language | Literal["english"]) -> dict[str, dict[Person, str]]:
    """Those of irregular verbs, by verb and tense."""
    return {name: by_person(row) for name, row in table("forms", language)}


def vowel(word: str) -> bool:
    """Whether it begins with a vowel, so that the word before it is elided."""
    return word[0] in _VOWELS


def plural(word: str) -> str:
    if word.endswith(("s", "x")):
        return word
    return word + ("x" if word.endswith("eau") else "s")


def feminine(adjective: str) -> str:
    return adjective if adjective.endswith("e") else adjective + "e"


def agree(masculine: str, feminine: str, female: bool, several: bool) -> str:
    """An adjective or participle in one of its four forms."""
    word = feminine if female else masculine
    return plural(word) if several else word


def elided(word: str, following: str) -> str:
    """le + eau → l'; si + il → s'."""
    if (word in _ELIDED and vowel(following)) or (word == "si" and following in ("il", "ils")):
        return word[:-1] + "'"
    return word


_A_DESPITE_VOWEL = ("european",)  # pronounced with a y


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


def word_pair(english: str, target: str) -> Phrase:
    """An English word and its translation."""
    word = EnglishWord(english)
    return Phrase([word], target_words(target, word))


def phrase_pair(english: str, french: str, sure: str = "", possible: str = "") -> Phrase:
    """A phrase written out, with its links "i-j"; without links, word n is linked to word n."""
    en = [EnglishWord(text) for text in english.split()]
    fr = [TargetWord(text, []) for text in french.split()]
    if not sure:
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
        if target and (one := _CONTRACTED[language].get((target[-1].text, text))):
            first = target.pop()
            word = TargetWord(one, first.sure + word.sure, first.possible + word.possible)
        target.append(word)
    place = {id(word): i for i, word in enumerate(phrase.en)}
    sure = {(place[id(word)], j) for j, mot in enumerate(target) for word in mot.sure}
    possible = {(place[id(word)], j) for j, mot in enumerate(target) for word in mot.possible} - sure
    return " ".join(en), " ".join(mot.text for mot in target), _links(sure), _links(possible)


def _links(links: set[tuple[int, int]]) -> str:
    return " ".join(f"{i}-{j}" for i, j in sorted(links))
