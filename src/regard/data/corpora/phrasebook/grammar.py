"""Sentences of the phrase book, English and French: words, noun phrases, clauses, statements and questions."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Literal

from .bilingual_phrase import (
    EMPTY,
    Conjugation,
    EnglishWord,
    Person,
    Phrase,
    TargetWord,
    agree,
    conjugation,
    feminine,
    forms,
    phrase_pair,
    plural,
    table,
    target_words,
    vowel,
    word_pair,
)

if TYPE_CHECKING:
    from random import Random


@dataclass(frozen=True)
class Noun:
    """A noun in both languages; `fr` may be several words (pomme de terre, of which the first is put in the plural)."""

    en: str
    ens: str  # in the plural; "" for what cannot be counted
    fr: str
    frs: str
    female: bool
    tags: frozenset[str]  # that verbs, adjectives and prepositions require


@dataclass(frozen=True)
class Adjective:
    """`before` says that it stands before the noun in French; `liaison` is the form before a vowel (bel, nouvel)."""

    en: str
    more: str  # the English comparative, "more" where it is that and the word itself, "" where there is none
    fr: str
    frf: str
    liaison: str
    before: bool
    tags: frozenset[str]


@dataclass(frozen=True)
class Verb:
    """`to` is the preposition English puts after the verb (wait for), `after` what it puts after the object (turn on).

    `tenses` are those in which the two languages say the same thing.
    """

    en: str
    third: str
    past: str
    ing: str
    to: str
    after: str
    fr: Conjugation
    objects: frozenset[str]
    tenses: tuple[str, ...]


ALL = ("present", "progressive", "past", "future", "going", "can", "must", "want")
_STATES = ("present", "past", "future")  # stative verbs have no "is loving"


def _noun(en: str, fr: str, gender: str, tags: str) -> Noun:
    one, *more = en.split()
    several = more[0] if more else one + "s"
    names = fr.split()
    if len(names) == 2:  # with its plural
        single, many = names
    else:
        single, many = fr, " ".join([plural(names[0]), *names[1:]])
    return Noun(one, "" if several == "-" else several, single, many, gender == "f", frozenset([*tags.split(), one]))


def _adjective(en: str, fr: str, place: str, tags: str) -> Adjective:
    one, *more = en.split()
    forms = [form.replace("·", " ") for form in fr.split()]  # en bois: two words
    her = forms[1] if len(forms) > 1 else feminine(forms[0])
    liaison = forms[2] if len(forms) > 2 else forms[0]
    comparative = more[0] if more and more[0] != "-" else ""
    return Adjective(one, comparative, forms[0], her, liaison, place == "before", frozenset(tags.split()))


def _verb(tenses: tuple[str, ...], en: str, fr: str, objects: str, after: str = "") -> Verb:
    base, third, past, ing, *to = en.split()
    conjugated = conjugation(fr.split())
    return Verb(base, third, past, ing, "".join(to), after, conjugated, frozenset(objects.split()), tenses)


NOUNS = [_noun(*row) for row in table("words", "nouns")]
ADJECTIVES = [_adjective(*row) for row in table("words", "adjectives")]
VERBS = [_verb(ALL, *row) for row in table("words", "verbs")] + [
    _verb(_STATES, *row) for row in table("words", "stative")
]
GIVING = [_verb(ALL, *row) for row in table("words", "giving")]
MOVING = [_verb(("present", "progressive", "past", "future"), *row) for row in table("words", "moving")]
THINKING = [_verb(("present",), *row) for row in table("words", "thinking")]
NAMES = {name: gender == "f" for name, gender in table("phrases", "names")}


@cache
def nouns(tags: frozenset[str]) -> list[Noun]:
    """The nouns with one of these tags."""
    return [noun for noun in NOUNS if noun.tags & tags]


@cache
def adjectives(tags: frozenset[str]) -> list[Adjective]:
    """The adjectives that suit a noun with these tags."""
    return [adjective for adjective in ADJECTIVES if adjective.tags & tags]


# English → French: masculine, feminine, plural; then masculine and feminine before a vowel.
_DETERMINERS = {en: forms.split("/") for en, forms in table("phrases", "determiners")}
_COUNTED = dict(table("phrases", "counted"))
_NUMBERS = {en: _COUNTED[en] for en in ("two", "three", "four")}
_OWNERS = ["my", "his", "her", "our", "your", "their"]
_CHOICES = {
    kind: [row.replace("own", " ".join(_OWNERS)).split() for (row,) in table("phrases", kind)]
    for kind in ("any", "known", "definite", "indefinite")
}

# English subject, object, French subject, object, person of the verb, female, several
_PRONOUNS: list[tuple[str, str, str, str, Person, bool, bool]] = [
    (*row[:4], row[4], row[5] == "f", row[6] == "several")  # type: ignore[misc]
    for row in table("phrases", "pronouns")
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
        return NounPhrase(word_pair(en, fr), person, female, several, frozenset(["person"]), noun=False)
    if chance < 0.55:
        name = r.choice(list(NAMES))
        return NounPhrase(word_pair(name, name), "il", NAMES[name], False, frozenset(["person"]), noun=False)
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
    body = _described_noun(noun, several, described)
    if determiner == "all":
        every, the = EnglishWord("all"), EnglishWord("the")
        french = [*target_words("toutes" if noun.female else "tous", every), *target_words("les", the)]
        return Phrase([every, the], french) + body
    if determiner == "some":
        if negated or (several and any(adjective.before for adjective in described)):
            article = "de"  # pas de pommes; de grandes maisons
        elif several:
            article = "des"
        else:
            article = "de la" if noun.female else "de le"
        return word_pair("any" if negated else "some", article) + body
    if negated and determiner == "a":
        return word_pair("a", "de") + body
    if determiner in _COUNTED:
        return word_pair(determiner, _COUNTED[determiner]) + body
    form = 2 if several else int(noun.female) + (3 if vowel(body.target[0].text) else 0)
    return word_pair(determiner, _DETERMINERS[determiner][form]) + body


def _adjectives(r: Random, noun: Noun) -> list[Adjective]:
    """No adjective, one, or one before and one after the noun."""
    fitting = adjectives(noun.tags)
    before = [adjective for adjective in fitting if adjective.before]
    after = [adjective for adjective in fitting if not adjective.before]
    return [r.choice(side) for side, share in ((before, 0.22), (after, 0.27)) if side and r.random() < share]


def _described_noun(noun: Noun, several: bool, described: list[Adjective]) -> Phrase:
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
    body = _described_noun(noun, False, described)
    article = TargetWord("la" if noun.female else "le", [], [s, body.en[-1]])
    phrase = Phrase([*owner.en, s, *body.en], [article, *body.target, *target_words("de", s), *owner.target])
    return NounPhrase(phrase, "il", noun.female, False, noun.tags)


BE, WAS = (forms("english")[name] for name in ("be present", "be past"))
IS, HAS = ({tense: forms("french")[f"{verb} {tense}"] for tense in _STATES} for verb in ("be", "have"))
_WHEN = {"present": 5, "progressive": 3, "past": 5, "future": 3, "going": 1, "can": 1, "must": 1, "want": 1}
_ADVERBS = dict(table("phrases", "adverbs"))
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
    object, with which the participle agrees.

    is going to eat: va manger; can eat: peut manger; wants to eat: veut manger.
    """
    person, french, irregular = who.person, verb.fr, forms("french")
    lexical, to = EnglishWord(verb.en), EnglishWord("to")
    made = VerbGroup(lexical=[lexical], middle=[EnglishWord(middle)] if middle else [])
    supported = asked or middle == "not"
    support = [EnglishWord("did" if tense == "past" else "does" if who.third else "do")] if supported else []
    if tense in ("going", "can", "must", "want"):
        made.rest, made.infinitive = [TargetWord(french.infinitive, [lexical])], True
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
        made.finite = TargetWord((IS if french.etre else HAS)["present"][person], list(support or [lexical]))
        made.rest = target_words(agree(french.participle, feminine(french.participle), female, several), lexical)
    elif tense == "going":
        be, going = EnglishWord(BE[person]), EnglishWord("going")
        made.auxiliaries, made.lexical = [be], [going, to, lexical]
        made.finite = TargetWord(irregular[tense][person], [going], [be])
        made.rest[0].possible = [to]
    elif tense == "want":
        want = EnglishWord("wants" if who.third and not support else "want")
        made.auxiliaries, made.lexical = support, [want, to, lexical]
        made.finite = TargetWord(irregular[tense][person], [want], list(support))
        made.rest[0].possible = [to]
    else:
        made.auxiliaries = [EnglishWord(tense)]
        made.finite = TargetWord(irregular[tense][person], list(made.auxiliaries))
    return made


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
        modal = first.text in ("can", "must")
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


