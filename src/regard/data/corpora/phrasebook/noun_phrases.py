"""Noun phrases: determiners, adjectives before or after the noun, possessives, pronouns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from .bilingual_phrase import EnglishWord, Phrase, TargetWord, phrase_pair, target_words
from .french import Person, agree, vowel
from .lexicon import NAMES, Adjective, Noun, adjectives, nouns

if TYPE_CHECKING:
    from random import Random

# English → French: masculine, feminine, plural; then masculine and feminine before a vowel.
_DETERMINERS = {
    "the": ("le", "la", "les", "le", "la"),
    "a": ("un", "une", "", "un", "une"),
    "my": ("mon", "ma", "mes", "mon", "mon"),
    "his": ("son", "sa", "ses", "son", "son"),
    "her": ("son", "sa", "ses", "son", "son"),
    "our": ("notre", "notre", "nos", "notre", "notre"),
    "your": ("votre", "votre", "vos", "votre", "votre"),
    "their": ("leur", "leur", "leurs", "leur", "leur"),
    "this": ("ce", "cette", "", "cet", "cette"),
    "every": ("chaque", "chaque", "", "chaque", "chaque"),
}
_COUNTED = {"these": "ces", "two": "deux", "three": "trois", "four": "quatre"}
_COUNTED |= {"several": "plusieurs", "many": "beaucoup de"}
_OWNERS = ["my", "his", "her", "our", "your", "their"]
# What may stand before one, before several, before what is not counted. After a preposition only one thing stands:
# "de" swallows du and des.
_CHOICES = {
    "any": (
        ["the", "the", "the", "a", "a", "this", *_OWNERS, "every"],
        ["the", "the", "these", "two", "three", "four", "several", "many", "all", "some", *_OWNERS],
        ["the", "some", "some", *_OWNERS],
    ),
    "known": (["the", "the", "this", *_OWNERS], ["the", "the", "these", "all", *_OWNERS], ["the", *_OWNERS]),
    "definite": (["the", "the", "the", "a", "this", *_OWNERS], [], ["the", *_OWNERS]),
    "indefinite": (["a"], ["two", "three", "four", "several", "many", "some"], ["some"]),
}

# English subject, object | French subject, object | person of the verb, female, several
_PRONOUNS: list[tuple[str, str, str, str, Person, bool, bool]] = [
    ("i", "me", "je", "me", "je", False, False),
    ("you", "you", "vous", "vous", "vous", False, False),  # singular, polite
    ("he", "him", "il", "le", "il", False, False),
    ("she", "her", "elle", "la", "il", True, False),
    ("we", "us", "nous", "nous", "nous", False, True),
    ("they", "them", "ils", "les", "ils", False, True),
]


@dataclass
class NounPhrase:
    """A phrase, and the person, gender and number that verbs and adjectives agree with."""

    phrase: Phrase
    person: Person
    female: bool
    several: bool
    tags: frozenset[str]
    noun: bool = True  # neither a pronoun nor a name

    @property
    def third(self) -> bool:
        """Whether English says "she sleeps" and not "they sleep"."""
        return self.person == "il"


def subject(r: Random, *, plain: bool = False, human: bool = False) -> NounPhrase:
    """Somebody who does something, perhaps an animal where it need not be `human`."""
    chance = r.random()
    if chance < 0.4:
        en, _, fr, _, person, female, several = r.choice(_PRONOUNS)
        return NounPhrase(phrase_pair(en, fr), person, female, several, frozenset(["person"]), noun=False)
    if chance < 0.55:
        name = r.choice(list(NAMES))
        return NounPhrase(phrase_pair(name, name), "il", NAMES[name], False, frozenset(["person"]), noun=False)
    return noun_phrase(r, {"person"} if human or chance < 0.88 else {"animal"}, plain=plain)


def object_pronoun(r: Random, of: NounPhrase) -> tuple[EnglishWord, TargetWord, bool, bool]:
    """me, him, …: the English word, the French one, female, several; never the subject itself."""
    ours = ("je", "nous") if of.person in ("je", "nous") else ("vous",) if of.person == "vous" else ()
    others = [row for row in _PRONOUNS if row[4] not in ours]  # "he sees him" is possible, "I see us" is not
    _, en, _, fr, _, female, several = r.choice(others)
    word = EnglishWord(en)
    return word, TargetWord(fr, [word]), female, several


def noun_phrase(
    r: Random,
    tags: set[str] | frozenset[str],
    *,
    determiners: Literal["any", "known", "definite", "indefinite"] = "any",
    plain: bool = False,
    negated: bool = False,
) -> NounPhrase:
    """A noun with one of these tags and what belongs to it; nothing but a determiner where `plain`.

    `negated`: it is the object of a verb with "not", where "a" and "some" change.
    """
    noun = r.choice(nouns(frozenset(tags)))
    one, more, uncounted = _CHOICES[determiners]
    several = bool(noun.ens) and bool(more) and r.random() < 0.3
    fitting = uncounted if not noun.ens else more if several else one
    if "own" in noun.tags:
        fitting = _OWNERS
    elif "nobodys" in noun.tags:  # "ma femme" means "my wife"
        fitting = [choice for choice in fitting if choice not in _OWNERS]
    determiner = r.choice(fitting)
    described = [] if plain else _adjectives(r, noun)
    if determiner == "the" and noun.ens and not several and "nobodys" not in noun.tags and r.random() < 0.15:
        return _owned(r, noun, described)
    phrase = _determined(determiner, noun, several, described, negated)
    return NounPhrase(phrase, "ils" if several else "il", noun.female, several, noun.tags)


def _determined(determiner: str, noun: Noun, several: bool, described: list[Adjective], negated: bool) -> Phrase:
    """A determiner and its noun: "a small red car", "une petite voiture rouge"."""
    body = _body(noun, several, described)
    if determiner == "all":
        every, the = EnglishWord("all"), EnglishWord("the")
        french = [*target_words("toutes" if noun.female else "tous", every), *target_words("les", the)]
        return Phrase([every, the], french) + body
    if determiner == "some":
        word = EnglishWord("any" if negated else "some")
        if negated or (several and any(adjective.before for adjective in described)):
            article = "de"  # pas de pommes; de grandes maisons
        elif several:
            article = "des"
        else:
            article = "de la" if noun.female else "de le"
        return Phrase([word], target_words(article, word)) + body
    word = EnglishWord(determiner)
    if negated and determiner == "a":
        return Phrase([word], target_words("de", word)) + body
    if determiner in _COUNTED:
        return Phrase([word], target_words(_COUNTED[determiner], word)) + body
    form = 2 if several else int(noun.female) + (3 if vowel(body.target[0].text) else 0)
    return Phrase([word], target_words(_DETERMINERS[determiner][form], word)) + body


def _adjectives(r: Random, noun: Noun) -> list[Adjective]:
    """No adjective, one, or one before and one after the noun."""
    fitting = adjectives(noun.tags)
    before = [adjective for adjective in fitting if adjective.before]
    after = [adjective for adjective in fitting if not adjective.before]
    return [r.choice(side) for side, share in ((before, 0.22), (after, 0.27)) if side and r.random() < share]


def _body(noun: Noun, several: bool, described: list[Adjective]) -> Phrase:
    """The noun with its adjectives; in English all of them come first."""
    word = EnglishWord(noun.ens if several else noun.en)
    french = target_words(noun.frs if several else noun.fr, word)
    words = [EnglishWord(adjective.en) for adjective in described]
    for english, adjective in zip(words, described, strict=True):
        form = agree(adjective.fr, adjective.frf, noun.female, several)
        if not several and not noun.female and adjective.before and vowel(french[0].text):
            form = adjective.liaison  # un vieil ami
        mots = target_words(form, english)
        french = [*mots, *french] if adjective.before else [*french, *mots]
    return Phrase([*words, word], french)


def _owned(r: Random, noun: Noun, described: list[Adjective]) -> NounPhrase:
    """ "the teacher 's red car": "la voiture rouge du professeur", in reverse order."""
    owner, s = noun_phrase(r, {"person"}, determiners="definite").phrase, EnglishWord("'s")
    body = _body(noun, False, described)
    article = TargetWord("la" if noun.female else "le", [], [s, body.en[-1]])
    phrase = Phrase([*owner.en, s, *body.en], [article, *body.target, *target_words("de", s), *owner.target])
    return NounPhrase(phrase, "il", noun.female, False, noun.tags)
