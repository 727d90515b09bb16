"""The sentences of the lectures: French and Spanish forms, exact links, and the examples themselves."""

from __future__ import annotations

from random import Random

import pytest

from regard.data.corpora import phrasebook
from regard.data.corpora.phrasebook import lecture_sentences
from regard.data.corpora.phrasebook.lecture_sentences import LectureGrammar
from regard.data.corpora.phrasebook.phrases import rendered


def links(text: str | None) -> list[tuple[int, int]]:
    return [(int(i), int(j)) for i, j in (link.split("-") for link in (text or "").split())]


@pytest.mark.parametrize("language", ["french", "spanish"])
def test_every_target_word_is_linked_and_every_link_is_inside(language: phrasebook.Language) -> None:
    for pair in [*phrasebook.examples(language), *phrasebook.pairs(400, language=language, lectures=True)]:
        both = links(pair.alignment) + links(pair.possible)
        assert {j for _, j in both} == set(range(len(pair.target.split()))), pair
        assert {i for i, _ in both} <= set(range(len(pair.source.split()))), pair


@pytest.mark.parametrize("language", ["french", "spanish"])
def test_the_grammar_writes_the_examples_with_the_same_links(language: phrasebook.Language) -> None:
    """Each example without its own word order is a sentence of the grammar, with the links that are written for it."""
    made = set()
    for seed in range(8000):
        made.add(rendered(LectureGrammar(Random(seed), language).sentence(), language))
    written = {(pair.source, pair.target, pair.alignment, pair.possible) for pair in phrasebook.examples(language)}
    assert len(written & made) >= 3
    for source, target, *sides in made:
        for row in written:
            assert row[:2] != (source, target) or row == (source, target, *sides)


def test_an_english_sentence_has_one_translation() -> None:
    for language in ("french", "spanish"):
        matches: dict[str, str] = {}
        for seed in (1, 2):
            for pair in phrasebook.pairs(1500, seed=seed, language=language, lectures=True):
                assert matches.setdefault(pair.source, pair.target) == pair.target


def test_the_sentences_of_the_lectures() -> None:
    french = {pair.source: pair.target for pair in phrasebook.examples("french")}
    castilian = {pair.source: pair.target for pair in phrasebook.examples("spanish")}
    agreement = "the agreement on the european economic area was signed in august 1992 ."
    assert french[agreement] == "l' accord sur la zone économique européenne a été signé en août 1992 ."
    assert {"il a m' entarté", "il m' a entarté"} <= {pair.target for pair in phrasebook.examples("french")}
    assert french["i am a student"] == "je suis étudiant"
    assert castilian["i am from canada"] == "yo soy de canadá"
    assert castilian["can you bring me a fork ?"] == "¿ me puedes traer un tenedor ?"


def test_both_languages_of_a_sentence_follow_each_other_and_stay_in_one_split() -> None:
    train = list(phrasebook.pairs(600, language="both"))
    test = list(phrasebook.pairs(200, language="both", split="test"))
    for first, second in zip(train[::2], train[1::2], strict=True):
        assert [first.source[:6], second.source[:6]] == ["<2fr> ", "<2es> "]
        assert first.source[6:] == second.source[6:]
    assert not {pair.source for pair in train} & {pair.source for pair in test}
    assert all(i > 0 for pair in train for i, _ in links(pair.alignment)), "the tag is linked to nothing"


def test_spanish_forms() -> None:
    assert lecture_sentences.spanish_verb("mirar").preterite == ("miré", "miraste", "miró", "miramos", "miraron")
    assert lecture_sentences.spanish_plural("profesor") == "profesores"
