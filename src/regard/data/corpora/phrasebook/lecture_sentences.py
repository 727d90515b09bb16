"""Sentences that lectures on attention show, and others like them, in English and French or Spanish, with gold links.

Agreements that were signed, people from countries, forks to bring, pies that hit, criminals on the run. Every
construction occurs with many words, so that a translator has to attend to the words themselves.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from .phrases import (
    EMPTY,
    Conjugation,
    EnglishWord,
    Language,
    Person,
    Phrase,
    TargetWord,
    agree,
    conjugation,
    feminine,
    phrase_pair,
    plural,
    present,
    rendered,
    table,
    target_words,
    vowel,
)

if TYPE_CHECKING:
    from random import Random

_PRESENT = {"ar": "o as a amos an", "er": "o es e emos en", "ir": "o es e imos en"}
_PRETERITE = {"ar": "é aste ó amos aron", "er": "í iste ió imos ieron", "ir": "í iste ió imos ieron"}
_YEARS = [str(year) for year in range(1950, 2010)]
_BE = ("am", "are", "is", "are", "are")
_PERSONS: tuple[Person, ...] = ("je", "vous", "il", "nous", "ils")  # 0 to 4
_ETRE = present("suis est sommes êtes sont")
_AVOIR = present("ai a avons avez ont")
_VIENT = present("viens vient venons venez viennent")
_PEUT = present("peux peut pouvons pouvez peuvent")
_ES = ("soy", "eres", "es", "somos", "son")
_VIENE = ("vengo", "vienes", "viene", "venimos", "vienen")
_PUEDE = ("puedo", "puedes", "puede", "podemos", "pueden")
# French: masculine, feminine; Spanish: masculine, feminine
_DETERMINERS = {
    "a": ("un", "une", "un", "una"),
    "the": ("le", "la", "el", "la"),
    "this": ("ce", "cette", "este", "esta"),
    "my": ("mon", "ma", "mi", "mi"),
}
_BEFORE_VOWEL = {"ce": "cet", "ma": "mon"}
_PIE_VERB = conjugation(["entarter"])  # to hit with a pie is one word in French


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


def spanish_plural(word: str) -> str:
    return word + ("s" if word[-1] in "aeiouáé" else "es")


def spanish_feminine(word: str) -> str:
    """rojo: roja; others (azul, económica) are given or stay."""
    return word[:-1] + "a" if word.endswith("o") else word


@dataclass(frozen=True)
class LectureNoun:
    en: str
    text: str
    female: bool


@dataclass(frozen=True)
class LectureVerb:
    """A transitive verb; `to` is the preposition that English puts after it (look for)."""

    en: str
    past: str
    ing: str
    to: str
    fr: Conjugation
    es: SpanishVerb


@dataclass(frozen=True)
class LectureSubject:
    """`person` is 0 to 4: I, you, he or she, we, they."""

    en: str
    text: str
    person: int
    female: bool


@cache
def _texts(name: str, language: Language) -> list[tuple[str, str]]:
    """English, and the other language."""
    return [(row[0], row[1 if language == "french" else 2]) for row in table("lectures", name)]


@cache
def _nouns(name: str, language: Language) -> list[LectureNoun]:
    return [LectureNoun(en, text[:-2], text.endswith(" f")) for en, text in _texts(name, language)]


@cache
def _adjectives(name: str, language: Language) -> list[tuple[str, tuple[str, str]]]:
    """English, and both genders; all of these stand after the noun in French and in Spanish."""
    made = []
    for en, text in _texts(name, language):
        his, *hers = text.split()
        made.append((en, (his, hers[0] if hers else (feminine if language == "french" else spanish_feminine)(his))))
    return made


@cache
def _verbs(name: str) -> list[LectureVerb]:
    made = []
    for en, fr, es in table("lectures", name):
        base, past, ing, *to = en.split()
        made.append(LectureVerb(base, past, ing, "".join(to), conjugation(fr.split()), spanish_verb(es)))
    return made


@cache
def _subjects(name: str, language: Language) -> list[LectureSubject]:
    texts, rest = _texts(name, language), [row[3:] for row in table("lectures", name)]
    pairs = zip(texts, rest, strict=True)
    return [LectureSubject(en, text, int((more or ["2"])[0]), gender == "f") for (en, text), (gender, *more) in pairs]


class LectureGrammar:
    """Random sentences in English and one other language."""

    def __init__(self, r: Random, language: Language) -> None:
        self.r, self.language, self.french = r, language, language == "french"

    def sentence(self) -> Phrase:
        """One sentence of one or two clauses. One of five has no full stop, as on a slide."""
        if self.r.random() < 0.18:
            return self._request()
        phrase = self._clause()
        if self.r.random() < 0.35:
            en, text = self._text("joints")
            phrase += phrase_pair(en, text, "0-0 0-1" if " que" in text else "") + self._clause()
        return phrase + (phrase_pair(".", ".") if self.r.random() < 0.8 else EMPTY)

    def _clause(self) -> Phrase:
        kinds = [self._signed, self._from, self._meet, self._trade, self._chase]
        return self.r.choices(kinds, [26, 16, 22, 14, 22])[0]()

    def _text(self, name: str) -> tuple[str, str]:
        return self.r.choice(_texts(name, self.language))

    def _either(self, fr: str, es: str) -> str:
        return fr if self.french else es

    def _subject(self, subject: LectureSubject) -> Phrase:
        return phrase_pair(subject.en, subject.text)

    def _anybody(self) -> LectureSubject:
        return self.r.choice(_subjects("pronouns" if self.r.random() < 0.6 else "people", self.language))

    def _noun(self, name: str) -> LectureNoun:
        return self.r.choice(_nouns(name, self.language))

    def _adjective(self, name: str) -> tuple[str, tuple[str, str]]:
        return self.r.choice(_adjectives(name, self.language))

    def _noun_phrase(
        self, determiner: str, noun: LectureNoun, adjectives: tuple[tuple[str, tuple[str, str]], ...] = ()
    ) -> Phrase:
        """A noun with its adjectives, which stand behind it in reverse order in French and Spanish."""
        article, word = EnglishWord(determiner), EnglishWord(noun.en)
        words = [EnglishWord(english) for english, _ in adjectives]
        form = _DETERMINERS[determiner][(0 if self.french else 2) + noun.female]
        if self.french and vowel(noun.text):
            form = _BEFORE_VOWEL.get(form, form)
        target = [*target_words(form, article), *target_words(noun.text, word)]
        for english, (_, forms) in reversed(list(zip(words, adjectives, strict=True))):
            target += target_words(forms[noun.female], english)
        return Phrase([article, *words, word], target)

    def _signed(self) -> Phrase:
        """The agreement on the european economic area was signed in august 1992."""
        r = self.r
        document = self._noun("documents")
        fields = (self._adjective("regions"), self._adjective("fields"))
        adjectives = fields if r.random() < 0.6 else (r.choice(fields),)
        phrase = self._noun_phrase("the", document)
        if r.random() < 0.75:
            phrase += phrase_pair(*self._text("prepositions"))
            phrase += self._noun_phrase("the", self._noun("bodies"), adjectives)
        (verb, participles), (english, passive) = self._adjective("signed"), self._text("passive")
        be, done = [EnglishWord(text) for text in english.split()], EnglishWord(verb)
        auxiliaries = target_words(passive, be[-1])
        auxiliaries[0].possible += be[:-1]
        phrase += Phrase([*be, done], [*auxiliaries, *target_words(participles[document.female], done)])
        (en, month), year = self._text("months"), r.choice(_YEARS)
        if r.random() < 0.75:
            possible = "" if self.french else "2-2"
            date = self._either(f"en {month} {year}", f"en {month} de {year}")
            sure = self._either("0-0 1-1 2-2", "0-0 1-1 2-3")
            return phrase + phrase_pair(f"in {en} {year}", date, sure, possible)
        return phrase + phrase_pair(f"in {year}", f"en {year}")

    def _from(self) -> Phrase:
        """I am from canada: je suis du canada, yo soy de canadá."""
        who, (en, country) = self._anybody(), self._text("countries")
        if self.r.random() < 0.6:
            verb = phrase_pair(_BE[who.person], self._either(_ETRE[_french(who)], _ES[who.person]))
        else:
            comes = "comes" if who.person == 2 else "come"
            verb = phrase_pair(comes, self._either(_VIENT[_french(who)], _VIENE[who.person]))
        links = " ".join(f"0-{j}" for j in range(len(country.split())))
        where = phrase_pair(en, country, links)
        return self._subject(who) + verb + phrase_pair("from", "de") + where

    def _trade(self) -> Phrase:
        """I am a student: je suis étudiant, yo soy estudiante, without an article."""
        who, (trade, names) = self._anybody(), self._adjective("trades")
        while who.en.endswith(trade):
            who = self._anybody()
        several = who.person >= 3
        article = [] if several else [EnglishWord("a")]
        be, word = EnglishWord(_BE[who.person]), EnglishWord(trade + "s" * several)
        name = names[who.female]
        if several:
            name = plural(name) if self.french else spanish_plural(name)
        verb = target_words(self._either(_ETRE[_french(who)], _ES[who.person]), be)
        return self._subject(who) + Phrase([be, *article, word], [*verb, TargetWord(name, [word], list(article))])

    def _meet(self) -> Phrase:
        """He hit me with a pie: il m' a entarté, él me golpeó con una tarta. Other things keep the verb."""
        who, (en, fr, es, female, several) = self._anybody(), self.r.choice(table("lectures", "victims"))
        if (who.person in (0, 3) and en in ("me", "us")) or (who.person == 1 and en == "you"):
            return self._meet()
        verbs = _verbs("meeting")
        verb = verbs[0] if self.r.random() < 0.6 else self.r.choice(verbs[1:])
        pie = self.r.random() < 0.5
        thing = LectureNoun("pie", self._either("tarte", "tarta"), True) if pie else self._noun("instruments")
        tenses = (
            ["past", "past", "future"] if verb.en == verb.past and who.person != 2 else ["past", "present", "future"]
        )
        tense = self.r.choice(tenses)  # "they hit" is read as past
        word, whom = EnglishWord(verb.past if tense == "past" else verb.en), EnglishWord(en)
        if tense == "present" and who.person == 2:
            word.text += "s"
        will = [EnglishWord("will")] if tense == "future" else []
        clitic = target_words(self._either(fr, es), whom)
        if not self.french:
            forms = {"past": verb.es.preterite, "present": verb.es.present, "future": verb.es.future}[tense]
            target = [*clitic, TargetWord(forms[who.person], [word], list(will))]
            behind = phrase_pair("with", "con") + self._noun_phrase("a", thing)
            return self._subject(who) + Phrase([*will, word, whom], target) + behind
        pied = pie and verb.en == "hit"
        forms_fr, person = _PIE_VERB if pied else verb.fr, _french(who)
        if tense == "past":
            form = agree(forms_fr.participle, feminine(forms_fr.participle), bool(female), bool(several))
            before = target_words(_AVOIR[person], word)
        else:
            form, before = (forms_fr.present if tense == "present" else forms_fr.future)[person], []
        main = TargetWord(form, [word], list(will))
        phrase = self._subject(who) + Phrase([*will, word, whom], [*clitic, *before, main])
        if not pied:
            return phrase + phrase_pair("with", "avec") + self._noun_phrase("a", thing)
        with_a, last = [EnglishWord("with"), EnglishWord("a")], EnglishWord("pie")
        main.sure.append(last)
        main.possible += with_a
        return phrase + Phrase([*with_a, last], [])

    def _chase(self) -> Phrase:
        """The fbi is chasing a criminal on the run: le fbi poursuit un criminel en fuite."""
        r = self.r
        names = ["chasers"] if r.random() < 0.6 else ["people", "pronouns"]
        who = r.choice([each for name in names for each in _subjects(name, self.language)])
        verb, past = r.choice(_verbs("chasing")), r.random() < 0.3
        word, be = EnglishWord(verb.past if past else verb.ing), EnglishWord(_BE[who.person])
        to = [EnglishWord(verb.to)] if verb.to else []
        english = [word, *to] if past else [be, word, *to]
        support = [*([] if past else [be]), *to]
        if not self.french:
            forms = verb.es.preterite if past else verb.es.present
            target = [TargetWord(forms[who.person], [word], support), TargetWord("a", [], [word])]
        elif past:
            target = [*target_words(_AVOIR[_french(who)], word), TargetWord(verb.fr.participle, [word], to)]
        else:
            target = [TargetWord(verb.fr.present[_french(who)], [word], support)]
        whom = self._noun_phrase(r.choice(["a", "a", "the", "this"]), self._noun("chased"))
        phrase = self._subject(who) + Phrase(english, target) + whom
        if r.random() < 0.6:
            en, fr, es, sure_fr, sure_es, possible = r.choice(table("lectures", "details"))
            phrase += phrase_pair(en, self._either(fr, es), self._either(sure_fr, sure_es), possible)
        return phrase

    def _request(self) -> Phrase:
        """Can you bring me a fork ?: est-ce que vous pouvez m' apporter une fourchette ?, ¿ me puedes traer …"""
        r = self.r
        you = _subjects("pronouns", self.language)[1]
        who = you if r.random() < 0.6 else r.choice(_subjects("people", self.language))
        (en, request), (me, receiver) = self._text("requests"), self._text("receivers")
        can, bring, whom, mark = (EnglishWord(text) for text in ("can", en, me, "?"))
        adjectives = (self._adjective("colours"),) if r.random() < 0.5 else ()
        thing = self._noun_phrase(r.choice(["a", "a", "the", "this", "my"]), self._noun("things"), adjectives)
        subject = self._subject(who)
        clitic = target_words(receiver, whom)
        do = target_words(request, bring)
        if self.french:
            ask = [TargetWord("est-ce", [], [can, mark]), TargetWord("que", [], [can, mark])]
            verb = target_words(_PEUT[_french(who)], can)
            target = [*ask, *subject.target, *verb, *clitic, *do, *thing.target]
        else:
            verb = target_words(_PUEDE[who.person], can)
            behind = subject.target
            if who.person == 1:  # the verb form says "tú"
                behind, verb[0].possible = [], list(subject.en)
            target = [TargetWord("¿", [], [mark]), *clitic, *verb, *do, *behind, *thing.target]
        return Phrase([can, *subject.en, bring, whom, *thing.en, mark], [*target, *target_words("?", mark)])


def _french(who: LectureSubject) -> Person:
    return _PERSONS[who.person]


def lecture_sentences(language: Language) -> list[tuple[str, str, str, str]]:
    """English, translation, sure links and possible ones of each sentence."""
    return [rendered(phrase_pair(*row), language) for row in table("shown", language)]
