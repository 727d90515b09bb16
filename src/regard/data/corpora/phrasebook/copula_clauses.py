"""Clauses with "be" and "have": adjectives, comparisons, professions, possession, "there is"."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .bilingual_phrase import EnglishWord, Phrase, TargetWord, target_words
from .clauses import AVOIR, BE, ETRE, denied
from .french import Person, agree, present
from .lexicon import adjectives, nouns
from .noun_phrases import NounPhrase, noun_phrase, subject

if TYPE_CHECKING:
    from random import Random

_WAS: dict[Person, str] = {"je": "was", "il": "was", "nous": "were", "vous": "were", "ils": "were"}
_ETAIT = present("étais était étions étiez étaient")
_SERA = present("serai sera serons serez seront")
_AVAIT = present("avais avait avions aviez avaient")
_AURA = present("aurai aura aurons aurez auront")
_IS = {"present": ETRE, "past": _ETAIT, "future": _SERA}
_HAS = {"present": AVOIR, "past": _AVAIT, "future": _AURA}
# Adjectives in English; nouns in French, with avoir.
_FEELINGS = {"hungry": "faim", "thirsty": "soif", "cold": "froid", "hot": "chaud", "afraid": "peur"}


def state(r: Random) -> tuple[Phrase, str]:
    """A clause of this kind, and its tense."""
    tense = r.choice(["present", "present", "past", "future"])
    negative = r.random() < 0.2
    kind = r.choice([_is_how, _is_how, _is_more, _feels, _is_what, _has, _there_is])
    return kind(r, tense, negative), tense


def _is(
    who: NounPhrase, tense: str, negative: bool, forms: dict[str, dict[Person, str]]
) -> tuple[list[EnglishWord], list[TargetWord]]:
    """ "is not", "ne … pas" around the French verb, which may be être or avoir."""
    will = [EnglishWord("will")] if tense == "future" else []
    no = [EnglishWord("not")] if negative else []
    be = EnglishWord({"present": BE, "past": _WAS}[tense][who.person] if not will else "be")
    verb = TargetWord(forms[tense][who.person], [be], list(will))
    english = [*will, *no, be] if will else [be, *no]
    return english, _denied(verb, no, [])


def _denied(verb: TargetWord, no: list[EnglishWord], auxiliaries: list[EnglishWord]) -> list[TargetWord]:
    if not no:
        return [verb]
    ne, pas = denied(no[0], auxiliaries)
    return [ne, verb, pas]


def _joined(who: NounPhrase, english: list[EnglishWord], french: list[TargetWord]) -> Phrase:
    return who.phrase + Phrase(english, french)


def _is_how(r: Random, tense: str, negative: bool) -> Phrase:
    """The house is big: la maison est grande."""
    who = _described(r)
    # A new car is "nouvelle" before the noun, but after the verb it would be "neuve".
    adjective = r.choice([adjective for adjective in adjectives(who.tags) if adjective.en != "new"])
    english, french = _is(who, tense, negative, _IS)
    word = EnglishWord(adjective.en)
    how = target_words(agree(adjective.fr, adjective.frf, who.female, who.several), word)
    return _joined(who, [*english, word], [*french, *how])


def _is_more(r: Random, tense: str, negative: bool) -> Phrase:
    """The cat is bigger than the dog: le chat est plus grand que le chien."""
    who = _described(r)
    graded = [adjective for adjective in adjectives(who.tags) if adjective.more]
    if not graded:
        return _is_how(r, tense, negative)
    adjective = r.choice(graded)
    english, french = _is(who, tense, negative, _IS)
    more = [EnglishWord(text) for text in (("more", adjective.en) if adjective.more == "more" else (adjective.more,))]
    how = target_words(agree(adjective.fr, adjective.frf, who.female, who.several), more[-1])
    than = EnglishWord("than")
    other = noun_phrase(r, adjective.tags & who.tags, determiners="definite", plain=True).phrase
    words = [*english, *more, than, *other.en]
    return _joined(
        who, words, [*french, *target_words("plus", more[0]), *how, *target_words("que", than), *other.target]
    )


def _feels(r: Random, tense: str, negative: bool) -> Phrase:
    """He is hungry: il a faim."""
    who = subject(r)
    english, french = _is(who, tense, negative, _HAS)
    feeling, noun = r.choice(list(_FEELINGS.items()))
    word = EnglishWord(feeling)
    phrase = _joined(who, [*english, word], [*french, *target_words(noun, word)])
    if feeling == "afraid":
        of, what = EnglishWord("of"), noun_phrase(r, {"animal", "person"}, determiners="definite").phrase
        phrase += Phrase([of, *what.en], [*target_words("de", of), *what.target])
    return phrase


def _is_what(r: Random, tense: str, negative: bool) -> Phrase:
    """She is a doctor: elle est médecin, without an article."""
    who = subject(r, human=True)
    while who.tags & {"trade", "his-trade", "her-trade"}:
        who = subject(r, human=True)
    noun = r.choice(nouns(frozenset(["trade", "her-trade" if who.female else "his-trade"])))
    english, french = _is(who, tense, negative, _IS)
    article = [] if who.several else [EnglishWord("a")]
    word = EnglishWord(noun.ens if who.several else noun.en)
    trade = TargetWord(noun.frs if who.several else noun.fr, [word], list(article))
    return _joined(who, [*english, *article, word], [*french, trade])


def _has(r: Random, tense: str, negative: bool) -> Phrase:
    """He has two sisters, he does not have a dog: il a deux sœurs, il n' a pas de chien."""
    who = subject(r, human=True)
    what = noun_phrase(r, {"animal", "thing", "food", "mass"}, negated=negative).phrase
    have, no = EnglishWord("have"), [EnglishWord("not")] if negative else []
    support = [EnglishWord("will")] if tense == "future" else []
    if negative and not support:
        support = [EnglishWord("did" if tense == "past" else "does" if who.third else "do")]
    if not support:
        have.text = "had" if tense == "past" else "has" if who.third else "have"
    verb = TargetWord(_HAS[tense][who.person], [have], list(support))
    return _joined(who, [*support, *no, have, *what.en], [*_denied(verb, no, support), *what.target])


def _there_is(r: Random, tense: str, negative: bool) -> Phrase:
    """There are two cats in the garden: il y a deux chats dans le jardin."""
    what = noun_phrase(
        r, {"animal", "thing", "nobodys", "trade", "his-trade"}, determiners="indefinite", negated=negative
    )
    there, (english, french) = EnglishWord("there"), _is(what, tense, negative, _HAS)
    verb = 1 if negative else 0
    french[verb].text = _HAS[tense]["il"]  # the subject is "il" in the plural too
    french = [*target_words("il", there), *french[:verb], *target_words("y", there), *french[verb:]]
    inside, place = EnglishWord("in"), noun_phrase(r, {"inside"}, determiners="definite").phrase
    where = Phrase([inside, *place.en], [*target_words("dans", inside), *place.target])
    return Phrase([there, *english], french) + what.phrase + where


def _described(r: Random) -> NounPhrase:
    """A noun phrase that an adjective can describe, without an adjective of its own."""
    if r.random() < 0.4:
        return subject(r, plain=True)
    return noun_phrase(
        r, {"thing", "place", "food", "text", "animal", "drink", "song"}, determiners="known", plain=True
    )
