"""The sentences that the lectures themselves show, tokenised, with gold links."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .bilingual_phrase import phrase_pair, rendered

if TYPE_CHECKING:
    from .bilingual_phrase import Language

# English | translation | sure links | possible links
_SENTENCES: dict[Language, list[tuple[str, str, str | None, str]]] = {
    "french": [
        (
            "the agreement on the european economic area was signed in august 1992 .",
            "le accord sur la zone économique européenne a été signé en août 1992 .",
            "0-0 1-1 2-2 3-3 6-4 5-5 4-6 7-7 7-8 8-9 9-10 10-11 11-12 12-13",
            "",
        ),
        # As on the slide; the usual word order follows.
        ("he hit me with a pie", "il a me entarté", "0-0 1-1 2-2 1-3 5-3", "3-3 4-3"),
        ("he hit me with a pie", "il me a entarté", "0-0 2-1 1-2 1-3 5-3", "3-3 4-3"),
        ("i am a student", "je suis étudiant", "0-0 1-1 3-2", "2-2"),
        (
            "the fbi is chasing a criminal on the run .",
            "le fbi poursuit un criminel en fuite .",
            "0-0 1-1 3-2 4-3 5-4 6-5 8-6 9-7",
            "2-2 7-6",
        ),
        ("i am from canada", "je suis de le canada", "0-0 1-1 2-2 3-3 3-4", ""),
        (
            "can you bring me a fork ?",
            "est-ce que vous pouvez me apporter une fourchette ?",
            "1-2 0-3 3-4 2-5 4-6 5-7 6-8",
            "0-0 0-1 6-0 6-1",
        ),
    ],
    "spanish": [
        ("i am from canada", "yo soy de canadá", None, ""),
        (
            "can you bring me a fork ?",
            "¿ me puedes traer un tenedor ?",
            "3-1 0-2 2-3 4-4 5-5 6-6",
            "6-0 1-2",
        ),
        ("he hit me with a pie", "él me golpeó con una tarta", "0-0 2-1 1-2 3-3 4-4 5-5", ""),
        ("i am a student", "yo soy estudiante", "0-0 1-1 3-2", "2-2"),
        (
            "the fbi is chasing a criminal on the run .",
            "el fbi persigue a un criminal en fuga .",
            "0-0 1-1 3-2 4-4 5-5 6-6 8-7 9-8",
            "2-2 3-3 7-7",
        ),
        (
            "the agreement on the european economic area was signed in august 1992 .",
            "el acuerdo sobre la zona económica europea fue firmado en agosto de 1992 .",
            "0-0 1-1 2-2 3-3 6-4 5-5 4-6 7-7 8-8 9-9 10-10 11-12 12-13",
            "11-11",
        ),
    ],
}


def lecture_sentences(language: Language) -> list[tuple[str, str, str, str]]:
    """English, translation, sure links and possible ones of each sentence."""
    return [rendered(phrase_pair(*row), language) for row in _SENTENCES[language]]
