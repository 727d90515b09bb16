"""French morphology: agreement, conjugation, elision and contraction."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Person = Literal["je", "il", "nous", "vous", "ils"]  # of the verb; the phrase book has no "tu"
_PERSONS: tuple[Person, ...] = ("je", "il", "nous", "vous", "ils")
_VOWELS = "aeiouyàâéèêîïôûœh"  # every h of the phrase book is mute
_ELIDED = {"le", "la", "de", "je", "ne", "me", "que"}
_CONTRACTED = {("de", "le"): "du", ("de", "les"): "des", ("à", "le"): "au", ("à", "les"): "aux"}


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
    future = {who: stem.removesuffix("-") + ending for who, ending in zip(_PERSONS, endings, strict=True)}
    return Conjugation(infinitive, dict(zip(_PERSONS, present, strict=True)), future, participle, etre)


def present(forms: str) -> dict[Person, str]:
    """Five forms, as a table."""
    return dict(zip(_PERSONS, forms.split(), strict=True))


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


def contracted(word: str, following: str) -> str | None:
    """de + le → du; None where nothing is contracted."""
    return _CONTRACTED.get((word, following))
