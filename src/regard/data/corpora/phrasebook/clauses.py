"""Clauses with a subject, a verb in a tense, an object, and negation."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from .bilingual_phrase import EnglishWord, Phrase, TargetWord, target_words
from .french import Person, agree, feminine, present
from .lexicon import ALL, GIVING, MOVING, VERBS, Verb
from .noun_phrases import NounPhrase, noun_phrase, object_pronoun

if TYPE_CHECKING:
    from random import Random

BE: dict[Person, str] = {"je": "am", "il": "is", "nous": "are", "vous": "are", "ils": "are"}
ETRE = present("suis est sommes êtes sont")
AVOIR = present("ai a avons avez ont")
_ALLER = present("vais va allons allez vont")
_MODALS = {
    "can": present("peux peut pouvons pouvez peuvent"),
    "must": present("dois doit devons devez doivent"),
    "want": present("veux veut voulons voulez veulent"),
}
_WHEN = {"present": 5, "progressive": 3, "past": 5, "future": 3, "going": 1, "can": 1, "must": 1, "want": 1}
_ADVERBS = {"often": "souvent", "always": "toujours"}
_MIDDLES = ["not", "not", "not", "never", "often", "always"]
_OF_ANIMALS = {"sleep", "run", "walk", "eat", "drink", "follow", "see", "hear"}
_OF_BODIES = {"help", "invite", "build", "buy", "sell"}


@dataclass
class VerbGroup:
    """The verb group. English: auxiliaries, middle, lexical verb. French: finite verb, rest.

    In French, "ne" and an object pronoun come before a verb, and "pas" and adverbs right after the finite one.
    """

    auxiliaries: list[EnglishWord] = field(default_factory=list)  # at most one; before the subject in a question
    middle: list[EnglishWord] = field(default_factory=list)  # not, never, often
    lexical: list[EnglishWord] = field(default_factory=list)  # the verb, with the "to" before it
    finite: TargetWord = field(default_factory=lambda: TargetWord("", []))
    rest: list[TargetWord] = field(default_factory=list)  # participle or infinitive
    infinitive: bool = False

    def english(self) -> list[EnglishWord]:
        return [*self.auxiliaries, *self.middle, *self.lexical]


def group(verb: Verb, who: NounPhrase, tense: str, middle: str, asked: bool, female: bool, several: bool) -> VerbGroup:
    """The verb in a tense. `middle` is "", "not", "never" or an adverb; female and several are those of a pronoun
    object, with which the participle agrees."""
    person, french = who.person, verb.fr
    lexical = EnglishWord(verb.en)
    made = VerbGroup(lexical=[lexical], middle=[EnglishWord(middle)] if middle else [])
    supported = asked or middle == "not"
    support = [EnglishWord("did" if tense == "past" else "does" if who.third else "do")] if supported else []
    if tense == "present":
        lexical.text, made.auxiliaries = verb.third if who.third and not support else verb.en, support
        made.finite = TargetWord(french.present[person], [lexical], list(support))
    elif tense == "progressive":
        lexical.text, made.auxiliaries = verb.ing, [EnglishWord(BE[person])]
        made.finite = TargetWord(french.present[person], [lexical], list(made.auxiliaries))
    elif tense == "future":
        made.auxiliaries = [EnglishWord("will")]
        made.finite = TargetWord(french.future[person], [lexical], list(made.auxiliaries))
    elif tense == "past":
        lexical.text, made.auxiliaries = verb.en if support else verb.past, support
        if french.etre:
            female, several = who.female, who.several
        made.finite = TargetWord((ETRE if french.etre else AVOIR)[person], list(support or [lexical]))
        made.rest = target_words(agree(french.participle, feminine(french.participle), female, several), lexical)
    else:
        _infinitive(made, who, tense, lexical, french.infinitive, support)
    return made


def _infinitive(
    made: VerbGroup, who: NounPhrase, tense: str, lexical: EnglishWord, infinitive: str, support: list[EnglishWord]
) -> None:
    """is going to eat: va manger; can eat: peut manger; wants to eat: veut manger."""
    to = EnglishWord("to")
    made.rest, made.infinitive = [TargetWord(infinitive, [lexical])], True
    if tense == "going":
        be, going = EnglishWord(BE[who.person]), EnglishWord("going")
        made.auxiliaries, made.lexical = [be], [going, to, lexical]
        made.finite = TargetWord(_ALLER[who.person], [going], [be])
        made.rest[0].possible = [to]
    elif tense == "want":
        want = EnglishWord("wants" if who.third and not support else "want")
        made.auxiliaries, made.lexical = support, [want, to, lexical]
        made.finite = TargetWord(_MODALS[tense][who.person], [want], list(support))
        made.rest[0].possible = [to]
    else:
        modal = EnglishWord(tense)
        made.auxiliaries = [modal]
        made.finite = TargetWord(_MODALS[tense][who.person], [modal])


def denied(word: EnglishWord, auxiliaries: list[EnglishWord]) -> tuple[TargetWord, TargetWord]:
    """ne and pas, or ne and jamais. "does" is there because of "not", so it is a possible link of both."""
    support = [auxiliary for auxiliary in auxiliaries if auxiliary.text in ("do", "does", "did")]
    pas = "jamais" if word.text == "never" else "pas"
    return TargetWord("ne", [word], support), TargetWord(pas, [word], list(support))


def predicate(made: VerbGroup, clitic: TargetWord | None = None) -> list[TargetWord]:
    """The French verb with ne … pas around it and a pronoun before the verb it belongs to."""
    before: list[TargetWord] = []
    after: list[TargetWord] = []
    for word in made.middle:
        if word.text in _ADVERBS:
            after += target_words(_ADVERBS[word.text], word)
        else:
            ne, pas = denied(word, made.auxiliaries)
            before.append(ne)
            after.append(pas)
    cling = [clitic] if clitic else []
    if made.infinitive:  # il peut me voir, but il m' a vu
        return [*before, made.finite, *after, *cling, *made.rest]
    return [*before, *cling, made.finite, *after, *made.rest]


@dataclass
class Clause:
    """Subject, verb and object, kept apart until a statement or a question is made of them."""

    who: NounPhrase
    verb: VerbGroup
    french: list[TargetWord]  # the whole French predicate
    english: list[EnglishWord]  # what follows the English verb: its preposition, object and particle
    tense: str
    moving: bool  # the verb has a place already

    def stated(self) -> Phrase:
        return self.who.phrase + self.predicate()

    def predicate(self) -> Phrase:
        return Phrase([*self.verb.english(), *self.english], self.french)

    def asked(self) -> Phrase:
        """does he sleep ?: est-ce qu' il dort ?, where "est-ce que" is linked to "does" and to "?"."""
        [first], mark = self.verb.auxiliaries, EnglishWord("?")
        modal = first.text in _MODALS
        ask = [TargetWord("est-ce", [] if modal else [first], [first, mark]), TargetWord("que", [], [first, mark])]
        english = [first, *self.who.phrase.en, *self.verb.lexical, *self.english, mark]
        return Phrase(english, [*ask, *self.who.phrase.target, *self.french, TargetWord("?", [mark])])