_FEELINGS = table("phrases", "feelings")


def state(r: Random) -> tuple[Phrase, str]:
    """A clause of this kind, and its tense."""
    tense = r.choice(["present", "present", "past", "future"])
    negative = r.random() < 0.2
    kind = r.choice([_is_how, _is_how, _is_more, _feels, _is_what, _has, _there_is])
    return kind(r, tense, negative), tense


def _is(tense: str, negative: bool, english: Person, french: dict[str, dict[Person, str]], person: Person) -> Phrase:
    """ "is not", "ne … pas" around the French verb, which may be être or avoir."""
    will = [EnglishWord("will")] if tense == "future" else []
    no = [EnglishWord("not")] if negative else []
    be = EnglishWord("be" if will else (WAS if tense == "past" else BE)[english])
    verb = TargetWord(french[tense][person], [be], list(will))
    return Phrase([*will, *no, be] if will else [be, *no], _denied(verb, no, []))


def _denied(verb: TargetWord, no: list[EnglishWord], auxiliaries: list[EnglishWord]) -> list[TargetWord]:
    if not no:
        return [verb]
    ne, pas = denied(no[0], auxiliaries)
    return [ne, verb, pas]


def _is_how(r: Random, tense: str, negative: bool) -> Phrase:
    """The house is big: la maison est grande."""
    who = _described(r)
    # A new car is "nouvelle" before the noun, but after the verb it would be "neuve".
    adjective = r.choice([adjective for adjective in adjectives(who.tags) if adjective.en != "new"])
    form = agree(adjective.fr, adjective.frf, who.female, who.several)
    return who.phrase + _is(tense, negative, who.person, IS, who.person) + word_pair(adjective.en, form)


