"""The words of the lecture sentences in English, French and Spanish."""

from __future__ import annotations

from dataclasses import dataclass

from . import spanish
from .french import Conjugation, conjugation
from .french import feminine as french_feminine
from .spanish import SpanishVerb, spanish_verb


@dataclass(frozen=True)
class LectureNoun:
    """A noun with its gender in both languages ("m" or "f")."""

    en: str
    fr: str
    fr_gender: str
    es: str
    es_gender: str


@dataclass(frozen=True)
class LectureAdjective:
    """An adjective in both genders. All of these stand after the noun in French and in Spanish."""

    en: str
    fr: tuple[str, str]
    es: tuple[str, str]


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
    fr: str
    es: str
    person: int
    female: bool


def _rows(text: str) -> list[list[str]]:
    return [[cell.strip() for cell in line.split("|")] for line in text.strip().splitlines()]


def _nouns(text: str) -> list[LectureNoun]:
    return [LectureNoun(en, *fr.split(), *es.split()) for en, fr, es in _rows(text)]


def _adjectives(text: str) -> list[LectureAdjective]:
    made = []
    for en, fr, es in _rows(text):
        french, castilian = fr.split(), es.split()
        her = french[1] if len(french) > 1 else french_feminine(french[0])
        ella = castilian[1] if len(castilian) > 1 else spanish.feminine(castilian[0])
        made.append(LectureAdjective(en, (french[0], her), (castilian[0], ella)))
    return made


def _verbs(text: str) -> list[LectureVerb]:
    made = []
    for en, fr, es in _rows(text):
        base, past, ing, *to = en.split()
        made.append(LectureVerb(base, past, ing, "".join(to), conjugation(fr.split()), spanish_verb(es)))
    return made


# The agreement on the european economic area.
DOCUMENTS = _nouns("""
agreement | accord m | acuerdo m
treaty | traité m | tratado m
contract | contrat m | contrato m
convention | convention f | convención f
report | rapport m | informe m
law | loi f | ley f
""")
BODIES = _nouns("""
area | zone f | zona f
union | union f | unión f
bank | banque f | banco m
council | conseil m | consejo m
market | marché m | mercado m
commission | commission f | comisión f
forum | forum m | foro m
agency | agence f | agencia f
""")
REGIONS = _adjectives("""
european | européen européenne | europeo
african | africain | africano
american | américain | americano
asian | asiatique | asiático
canadian | canadien canadienne | canadiense
mexican | mexicain | mexicano
""")
FIELDS = _adjectives("""
economic | économique | económico
commercial | commercial | comercial
scientific | scientifique | científico
military | militaire | militar
industrial | industriel industrielle | industrial
medical | médical | médico
""")
# en | fr | es: participles of the passive
SIGNED = _adjectives("""
signed | signé | firmado
published | publié | publicado
approved | approuvé | aprobado
rejected | rejeté | rechazado
discussed | discuté | discutido
changed | modifié | modificado
""")
PREPOSITIONS = [("on", "sur", "sobre"), ("with", "avec", "con"), ("for", "pour", "para")]
MONTHS = _rows("""
january | janvier | enero
february | février | febrero
march | mars | marzo
april | avril | abril
may | mai | mayo
june | juin | junio
july | juillet | julio
august | août | agosto
september | septembre | septiembre
october | octobre | octubre
november | novembre | noviembre
december | décembre | diciembre
""")
YEARS = [str(year) for year in range(1950, 2010)]

# I am from canada. French has an article with masculine countries: "de le canada" becomes "du canada".
COUNTRIES = _rows("""
canada | le canada | canadá
mexico | le mexique | méxico
japan | le japon | japón
brazil | le brésil | brasil
portugal | le portugal | portugal
peru | le pérou | perú
france | france | francia
spain | espagne | españa
italy | italie | italia
germany | allemagne | alemania
china | chine | china
argentina | argentine | argentina
paris | paris | parís
madrid | madrid | madrid
london | londres | londres
rome | rome | roma
lisbon | lisbonne | lisboa
""")

