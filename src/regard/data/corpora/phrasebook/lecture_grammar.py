"""Sentences that lectures on attention show, and others like them, in English and French or Spanish, with gold links.

Agreements that were signed, people from countries, forks to bring, pies that hit, criminals on the run. Every
construction occurs with many words, so that a translator has to attend to the words themselves.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from .bilingual_phrase import (
    EMPTY,
    Conjugation,
    EnglishWord,
    Language,
    Person,
    Phrase,
    TargetWord,
    agree,
    by_person,
    conjugation,
    feminine,
    forms,
    phrase_pair,
    plural,
    rendered,
    table,
    target_words,
    vowel,
    word_pair,
)

if TYPE_CHECKING:
    from random import Random

_PRESENT = {"ar": "o a amos as an", "er": "o e emos es en", "ir": "o e imos es en"}
_PRETERITE = {"ar": "é ó amos aste aron", "er": "í ió imos iste ieron", "ir": "í ió imos iste ieron"}
_YEARS = [str(year) for year in range(1950, 2010)]
_PEOPLE: tuple[Person, ...] = ("je", "vous", "il", "nous", "ils")  # 0 to 4 in the tables; Spanish has tú for vous
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
    present: dict[Person, str]
    preterite: dict[Person, str]
    future: dict[Person, str]


def spanish_verb(written: str) -> SpanishVerb:
    """From the infinitive alone (regular), or with yo, tú, él, nosotros, ellos of the present, then the preterite."""
    infinitive, *irregular = written.replace(",", " ").split()
    stem, ending = infinitive[:-2], infinitive[-2:]

    def in_tense(endings: str, given: list[str]) -> dict[Person, str]:
        regular = {who: stem + end for who, end in by_person(endings).items()}
        return dict(zip(_PEOPLE, given, strict=True)) if given else regular

    future = {who: infinitive + end for who, end in by_person("é á emos ás án").items()}
    present, preterite = in_tense(_PRESENT[ending], irregular[:5]), in_tense(_PRETERITE[ending], irregular[5:])
    return SpanishVerb(present, preterite, future)


def spanish_plural(word: str) -> str:
    return word + ("s" if word[-1] in "aeiouáé" else "es")


def spanish_feminine(word: str) -> str:
    """rojo: roja; others (azul, económica) are given or stay."""
    return word[:-1] + "a" if word.endswith("o") else word


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
    en: str
    text: str
    person: Person
    female: bool

    @property
    def phrase(self) -> Phrase:
        return phrase_pair(self.en, self.text)


Adjective = tuple[str, tuple[str, str]]  # English, and both genders


@cache
def _texts(name: str, language: Language) -> list[tuple[str, str]]:
    """English, and the other language."""
    return [(row[0], row[1 if language == "french" else 2]) for row in table("lectures", name)]


@cache
def _adjectives(name: str, language: Language) -> list[Adjective]:
    """All of these stand after the noun in French and in Spanish."""
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
    rows = zip(_texts(name, language), table("lectures", name), strict=True)
    return [LectureSubject(en, text, _PEOPLE[int((row[4:] or ["2"])[0])], row[3] == "f") for (en, text), row in rows]


class LectureGrammar:
    """Random sentences in English and one other language."""

    def __init__(self, r: Random, language: Language) -> None:
        self.r, self.language, self.french = r, language, language == "french"
        self.forms = forms(language)

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

    def _anybody(self) -> LectureSubject:
        return self.r.choice(_subjects("pronouns" if self.r.random() < 0.6 else "people", self.language))

    def _adjective(self, name: str) -> Adjective:
        return self.r.choice(_adjectives(name, self.language))

    def _is(self, who: LectureSubject) -> Phrase:
        return word_pair(forms("english")["be present"][who.person], self.forms["be present"][who.person])

    def _noun_phrase(self, determiner: str, noun: tuple[str, str], adjectives: tuple[Adjective, ...] = ()) -> Phrase:
        """A noun with its adjectives, which stand behind it in reverse order in French and Spanish."""
        text, female = noun[1][:-2], noun[1].endswith(" f")
        article, word = EnglishWord(determiner), EnglishWord(noun[0])
        words = [EnglishWord(english) for english, _ in adjectives]
        form = _DETERMINERS[determiner][(0 if self.french else 2) + female]
        if self.french and vowel(text):
            form = _BEFORE_VOWEL.get(form, form)
        target = [*target_words(form, article), *target_words(text, word)]
        for english, (_, both) in reversed(list(zip(words, adjectives, strict=True))):
            target += target_words(both[female], english)
        return Phrase([article, *words, word], target)

    def _signed(self) -> Phrase:
        """The agreement on the european economic area was signed in august 1992."""
        r = self.r
        document = self._text("documents")
        fields = (self._adjective("regions"), self._adjective("fields"))
        adjectives = fields if r.random() < 0.6 else (r.choice(fields),)
        phrase = self._noun_phrase("the", document)
        if r.random() < 0.75:
            phrase += phrase_pair(*self._text("prepositions"))
            phrase += self._noun_phrase("the", self._text("bodies"), adjectives)
        (verb, participles), (english, passive) = self._adjective("signed"), self._text("passive")
        be = [EnglishWord(text) for text in english.split()]
        auxiliaries = target_words(passive, be[-1])
        auxiliaries[0].possible += be[:-1]
        phrase += Phrase(be, auxiliaries) + word_pair(verb, participles[document[1].endswith(" f")])
        (en, month), year = self._text("months"), r.choice(_YEARS)
        if r.random() < 0.75:
            if self.french:
                return phrase + phrase_pair(f"in {en} {year}", f"en {month} {year}")
            return phrase + phrase_pair(f"in {en} {year}", f"en {month} de {year}", "0-0 1-1 2-3", "2-2")
        return phrase + phrase_pair(f"in {year}", f"en {year}")

    def _from(self) -> Phrase:
        """I am from canada: je suis du canada, yo soy de canadá."""
        who, (en, country) = self._anybody(), self._text("countries")
        if self.r.random() < 0.6:
            verb = self._is(who)
        else:
            verb = word_pair("comes" if who.person == "il" else "come", self.forms["come"][who.person])
        return who.phrase + verb + word_pair("from", "de") + word_pair(en, country)

    def _trade(self) -> Phrase:
        """I am a student: je suis étudiant, yo soy estudiante, without an article."""
        who, (trade, names) = self._anybody(), self._adjective("trades")
        while who.en.endswith(trade):
            who = self._anybody()
        several = who.person in ("nous", "ils")
        article = [] if several else [EnglishWord("a")]
        word, name = EnglishWord(trade + "s" * several), names[who.female]
        if several:
            name = plural(name) if self.french else spanish_plural(name)
        return who.phrase + self._is(who) + Phrase([*article, word], [TargetWord(name, [word], list(article))])

    def _meet(self) -> Phrase:
        """He hit me with a pie: il m' a entarté, él me golpeó con una tarta. Other things keep the verb."""
        who, (en, fr, es, female, several) = self._anybody(), self.r.choice(table("lectures", "victims"))
        if (who.person in ("je", "nous") and en in ("me", "us")) or (who.person == "vous" and en == "you"):
            return self._meet()
        verbs = _verbs("meeting")
        verb = verbs[0] if self.r.random() < 0.6 else self.r.choice(verbs[1:])
        pie = self.r.random() < 0.5
        thing = ("pie", self._either("tarte f", "tarta f")) if pie else self._text("instruments")
        third = who.person == "il"
        one_form = verb.en == verb.past and not third  # "they hit" is read as past
        tense = self.r.choice(["past", "past" if one_form else "present", "future"])
        base = verb.past if tense == "past" else verb.en + "s" * third if tense == "present" else verb.en
        word, whom = EnglishWord(base), EnglishWord(en)
        will = [EnglishWord("will")] if tense == "future" else []
        english, clitic = [*will, word, whom], target_words(self._either(fr, es), whom)
        if not self.french:
            written = {"past": verb.es.preterite, "present": verb.es.present, "future": verb.es.future}[tense]
            hit = Phrase(english, [*clitic, TargetWord(written[who.person], [word], list(will))])
            return who.phrase + hit + word_pair("with", "con") + self._noun_phrase("a", thing)
        pied = pie and verb.en == "hit"
        french = _PIE_VERB if pied else verb.fr
        if tense == "past":
            form = agree(french.participle, feminine(french.participle), bool(female), bool(several))
            clitic += target_words(self.forms["have present"][who.person], word)
        else:
            form = (french.present if tense == "present" else french.future)[who.person]
        main = TargetWord(form, [word], list(will))
        phrase = who.phrase + Phrase(english, [*clitic, main])
        if not pied:
            return phrase + word_pair("with", "avec") + self._noun_phrase("a", thing)
        *with_a, last = (EnglishWord(text) for text in ("with", "a", "pie"))
        main.sure.append(last)
        main.possible += with_a
        return phrase + Phrase([*with_a, last], [])

    def _chase(self) -> Phrase:
        """The fbi is chasing a criminal on the run: le fbi poursuit un criminel en fuite."""
        r = self.r
        names = ["chasers"] if r.random() < 0.6 else ["people", "pronouns"]
        who = r.choice([each for name in names for each in _subjects(name, self.language)])
        verb, past = r.choice(_verbs("chasing")), r.random() < 0.3
        word = EnglishWord(verb.past if past else verb.ing)
        to = [EnglishWord(verb.to)] if verb.to else []
        be = [] if past else [EnglishWord(forms("english")["be present"][who.person])]
        if not self.french:
            written = verb.es.preterite if past else verb.es.present
            target = [TargetWord(written[who.person], [word], [*be, *to]), TargetWord("a", [], [word])]
        elif past:
            avoir = target_words(self.forms["have present"][who.person], word)
            target = [*avoir, TargetWord(verb.fr.participle, [word], to)]
        else:
            target = [TargetWord(verb.fr.present[who.person], [word], [*be, *to])]
        whom = self._noun_phrase(r.choice(["a", "a", "the", "this"]), self._text("chased"))
        phrase = who.phrase + Phrase([*be, word, *to], target) + whom
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
        thing = self._noun_phrase(r.choice(["a", "a", "the", "this", "my"]), self._text("things"), adjectives)
        subject, clitic, do = who.phrase, target_words(receiver, whom), target_words(request, bring)
        verb = target_words(self.forms["can"][who.person], can)
        if self.french:
            ask = [TargetWord("est-ce", [], [can, mark]), TargetWord("que", [], [can, mark])]
            target = [*ask, *subject.target, *verb, *clitic, *do, *thing.target]
        else:
            behind = subject.target
            if who.person == "vous":  # the verb form says "tú"
                behind, verb[0].possible = [], list(subject.en)
            target = [TargetWord("¿", [], [mark]), *clitic, *verb, *do, *behind, *thing.target]
        return Phrase([can, *subject.en, bring, whom, *thing.en, mark], [*target, *target_words("?", mark)])


def lecture_sentences(language: Language) -> list[tuple[str, str, str, str]]:
    """English, translation, sure links and possible ones of each sentence."""
    return [rendered(phrase_pair(*row), language) for row in table("shown", language)]
