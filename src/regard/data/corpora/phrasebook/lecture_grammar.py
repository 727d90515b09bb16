"""Sentences like those that lectures on attention show, in English and French or Spanish, with gold links.

Agreements that were signed, people from countries, forks to bring, pies that hit, criminals on the run. Every
construction occurs with many words, so that a translator has to attend to the words themselves.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from . import lecture_lexicon as lexicon
from . import spanish
from .bilingual_phrase import EMPTY, EnglishWord, Phrase, TargetWord, phrase_pair, target_words
from .french import Person, agree, feminine, plural, present, vowel

if TYPE_CHECKING:
    from random import Random

    from .bilingual_phrase import Language
    from .lecture_lexicon import LectureAdjective, LectureNoun, LectureSubject

_PASSIVE = [("was", "a été", "fue"), ("was", "a été", "fue"), ("is", "est", "es"), ("will be", "sera", "será")]
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
_JOINTS = [("and", "et", "y"), (", but", ", mais", ", pero"), ("because", "parce que", "porque")]


class LectureGrammar:
    """Random sentences in English and one other language."""

    def __init__(self, r: Random, language: Language) -> None:
        self.r, self.french = r, language == "french"

    def sentence(self) -> Phrase:
        """One sentence of one or two clauses. One of five has no full stop, as on a slide."""
        if self.r.random() < 0.18:
            return self._request()
        phrase = self._clause()
        if self.r.random() < 0.35:
            en, fr, es = self.r.choice(_JOINTS)
            links = "0-0 0-1" if self.french and " que" in fr else None
            phrase += phrase_pair(en, self._either(fr, es), links) + self._clause()
        return phrase + (phrase_pair(".", ".") if self.r.random() < 0.8 else EMPTY)

    def _clause(self) -> Phrase:
        kinds = [self._signed, self._from, self._meet, self._trade, self._chase]
        return self.r.choices(kinds, [26, 16, 22, 14, 22])[0]()

    def _either(self, fr: str, es: str) -> str:
        return fr if self.french else es

    def _subject(self, subject: LectureSubject) -> Phrase:
        return phrase_pair(subject.en, self._either(subject.fr, subject.es))

    def _anybody(self) -> LectureSubject:
        return self.r.choice(lexicon.PRONOUNS if self.r.random() < 0.6 else lexicon.PEOPLE)

    def _female(self, noun: LectureNoun) -> bool:
        return self._either(noun.fr_gender, noun.es_gender) == "f"

    def _noun_phrase(self, determiner: str, noun: LectureNoun, adjectives: tuple[LectureAdjective, ...] = ()) -> Phrase:
        """A noun with its adjectives, which stand behind it in reverse order in French and Spanish."""
        female, article, word = self._female(noun), EnglishWord(determiner), EnglishWord(noun.en)
        words = [EnglishWord(adjective.en) for adjective in adjectives]
        form = _DETERMINERS[determiner][(0 if self.french else 2) + female]
        name = self._either(noun.fr, noun.es)
        if self.french and vowel(name):
            form = _BEFORE_VOWEL.get(form, form)
        target = [*target_words(form, article), *target_words(name, word)]
        for english, adjective in reversed(list(zip(words, adjectives, strict=True))):
            target += target_words((adjective.fr if self.french else adjective.es)[female], english)
        return Phrase([article, *words, word], target)

    def _signed(self) -> Phrase:
        """The agreement on the european economic area was signed in august 1992."""
        r = self.r
        document = r.choice(lexicon.DOCUMENTS)
        fields = (r.choice(lexicon.REGIONS), r.choice(lexicon.FIELDS))
        adjectives = fields if r.random() < 0.6 else (r.choice(fields),)
        phrase = self._noun_phrase("the", document)
        if r.random() < 0.75:
            en, fr, es = r.choice(lexicon.PREPOSITIONS)
            phrase += phrase_pair(en, self._either(fr, es))
            phrase += self._noun_phrase("the", r.choice(lexicon.BODIES), adjectives)
        verb, (english, french, castilian) = r.choice(lexicon.SIGNED), r.choice(_PASSIVE)
        be, done = [EnglishWord(text) for text in english.split()], EnglishWord(verb.en)
        participle = (verb.fr if self.french else verb.es)[self._female(document)]
        auxiliaries = target_words(self._either(french, castilian), be[-1])
        auxiliaries[0].possible += be[:-1]
        phrase += Phrase([*be, done], [*auxiliaries, *target_words(participle, done)])
        month, year = r.choice(lexicon.MONTHS), r.choice(lexicon.YEARS)
        if r.random() < 0.75:
            possible = "" if self.french else "2-2"
            date = self._either(f"en {month[1]} {year}", f"en {month[2]} de {year}")
            sure = self._either("0-0 1-1 2-2", "0-0 1-1 2-3")
            return phrase + phrase_pair(f"in {month[0]} {year}", date, sure, possible)
        return phrase + phrase_pair(f"in {year}", f"en {year}")

    def _from(self) -> Phrase:
        """I am from canada: je suis du canada, yo soy de canadá."""
        who, (en, fr, es) = self._anybody(), self.r.choice(lexicon.COUNTRIES)
        if self.r.random() < 0.6:
            verb = phrase_pair(_BE[who.person], self._either(_ETRE[_french(who)], _ES[who.person]))
        else:
            comes = "comes" if who.person == 2 else "come"
            verb = phrase_pair(comes, self._either(_VIENT[_french(who)], _VIENE[who.person]))
        country = self._either(fr, es)
        links = " ".join(f"0-{j}" for j in range(len(country.split())))
        where = phrase_pair(en, country, links)
        return self._subject(who) + verb + phrase_pair("from", "de") + where

    def _trade(self) -> Phrase:
        """I am a student: je suis étudiant, yo soy estudiante, without an article."""
        who, trade = self._anybody(), self.r.choice(lexicon.TRADES)
        while who.en.endswith(trade.en):
            who = self._anybody()
        several = who.person >= 3
        article = [] if several else [EnglishWord("a")]
        be, word = EnglishWord(_BE[who.person]), EnglishWord(trade.en + "s" * several)
        name = (trade.fr if self.french else trade.es)[who.female]
        if several:
            name = plural(name) if self.french else spanish.plural(name)
        verb = target_words(self._either(_ETRE[_french(who)], _ES[who.person]), be)
        return self._subject(who) + Phrase([be, *article, word], [*verb, TargetWord(name, [word], list(article))])

    def _meet(self) -> Phrase:
        """He hit me with a pie: il m' a entarté, él me golpeó con una tarta. Other things keep the verb."""
        who, (en, fr, es, female, several) = self._anybody(), self.r.choice(lexicon.VICTIMS)
        if (who.person in (0, 3) and en in ("me", "us")) or (who.person == 1 and en == "you"):
            return self._meet()
        verb = lexicon.MEETING[0] if self.r.random() < 0.6 else self.r.choice(lexicon.MEETING[1:])
        thing = lexicon.PIE if self.r.random() < 0.5 else self.r.choice(lexicon.INSTRUMENTS)
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
        pied = thing is lexicon.PIE and verb.en == "hit"
        forms_fr, person = lexicon.PIE_VERB if pied else verb.fr, _french(who)
        if tense == "past":
            form = agree(forms_fr.participle, feminine(forms_fr.participle), female, several)
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
        who = r.choice(lexicon.CHASERS if r.random() < 0.6 else [*lexicon.PEOPLE, *lexicon.PRONOUNS])
        verb, past = r.choice(lexicon.CHASING), r.random() < 0.3
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
        whom = self._noun_phrase(r.choice(["a", "a", "the", "this"]), r.choice(lexicon.CHASED))
        phrase = self._subject(who) + Phrase(english, target) + whom
        if r.random() < 0.6:
            en, fr, es, sure_fr, sure_es, possible = r.choice(lexicon.DETAILS)
            phrase += phrase_pair(en, self._either(fr, es), self._either(sure_fr, sure_es), possible)
        return phrase

    def _request(self) -> Phrase:
        """Can you bring me a fork ?: est-ce que vous pouvez m' apporter une fourchette ?, ¿ me puedes traer …"""
        r = self.r
        who = lexicon.PRONOUNS[1] if r.random() < 0.6 else r.choice(lexicon.PEOPLE)
        (en, fr, es), (me, fr_me, es_me) = r.choice(lexicon.REQUESTS), r.choice(lexicon.RECEIVERS)
        can, bring, whom, mark = (EnglishWord(text) for text in ("can", en, me, "?"))
        adjectives = (r.choice(lexicon.COLOURS),) if r.random() < 0.5 else ()
        thing = self._noun_phrase(r.choice(["a", "a", "the", "this", "my"]), r.choice(lexicon.THINGS), adjectives)
        subject = self._subject(who)
        clitic = target_words(self._either(fr_me, es_me), whom)
        do = target_words(self._either(fr, es), bring)
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
