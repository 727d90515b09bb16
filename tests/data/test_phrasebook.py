"""The phrase book: one translation for each sentence, correct forms, exact links, test apart from training."""

from __future__ import annotations

import hashlib
import re
import subprocess
import sys
from functools import cache
from itertools import pairwise
from random import Random

import pytest

from regard.data import Pair, PairReader
from regard.data.corpora import phrasebook
from regard.data.corpora.phrasebook import bilingual_phrase as french
from regard.data.corpora.phrasebook.bilingual_phrase import EnglishWord, Phrase, TargetWord, phrase_pair, rendered
from regard.data.corpora.phrasebook.grammar import ADJECTIVES, NAMES, NOUNS, VERBS, Clause, NounPhrase, group, predicate
from regard.data.corpora.phrasebook.lecture_grammar import LectureGrammar


@cache
def pairs(n: int, split: str = "train") -> list[Pair]:
    return list(phrasebook.pairs(n, seed=3, split=split))  # type: ignore[arg-type]


def links(text: str | None) -> list[tuple[int, int]]:
    return [(int(i), int(j)) for i, j in (link.split("-") for link in (text or "").split())]


def test_pairs_are_different_and_can_be_read_again() -> None:
    book = phrasebook.pairs(500)
    assert len(book) == 500
    assert len({pair.source for pair in book}) == 500
    assert list(book) == list(book)
    assert len(list(PairReader(book))) == len(list(PairReader(book))) == 500


def test_neither_side_of_a_test_sentence_is_in_the_training() -> None:
    train, test = pairs(3000), pairs(600, "test")
    assert not {pair.source for pair in train} & {pair.source for pair in test}
    assert not {pair.target for pair in train} & {pair.target for pair in test}
    known = {word for pair in train for word in pair.source.split()}
    new = {word for pair in test for word in pair.source.split()} - known
    assert len(new) <= 3, "test sentences are of the same words"


def test_an_english_sentence_has_one_translation() -> None:
    matches: dict[str, str] = {}
    for pair in [*pairs(3000), *pairs(600, "test"), *phrasebook.pairs(2000, seed=4)]:
        assert matches.setdefault(pair.source, pair.target) == pair.target


def test_every_word_is_linked_and_every_link_is_inside() -> None:
    for pair in pairs(3000):
        sure, possible = links(pair.alignment), links(pair.possible)
        source, target = len(pair.source.split(" ")), len(pair.target.split(" "))
        assert {i for i, _ in sure + possible} == set(range(source)), pair
        assert {j for _, j in sure + possible} == set(range(target)), pair
        assert not set(sure) & set(possible)


def test_links_join_words_that_translate_each_other() -> None:
    """Every noun's and adjective's sure links go to its own French forms, wherever the sentence puts them."""
    forms: dict[str, set[str]] = {}
    for noun in NOUNS:
        forms.setdefault(noun.en, set()).update(noun.fr.split())
        forms.setdefault(noun.ens, set()).update(noun.frs.split())
    for adjective in ADJECTIVES:
        mine = forms.setdefault(adjective.en, set())
        for form in (adjective.fr, adjective.frf, adjective.liaison):
            mine |= {*form.split(), *french.plural(form).split()}
    unambiguous = set(forms) - {
        "cold",
        "hot",
        "open",
        "paint",
        "red",
        "european",
        "orange",
    }  # also parts of other things
    checked = 0
    for pair in pairs(1000):
        source, target = pair.source.split(), pair.target.split()
        for i, j in links(pair.alignment):
            if source[i] in unambiguous and source[-1] != "!":
                assert target[j] in forms[source[i]], pair
                checked += 1
    assert checked > 2000


def test_no_elision_and_no_contraction_is_missed() -> None:
    cut = {"le", "la", "de", "je", "ne", "me", "que", "ma", "sa"}
    apart = {("de", "le"), ("de", "les"), ("à", "le"), ("à", "les"), ("si", "il"), ("si", "ils")}
    before_vowels = {noun.fr for noun in NOUNS if french.vowel(noun.fr)}
    for pair in pairs(3000):
        for word, following in pairwise(pair.target.split()):
            assert word not in cut or not french.vowel(following), pair
            assert not word.endswith("'") or french.vowel(following), pair
            assert (word, following) not in apart, pair
            assert word not in ("ce", "beau", "nouveau") or following not in before_vowels, pair


def test_a_or_an() -> None:
    for pair in pairs(3000):
        words = pair.source.split()
        for word, following in pairwise(words):
            if word in ("a", "an"):
                assert (word == "an") == (following[0] in "aeiou" and following != "european"), pair


def _clause(who: NounPhrase, verb: str, tense: str, middle: str = "", clitic: str = "") -> str:
    matches = next(verb_ for verb_ in VERBS if verb_.en == verb)
    made = group(matches, who, tense, middle, False, False, clitic == "les")
    return rendered(
        Clause(who, made, predicate(made, TargetWord(clitic, []) if clitic else None), [], tense, False).stated()
    )[1]