PRONOUNS = [
    LectureSubject("i", "je", "yo", 0, False),
    LectureSubject("you", "vous", "tú", 1, False),
    LectureSubject("he", "il", "él", 2, False),
    LectureSubject("she", "elle", "ella", 2, True),
    LectureSubject("we", "nous", "nosotros", 3, False),
    LectureSubject("they", "ils", "ellos", 4, False),
]
PEOPLE = [
    LectureSubject(en, fr, es, 2, gender == "f")
    for en, fr, es, gender in _rows("""
paul | paul | paul | m
marie | marie | marie | f
emma | emma | emma | f
louis | louis | louis | m
my sister | ma sœur | mi hermana | f
my brother | mon frère | mi hermano | m
the teacher | le professeur | el profesor | m
the doctor | le médecin | el médico | m
the girl | la fille | la chica | f
the boy | le garçon | el chico | m
the king | le roi | el rey | m
the queen | la reine | la reina | f
""")
]
CHASERS = [
    LectureSubject(en, fr, es, 2, gender == "f")
    for en, fr, es, gender in _rows("""
the fbi | le fbi | el fbi | m
the agent | le agent | el agente | m
the dog | le chien | el perro | m
the detective | le détective | el detective | m
the army | la armée | el ejército | m
""")
]
TRADES = _adjectives("""
student | étudiant étudiante | estudiante
teacher | professeur professeur | profesor profesora
doctor | médecin médecin | médico
lawyer | avocat avocate | abogado
artist | artiste | artista
journalist | journaliste | periodista
""")
CHASED = _nouns("""
criminal | criminel m | criminal m
thief | voleur m | ladrón m
spy | espion m | espía m
prisoner | prisonnier m | prisionero m
soldier | soldat m | soldado m
student | étudiant m | estudiante m
woman | femme f | mujer f
cat | chat m | gato m
""")
# en | fr | es | sure links of the French | of the Spanish | possible links
DETAILS = _rows("""
on the run | en fuite | en fuga | 0-0 2-1 | 0-0 2-1 | 1-1
on the roof | sur le toit | en el techo | 0-0 1-1 2-2 | 0-0 1-1 2-2 |
on the beach | sur la plage | en la playa | 0-0 1-1 2-2 | 0-0 1-1 2-2 |
in the street | dans la rue | en la calle | 0-0 1-1 2-2 | 0-0 1-1 2-2 |
with a hat | avec un chapeau | con un sombrero | 0-0 1-1 2-2 | 0-0 1-1 2-2 |
in the city | dans la ville | en la ciudad | 0-0 1-1 2-2 | 0-0 1-1 2-2 |
at night | la nuit | de noche | 1-1 | 1-1 | 0-0
""")
CHASING = _verbs("""
chase chased chasing | poursuivre poursuis poursuit poursuivons poursuivez poursuivent poursuivr- poursuivi \
| perseguir persigo persigues persigue perseguimos persiguen, perseguí perseguiste persiguió perseguimos persiguieron
follow followed following | suivre suis suit suivons suivez suivent suivr- suivi \
| seguir sigo sigues sigue seguimos siguen, seguí seguiste siguió seguimos siguieron
watch watched watching | regarder | mirar
look looked looking for | chercher \
| buscar busco buscas busca buscamos buscan, busqué buscaste buscó buscamos buscaron
help helped helping | aider | ayudar
arrest arrested arresting | arrêter | arrestar
""")

THINGS = _nouns("""
fork | fourchette f | tenedor m
spoon | cuillère f | cuchara f
knife | couteau m | cuchillo m
plate | assiette f | plato m
glass | verre m | vaso m
book | livre m | libro m
letter | lettre f | carta f
key | clé f | llave f
chair | chaise f | silla f
apple | pomme f | manzana f
cake | gâteau m | pastel m
bottle | bouteille f | botella f
hat | chapeau m | sombrero m
lamp | lampe f | lámpara f
flower | fleur f | flor f
""")
COLOURS = _adjectives("""
red | rouge | rojo
green | vert | verde
blue | bleu | azul
white | blanc blanche | blanco
black | noir | negro
heavy | lourd | pesado
""")
# en | fr infinitive | es infinitive
REQUESTS = _rows("""
bring | apporter | traer
give | donner | dar
show | montrer | mostrar
buy | acheter | comprar
send | envoyer | enviar
""")
RECEIVERS = [("me", "me", "me"), ("us", "nous", "nos"), ("him", "lui", "le"), ("them", "leur", "les")]
# English | French | Spanish | female | several: objects, with which the French participle agrees
VICTIMS = [
    ("me", "me", "me", False, False),
    ("you", "vous", "te", False, False),
    ("him", "le", "lo", False, False),
    ("her", "la", "la", True, False),
    ("us", "nous", "nos", False, True),
    ("them", "les", "los", False, True),
]
INSTRUMENTS = _nouns("""
ball | balle f | pelota f
stick | bâton m | palo m
book | livre m | libro m
hat | chapeau m | sombrero m
spoon | cuillère f | cuchara f
""")
PIE = LectureNoun("pie", "tarte", "f", "tarta", "f")
# en, past, -ing | fr | es: what people do to others with a thing. To hit with a pie is one word in French.
MEETING = _verbs("""
hit hit hitting | frapper | golpear
see saw seeing | voir vois voit voyons voyez voient verr- vu | ver veo ves ve vemos ven, vi viste vio vimos vieron
find found finding | trouver | encontrar encuentro encuentras encuentra encontramos encuentran, encontré encontraste \
encontró encontramos encontraron
""")
PIE_VERB = conjugation(["entarter"])
