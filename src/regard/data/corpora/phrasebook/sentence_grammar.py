"""Sentences of the phrase book: statements, questions, several clauses; and the corpus of them."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Literal, get_args

from ...pair import Pair
from .bilingual_phrase import EMPTY, EnglishWord, Language, Phrase, phrase_pair, rendered, target_words
from .clauses import Clause, clause
from .copula_clauses import state
from .invented_words import with_invented_words
from .lecture_grammar import LectureGrammar
from .lecture_sentences import lecture_sentences
from .lexicon import THINKING
from .noun_phrases import NounPhrase, noun_phrase, subject

if TYPE_CHECKING:
    from collections.abc import Iterator

Split = Literal["train", "test"]
Languages = Literal["french", "spanish", "both"]
TAGS = ("<2fr>", "<2es>")  # before an English sentence: the language to translate it into (Johnson et al. 2017)

LONGEST = 40  # words

_TIMES: dict[str, list[tuple[str, str, str | None, str]]] = {
    "present": [
        ("every day", "tous les jours", "0-0 0-1 1-2", ""),
        ("in the morning", "le matin", "1-0 2-1", "0-0"),
        ("at night", "la nuit", "1-1", "0-0"),
        ("today", "aujourd'hui", None, ""),
    ],
    "progressive": [("now", "maintenant", None, ""), ("today", "aujourd'hui", None, "")],
    "past": [
        ("yesterday", "hier", None, ""),
        ("this morning", "ce matin", None, ""),
        ("last week", "la semaine dernière", "1-1 0-2", "1-0"),
        ("last year", "la année dernière", "1-1 0-2", "1-0"),
        ("two days ago", "il y a deux jours", "2-0 2-1 2-2 0-3 1-4", ""),
    ],
    "future": [
        ("tomorrow", "demain", None, ""),
        ("this evening", "ce soir", None, ""),
        ("next week", "la semaine prochaine", "1-1 0-2", "1-0"),
        ("on monday", "lundi", "1-0", "0-0"),
        ("in two days", "dans deux jours", None, ""),
    ],
}
_TIMES["going"] = _TIMES["future"]
for _modal in ("can", "must", "want"):
    _TIMES[_modal] = [("today", "aujourd'hui", None, ""), ("tomorrow", "demain", None, "")]
_PLACES = [
    ("in", "dans", None, "", {"inside"}),
    ("in", "dans", None, "", {"inside"}),
    ("near", "près de", "0-0 0-1", "", {"place", "plant", "crossed"}),
    ("behind", "derrière", None, "", {"place", "plant"}),
    ("in front of", "devant", "1-0", "0-0 2-0", {"place"}),
    ("next to", "à côté de", "0-1 1-2", "0-0 1-1", {"place", "surface", "door"}),
    ("with", "avec", None, "", {"person"}),
]
_BODIES = [
    ("the european economic area", "la zone économique européenne", "0-0 3-1 2-2 1-3", False),
    ("the european union", "la union européenne", "0-0 2-1 1-2", False),
    ("the world bank", "la banque mondiale", "0-0 2-1 1-2", False),
    ("the red cross", "la croix rouge", "0-0 2-1 1-2", False),
    ("the united nations", "les nations unies", "0-0 2-1 1-2", True),
]
_WHY = [("why", "pourquoi"), ("when", "quand"), ("where", "où")]
_GREETINGS = [
    ("hello", "bonjour", None, ""),
    ("thank you", "merci", "0-0", "1-0"),
    ("good evening", "bonsoir", "0-0 1-0", ""),
    ("good night", "bonne nuit", None, ""),
    ("see you tomorrow", "à demain", "2-1", "0-0 1-0"),
    ("of course", "bien sûr", "1-0 1-1", "0-0"),
    ("you are welcome", "de rien", "2-0 2-1", "0-0 1-0"),
]
_JOINTS = [
    ("and", "et", None, ""),
    ("and", "et", None, ""),
    (", but", ", mais", None, ""),
    (", so", ", donc", None, ""),
    ("because", "parce que", "0-0 0-1", ""),
    ("because", "parce que", "0-0 0-1", ""),
]


def sentence(r: Random) -> Phrase:
    """One sentence, of one clause or of several."""
    kind = r.choices(["greeting", "question", "statement"], [2, 10, 88])[0]
    if kind == "greeting":
        return phrase_pair(*r.choice(_GREETINGS)) + phrase_pair("!", "!")
    if kind == "question":
        return _question(r)
    phrase = _part(r)
    for _ in range(r.choices([0, 1, 2, 3], [55, 25, 12, 8])[0]):
        phrase += phrase_pair(*r.choice(_JOINTS)) + _part(r)
    return phrase + phrase_pair(".", ".")


def _part(r: Random) -> Phrase:
    """A main clause."""
    return r.choices([_statement, _state, _that, _if, _body], [56, 20, 10, 8, 6])[0](r)


def _statement(r: Random) -> Phrase:
    who = subject(r)
    if who.noun and "person" in who.tags and r.random() < 0.12:
        who.phrase += phrase_pair("who", "qui") + clause(r, who, tenses=("present", "progressive", "past")).predicate()
    return _around(r, clause(r, who))


def _around(r: Random, made: Clause) -> Phrase:
    """A clause with the place and the time."""
    phrase = made.stated()
    if not made.moving and r.random() < 0.25:
        phrase += _place(r)
    never = any(word.text != "not" for word in made.verb.middle)
    return phrase if never else _timed(r, phrase, made.tense)  # "always" and "yesterday" exclude each other


def _place(r: Random) -> Phrase:
    en, fr, sure, possible, tags = r.choice(_PLACES)
    return phrase_pair(en, fr, sure, possible) + noun_phrase(r, tags, determiners="definite").phrase


def _timed(r: Random, phrase: Phrase, tense: str) -> Phrase:
    """With the time before it, after it, or not at all."""
    place = r.choices(["before", "after", "none"], [7, 18, 75])[0]
    time = phrase_pair(*r.choice(_TIMES[tense]))
    if place == "before":
        return time + phrase_pair(",", ",") + phrase
    return phrase + time if place == "after" else phrase


def _state(r: Random) -> Phrase:
    phrase, tense = state(r)
    return _timed(r, phrase, "progressive" if tense == "present" else tense)


def _that(r: Random) -> Phrase:
    """He thinks that she sleeps: il pense qu' elle dort."""
    who, verb = subject(r, human=True), r.choice(THINKING)
    word = EnglishWord(verb.third if who.third else verb.en)
    thinks = who.phrase + Phrase([word], target_words(verb.fr.present[who.person], word)) + phrase_pair("that", "que")
    return thinks + (_around(r, clause(r, subject(r))) if r.random() < 0.75 else state(r)[0])