def _is_more(r: Random, tense: str, negative: bool) -> Phrase:
    """The cat is bigger than the dog: le chat est plus grand que le chien."""
    who = _described(r)
    graded = [adjective for adjective in adjectives(who.tags) if adjective.more]
    if not graded:
        return _is_how(r, tense, negative)
    adjective = r.choice(graded)
    form = agree(adjective.fr, adjective.frf, who.female, who.several)
    words = ["more", adjective.en] if adjective.more == "more" else [adjective.more]
    more = [EnglishWord(text) for text in words]
    bigger = Phrase(more, [*target_words("plus", more[0]), *target_words(form, more[-1])])
    other = noun_phrase(r, adjective.tags & who.tags, determiners="definite", plain=True).phrase
    is_ = _is(tense, negative, who.person, IS, who.person)
    return who.phrase + is_ + bigger + word_pair("than", "que") + other


def _feels(r: Random, tense: str, negative: bool) -> Phrase:
    """He is hungry: il a faim."""
    who = subject(r)
    feeling, noun = r.choice(_FEELINGS)
    phrase = who.phrase + _is(tense, negative, who.person, HAS, who.person) + word_pair(feeling, noun)
    if feeling == "afraid":
        phrase += word_pair("of", "de") + noun_phrase(r, {"animal", "person"}, determiners="definite").phrase
    return phrase


def _is_what(r: Random, tense: str, negative: bool) -> Phrase:
    """She is a doctor: elle est médecin, without an article."""
    who = subject(r, human=True)
    while who.tags & {"trade", "his-trade", "her-trade"}:
        who = subject(r, human=True)
    noun = r.choice(nouns(frozenset(["trade", "her-trade" if who.female else "his-trade"])))
    article = [] if who.several else [EnglishWord("a")]
    word = EnglishWord(noun.ens if who.several else noun.en)
    trade = TargetWord(noun.frs if who.several else noun.fr, [word], list(article))
    return who.phrase + _is(tense, negative, who.person, IS, who.person) + Phrase([*article, word], [trade])


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
    verb = TargetWord(HAS[tense][who.person], [have], list(support))
    return who.phrase + Phrase([*support, *no, have], _denied(verb, no, support)) + what


def _there_is(r: Random, tense: str, negative: bool) -> Phrase:
    """There are two cats in the garden: il y a deux chats dans le jardin."""
    things = {"animal", "thing", "nobodys", "trade", "his-trade"}
    what = noun_phrase(r, things, determiners="indefinite", negated=negative)
    there = EnglishWord("there")
    is_ = _is(tense, negative, what.person, HAS, "il")  # in French the subject is "il" in the plural too
    before, after = is_.target[: int(negative)], is_.target[int(negative) :]  # il n' y a pas
    target = [*target_words("il", there), *before, *target_words("y", there), *after]
    place = noun_phrase(r, {"inside"}, determiners="definite").phrase
    return Phrase([there, *is_.en], target) + what.phrase + word_pair("in", "dans") + place


