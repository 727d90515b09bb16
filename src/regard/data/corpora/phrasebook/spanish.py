"""Spanish morphology: agreement, conjugation and contraction."""

from __future__ import annotations

from dataclasses import dataclass

_CONTRACTED = {("de", "el"): "del", ("a", "el"): "al"}
_PRESENT = {"ar": "o as a amos an", "er": "o es e emos en", "ir": "o es e imos en"}
_PRETERITE = {
    "ar": "é aste ó amos aron",
    "er": "í iste ió imos ieron",
    "ir": "í iste ió imos ieron",
}


@dataclass(frozen=True)
class SpanishVerb:
    """Forms for yo, tú, él, nosotros, ellos."""

    infinitive: str
    present: tuple[str, ...]
    preterite: tuple[str, ...]

    @property
    def future(self) -> tuple[str, ...]:
        return tuple(self.infinitive + end for end in ("é", "ás", "á", "emos", "án"))


def spanish_verb(forms: str) -> SpanishVerb:
    """From the infinitive alone (regular), or with five forms of the present, and of the preterite after a comma."""
    infinitive, *written = forms.replace(",", " ").split()
    stem, ending = infinitive[:-2], infinitive[-2:]
    present = tuple(written[:5]) or tuple(stem + end for end in _PRESENT[ending].split())
    preterite = tuple(written[5:]) or tuple(stem + end for end in _PRETERITE[ending].split())
    return SpanishVerb(infinitive, present, preterite)


def plural(word: str) -> str:
    return word + ("s" if word[-1] in "aeiouáé" else "es")


def feminine(word: str) -> str:
    """rojo: roja; others (azul, económica) are given or stay."""
    return word[:-1] + "a" if word.endswith("o") else word


def contracted(word: str, following: str) -> str | None:
    """de + el → del; None where nothing is contracted."""
    return _CONTRACTED.get((word, following))