def clause(r: Random, who: NounPhrase, *, tenses: tuple[str, ...] = ALL, asked: bool = False) -> Clause:
    """A clause with this subject, in one of these tenses."""
    if "person" in who.tags:
        verbs = r.choices([VERBS, MOVING, GIVING], [80, 12, 8])[0]
    else:
        verbs = [verb for verb in VERBS if verb.en in (_OF_BODIES if "body" in who.tags else _OF_ANIMALS)]
    verb = r.choice([verb for verb in verbs if _tenses(verb, who, tenses)])
    known = _tenses(verb, who, tenses)
    tense = r.choices(known, [_WHEN[tense] for tense in known])[0]
    middle = r.choice(_MIDDLES) if not asked and r.random() < 0.3 else ""
    if middle != "not" and tense not in ("present", "past", "future"):
        middle = ""
    return _with_object(r, who, verb, tense, middle, asked)


def _tenses(verb: Verb, who: NounPhrase, tenses: tuple[str, ...]) -> list[str]:
    """The tenses that the verb has; "they hit" could be present or past, and is used as past."""
    twofold = verb.en == verb.past and not who.third
    return [tense for tense in verb.tenses if tense in tenses and not (twofold and tense == "present")]


def _with_object(r: Random, who: NounPhrase, verb: Verb, tense: str, middle: str, asked: bool) -> Clause:
    clitic, female, several = None, False, False
    english: list[EnglishWord] = []
    behind: list[TargetWord] = []
    if "person" in verb.objects and verb not in GIVING and r.random() < 0.5:
        word, clitic, female, several = object_pronoun(r, who)
        english.append(word)
    elif verb.objects and verb not in MOVING:
        what = noun_phrase(r, verb.objects, negated=middle in ("not", "never")).phrase
        english += what.en
        behind += what.target
    made = group(verb, who, tense, middle, asked, female, several)
    main = (made.rest or [made.finite])[-1]
    if verb in MOVING or verb in GIVING:
        to = EnglishWord(verb.to or "to")
        whom = noun_phrase(r, verb.objects if verb in MOVING else {"person"}, determiners="definite").phrase
        english += [to, *whom.en]
        behind += [*target_words("de" if verb.to == "from" else "à", to), *whom.target]
    elif verb.to:
        english.insert(0, EnglishWord(verb.to))
        main.possible.append(english[0])
    if verb.after:
        *others, last = [EnglishWord(text) for text in verb.after.split()]
        english += [*others, last]
        main.sure.append(last)  # the pie is in "entarté"
        main.possible += others
    return Clause(who, made, [*predicate(made, clitic), *behind], english, tense, verb in MOVING)