def _described(r: Random) -> NounPhrase:
    """A noun phrase that an adjective can describe, without an adjective of its own."""
    if r.random() < 0.4:
        return subject(r, plain=True)
    return noun_phrase(
        r, {"thing", "place", "food", "text", "animal", "drink", "song"}, determiners="known", plain=True
    )


_FIRST = ["b", "d", "f", "g", "k", "l", "m", "n", "p", "r", "s", "t", "v", "z", "br", "dr", "kr", "tr", "st"]


def with_invented_words(phrase: Phrase, r: Random) -> Phrase | None:
    """The phrase with other names and numbers, changed in place; None where it has neither.

    A name begins with a consonant, so that nothing is elided before it, and is one of a million; a number has two to
    five digits.
    """
    changed = False
    for word in phrase.en:
        old, translated = word.text, _NUMBERS.get(word.text, word.text)
        if old not in NAMES and old not in _NUMBERS:
            continue
        word.text = _name(r, female=NAMES[old]) if old in NAMES else str(r.randrange(10, 10 ** r.randint(2, 5)))
        for other in phrase.target:
            if other.text == translated and any(word is linked for linked in other.sure):
                other.text, changed = word.text, True
    return phrase if changed else None


def _name(r: Random, *, female: bool) -> str:
    syllables = "".join(r.choice(_FIRST) + r.choice("aeiou") for _ in range(3))
    return syllables + ("la" if female else "k")


_TIMES = {"going": "future", "can": "modal", "must": "modal", "want": "modal"}


def sentence(r: Random) -> Phrase:
    """One sentence, of one clause or of several."""
    kind = r.choices(["greeting", "question", "statement"], [2, 10, 88])[0]
    if kind == "greeting":
        return phrase_pair(*r.choice(table("phrases", "greetings"))) + phrase_pair("!", "!")
    if kind == "question":
        return _question(r)
    phrase = _part(r)
    for _ in range(r.choices([0, 1, 2, 3], [55, 25, 12, 8])[0]):
        phrase += phrase_pair(*r.choice(table("phrases", "joints"))) + _part(r)
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
    en, fr, sure, possible, tags = r.choice(table("phrases", "places"))
    return phrase_pair(en, fr, sure, possible) + noun_phrase(r, set(tags.split()), determiners="definite").phrase


def _timed(r: Random, phrase: Phrase, tense: str) -> Phrase:
    """With the time before it, after it, or not at all."""
    place = r.choices(["before", "after", "none"], [7, 18, 75])[0]
    time = phrase_pair(*r.choice(table("phrases", _TIMES.get(tense, tense))))
    if place == "before":
        return time + phrase_pair(",", ",") + phrase
    return phrase + time if place == "after" else phrase


def _state(r: Random) -> Phrase:
    phrase, tense = state(r)
    return _timed(r, phrase, "progressive" if tense == "present" else tense)


def _that(r: Random) -> Phrase:
    """He thinks that she sleeps: il pense qu' elle dort."""
    who, verb = subject(r, human=True), r.choice(THINKING)
    thinks = word_pair(verb.third if who.third else verb.en, verb.fr.present[who.person])
    return (
        who.phrase
        + thinks
        + word_pair("that", "que")
        + (_around(r, clause(r, subject(r))) if r.random() < 0.75 else state(r)[0])
    )


def _if(r: Random) -> Phrase:
    """If he sleeps , we will work: si + present, future, in both languages."""
    first = clause(r, subject(r), tenses=("present",)).stated()
    then = _around(r, clause(r, subject(r), tenses=("future",)))
    return phrase_pair("if", "si") + first + phrase_pair(",", ",") + then


def _body(r: Random) -> Phrase:
    """Names whose words have the reverse order in French: the european economic area, la zone économique européenne."""
    en, fr, links, several = r.choice(table("phrases", "bodies"))
    body = phrase_pair(en, fr, links)
    if r.random() < 0.5:
        made = clause(r, subject(r, human=True), tenses=("present", "progressive", "past", "future"))
        return made.stated() + phrase_pair("for", "pour") + body
    who = NounPhrase(body, "ils" if several else "il", True, bool(several), frozenset(["body"]))
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
    return (phrase_pair(*r.choice(table("phrases", "reasons"))) if kind == "how" else EMPTY) + made.asked()