def _someone(text: str, person: french.Person, female: bool = False, several: bool = False) -> NounPhrase:
    return NounPhrase(
        Phrase([EnglishWord(text)], [TargetWord(text, [])]), person, female, several, frozenset(["person"])
    )


@pytest.mark.parametrize(
    ("who", "verb", "tense", "middle", "clitic", "expected"),
    [
        (_someone("elle", "il", True), "sleep", "present", "", "", "elle dort"),
        (_someone("je", "je"), "open", "present", "not", "", "je n' ouvre pas"),
        (_someone("nous", "nous", several=True), "eat", "progressive", "", "", "nous mangeons"),
        (_someone("elles", "ils", True, True), "arrive", "past", "not", "", "elles ne sont pas arrivées"),
        (_someone("il", "il"), "see", "past", "never", "les", "il ne les a jamais vus"),
        (_someone("vous", "vous"), "help", "future", "often", "me", "vous m' aiderez souvent"),
        (_someone("ils", "ils", several=True), "invite", "can", "not", "la", "ils ne peuvent pas l' inviter"),
        (_someone("je", "je"), "run", "future", "", "", "je courrai"),
        (_someone("il", "il"), "hit", "past", "", "me", "il m' a entarté"),
        (_someone("il", "il"), "hit", "want", "not", "me", "il ne veut pas m' entarter"),
    ],
)
def test_the_french_verb(who: NounPhrase, verb: str, tense: str, middle: str, clitic: str, expected: str) -> None:
    assert _clause(who, verb, tense, middle, clitic) == expected


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("de le pain", "du pain"),
        ("de le eau", "de l' eau"),
        ("à les hommes", "aux hommes"),
        ("si il ne y a pas", "s' il n' y a pas"),
        ("si elle", "si elle"),
        ("parce que anna", "parce qu' anna"),
        ("de les amis", "des amis"),
    ],
)
def test_where_two_words_meet(words: str, expected: str) -> None:
    count = len(words.split())
    phrase = phrase_pair(" ".join(f"w{i}" for i in range(count)), words)
    _, target, sure, _ = rendered(phrase)
    assert target == expected
    assert len(links(sure)) == count, "a contraction keeps the links of both words"


def test_the_command_prints_what_pairs_reads(tmp_path) -> None:  # type: ignore[no-untyped-def]
    code = "import sys; from regard.cli import main; main()"
    command = [sys.executable, "-c", code, "data", "phrasebook", "50", "--links", "--seed", "3"]
    done = subprocess.run(command, capture_output=True, check=True, timeout=60)
    file = tmp_path / "book.tsv"
    file.write_bytes(done.stdout)
    read = list(PairReader(file, columns=(0, 1, 2, 3)))
    assert [(pair.source, pair.target, pair.alignment, pair.possible) for pair in read] == [
        (pair.source, pair.target, pair.alignment, pair.possible) for pair in phrasebook.pairs(50, seed=3)
    ]


def test_the_book_needs_no_torch() -> None:
    code = (
        "import sys; from regard.data.corpora import phrasebook; list(phrasebook.pairs(3)); "
        "sys.exit('torch' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_the_first_pairs_of_every_book_have_not_changed() -> None:
    """Results and files of earlier versions depend on them, and none depends on the seed of Python's hashes."""
    books = {
        "781c62b300ae7220d5e59da994e7041d76f32bca82b2a044f577cd8194a7f294": {},
        "545df7dba77c4c8f1e74fac33b44f3924abe956704df8e8bc55caf717eb1942a": {"invented": True},
        "80129f0660a29c0f2f912bfdc60f501cf8689f815d8de1a0ab14f688516db71f": {"lectures": True},
        "daaeb393a1d2f71aabace30c52d9965ee9d4dc5b61cc6a36d6e055e478c53310": {"language": "both"},
    }
    for digest, settings in books.items():
        book = phrasebook.pairs(300, seed=3, **settings)
        text = "".join(f"{pair.source}\t{pair.target}\t{pair.alignment}\t{pair.possible}\n" for pair in book)
        assert hashlib.sha256(text.encode()).hexdigest() == digest, settings


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


INVENTED = re.compile(r"([bdfgklmnprstvz]{1,2}[aeiou]){3}(la|k)|\d{2,5}")


def test_every_sentence_has_a_word_to_copy_and_it_is_linked() -> None:
    train = list(phrasebook.pairs(300, invented=True))
    words = set()
    for pair in train:
        source, target = pair.source.split(), pair.target.split()
        links = {(int(i), int(j)) for i, j in (link.split("-") for link in (pair.alignment or "").split())}
        copied = [(i, j) for i, j in links if source[i] == target[j] and INVENTED.fullmatch(source[i])]
        assert copied, pair
        assert not set(source) & NAMES.keys(), pair
        words |= {source[i] for i, _ in copied}
    assert len(words) > 250  # hardly one twice
    assert train == list(phrasebook.pairs(300, invented=True))
    assert not {pair.source for pair in train} & {
        pair.source for pair in phrasebook.pairs(300, split="test", invented=True)
    }


def test_other_languages_have_none() -> None:
    with pytest.raises(ValueError, match="invented names and numbers are for French"):
        phrasebook.pairs(1, language="spanish", invented=True)