def _if(r: Random) -> Phrase:
    """If he sleeps , we will work: si + present, future, in both languages."""
    first = clause(r, subject(r), tenses=("present",)).stated()
    then = _around(r, clause(r, subject(r), tenses=("future",)))
    return phrase_pair("if", "si") + first + phrase_pair(",", ",") + then


def _body(r: Random) -> Phrase:
    """Names whose words have the reverse order in French: the european economic area, la zone économique européenne."""
    en, fr, links, several = r.choice(_BODIES)
    body = phrase_pair(en, fr, links)
    if r.random() < 0.5:
        made = clause(r, subject(r, human=True), tenses=("present", "progressive", "past", "future"))
        return made.stated() + phrase_pair("for", "pour") + body
    who = NounPhrase(body, "ils" if several else "il", True, several, frozenset(["body"]))
    return _around(r, clause(r, who))


def _question(r: Random) -> Phrase:
    kind = r.choice(["whether", "whether", "how", "who", "where"])
    if kind == "where":
        what = noun_phrase(r, {"person", "animal", "place", "thing"}, determiners="known")
        where = phrase_pair("where are", "où sont") if what.several else phrase_pair("where is", "où est")
        return where + what.phrase + phrase_pair("?", "?")
    if kind == "who":
        who = NounPhrase(phrase_pair("who", "qui"), "il", False, False, frozenset(["person"]))
        return clause(r, who, tenses=("present", "progressive", "past", "future")).stated() + phrase_pair("?", "?")
    made = clause(r, subject(r), asked=True)
    return (phrase_pair(*r.choice(_WHY)) if kind == "how" else EMPTY) + made.asked()


@dataclass(frozen=True)
class PhrasebookPairs:
    """n different pairs; the same seed gives the same ones, and no sentence of `train` is in `test`."""

    n: int
    seed: int
    split: Split
    language: Languages = "french"
    lectures: bool = False
    invented: bool = False

    def __len__(self) -> int:
        return self.n

    def __iter__(self) -> Iterator[Pair]:
        row, known = 0, set()
        for columns in self._sentences():
            source, target, _, _ = columns[0]
            # By the target: an English sentence has one translation here, so neither side is in both splits. Pairs in
            # two languages belong to the split of their English side.
            tested = zlib.crc32((target if len(columns) == 1 else source).encode()) % 10 == 0
            if tested != (self.split == "test") or source in known or source.count(" ") >= LONGEST:
                continue
            known.add(source)
            for tag, pair in zip(TAGS, columns, strict=False):
                if row < self.n:
                    pair = pair if len(columns) == 1 else _tagged(tag, pair)
                    yield Pair(pair[0], pair[1], row, f"phrasebook:{row + 1}", pair[2], pair[3])
                row += 1
            if row >= self.n:
                return

    def _sentences(self) -> Iterator[list[tuple[str, str, str, str]]]:
        """Random sentences without end: English, target, sure and possible links; of "both", in French and Spanish."""
        plain = self.language == "french" and not self.lectures
        r = Random(f"{self.seed} {self.split}" + ("" if plain else f" {self.language} {self.lectures}"))
        while self.n:
            if self.invented:
                if (phrase := with_invented_words(sentence(r), r)) is not None:
                    yield [rendered(phrase)]
            elif plain:
                yield [rendered(sentence(r))]
            elif self.language == "both":
                seed = r.random()  # the same choices in both languages
                yield [rendered(LectureGrammar(Random(seed), each).sentence(), each) for each in get_args(Language)]
            else:
                yield [rendered(LectureGrammar(r, self.language).sentence(), self.language)]


def _tagged(tag: str, pair: tuple[str, str, str, str]) -> tuple[str, str, str, str]:
    """The English sentence behind a tag that names the target language; links are moved by that word."""
    source, target, *links = pair
    moved = [" ".join(f"{int(i) + 1}-{j}" for i, j in (link.split("-") for link in side.split())) for side in links]
    return f"{tag} {source}", target, moved[0], moved[1]


def pairs(
    n: int,
    seed: int = 0,
    split: Split = "train",
    *,
    language: Languages = "french",
    lectures: bool = False,
    invented: bool = False,
) -> PhrasebookPairs:
    """n different pairs of the phrase book, tokenised, in lower case, with gold alignments.

    `lectures`: sentences like those that lectures on attention show; Spanish has only these. "both" gives each of them
    in French and in Spanish, after the tags <2fr> and <2es>. `invented`: names and numbers that hardly come twice, the
    same in both languages, at least one in each sentence.
    """
    if invented and (lectures or language != "french"):
        raise ValueError("invented names and numbers are for French, and not for the sentences of the lectures")
    if n < 0:
        raise ValueError(f"the phrase book gives 0 or more pairs, not {n}")
    if split not in get_args(Split):
        raise ValueError(f"split is 'train' or 'test', got {split!r}")
    if language not in get_args(Languages):
        raise ValueError(f"language is 'french', 'spanish' or 'both', got {language!r}")
    return PhrasebookPairs(n, seed, split, language, lectures, invented)


def examples(language: Language = "french") -> list[Pair]:
    """The sentences that the lectures themselves show."""
    return [
        Pair(source, target, row, f"lectures:{row + 1}", sure, possible)
        for row, (source, target, sure, possible) in enumerate(lecture_sentences(language))
    ]
