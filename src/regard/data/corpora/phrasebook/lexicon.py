"""The words of the phrase book, with their forms in both languages."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from .french import Conjugation, conjugation, feminine, plural


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

# en [plural] | fr [plural] | m or f | tags. A plural not given is regular.
_NOUNS = """
man men | homme | m | person nobodys
woman women | femme | f | person nobodys
child children | enfant | m | person
boy | garçon | m | person nobodys
girl | fille | f | person nobodys
friend | ami | m | person own aged
teacher | professeur | m | person trade
doctor | médecin | m | person trade
baker | boulanger | m | person his-trade
student | étudiant | m | person his-trade
nurse | infirmière | f | person her-trade
queen | reine | f | person her-trade
king | roi | m | person his-trade
sister | sœur | f | person own
brother | frère | m | person own
cat | chat | m | animal
dog | chien | m | animal
horse | cheval chevaux | m | animal
bird | oiseau oiseaux | m | animal
cow | vache | f | animal
mouse mice | souris | f | animal
bear | ours | m | animal
apple | pomme | f | food
cake | gâteau gâteaux | m | food
egg | œuf | m | food
orange | orange | f | food
potato potatoes | pomme de terre | f | food
onion | oignon | m | food
water - | eau | f | drink
milk - | lait | m | drink
coffee - | café | m | drink
tea - | thé | m | drink
soup - | soupe | f | mass
bread - | pain | m | mass
honey - | miel | m | mass
car | voiture | f | thing vehicle machine
train | train | m | vehicle awaited
bicycle | vélo | m | thing machine
boat | bateau bateaux | m | thing machine built
book | livre | m | thing text
letter | lettre | f | thing text
poem | poème | m | text
story stories | histoire | f | text
newspaper | journal journaux | m | thing text
table | table | f | thing surface furniture
chair | chaise | f | thing surface furniture
lamp | lampe | f | thing switch machine
door | porte | f | door
window | fenêtre | f | door
box boxes | boîte | f | thing door held
key | clé | f | thing held
bag | sac | m | thing held
hat | chapeau chapeaux | m | thing clothes
shirt | chemise | f | thing clothes
coat | manteau manteaux | m | thing clothes
dress dresses | robe | f | thing clothes
clock | horloge | f | thing machine
guitar | guitare | f | thing held
song | chanson | f | song
computer | ordinateur | m | thing switch machine
flower | fleur | f | thing held
tree | arbre | m | plant
star | étoile | f | star
house | maison | f | place built inside
school | école | f | place goal inside
church churches | église | f | place goal inside sight
garden | jardin | m | place inside
kitchen | cuisine | f | place inside
forest | forêt | f | place inside crossed
market | marché | m | place goal
station | gare | f | place goal
library libraries | bibliothèque | f | place goal inside
street | rue | f | inside crossed
bridge | pont | m | built crossed
hospital | hôpital hôpitaux | m | place goal inside
hotel | hôtel | m | place goal inside
island | île | f | sight
river | rivière | f | crossed
city cities | ville | f | inside crossed sight
village | village | m | place goal inside
museum | musée | m | place goal inside sight
castle | château châteaux | m | place goal inside built sight
"""

# en comparative | fr [feminine] [before a vowel] | before or after | tags of the nouns it suits
_ADJECTIVES = """
big bigger | grand | before | thing animal place built cake door plant
small smaller | petit | before | thing animal place built food door person
beautiful more | beau belle bel | before | thing animal place sight song star man woman child boy girl queen
new - | nouveau nouvelle nouvel | before | thing door trade
old older | vieux vieille vieil | before | thing animal place built aged man woman trade his-trade her-trade
young younger | jeune | before | person animal
good - | bon bonne | before | food drink mass text song
bad - | mauvais | before | food drink mass text song
pretty prettier | joli | before | clothes flower song poem sight star
long longer | long longue | before | text dress coat song street bridge river
red - | rouge | after | thing door
blue - | bleu | after | thing door star
green - | vert | after | thing door
white - | blanc blanche | after | thing door animal
black - | noir | after | thing door animal
heavy heavier | lourd | after | bag box furniture computer book
expensive more | cher chère | after | thing food
empty - | vide | after | bag box place
wooden - | en·bois en·bois | after | furniture box boat bridge house
french - | français | after | person text song cake bread
german - | allemand | after | person vehicle machine text
european - | européen européenne | after | person city
tired more | fatigué | after | person animal
happy happier | heureux heureuse | after | person animal
sad sadder | triste | after | person animal song text
rich richer | riche | after | person
strong stronger | fort | after | animal
famous more | célèbre | after | person sight text
clever more | intelligent | after | person animal
interesting more | intéressant | after | text
strange stranger | étrange | after | text thing song person place
hot hotter | chaud | after | drink soup bread
cold colder | froid | after | drink soup
"""

# en third past ing [to, a preposition] | fr conjugation | tags of the objects [| what English puts after the object]
_VERBS = """
sleep sleeps slept sleeping | dormir dors dort dormons dormez dorment dormir- dormi |
sing sings sang singing | chanter |
dance dances danced dancing | danser |
laugh laughs laughed laughing | rire ris rit rions riez rient rir- ri |
cry cries cried crying | pleurer |
work works worked working | travailler |
run runs ran running | courir cours court courons courez courent courr- couru |
swim swims swam swimming | nager |
walk walks walked walking | marcher |
arrive arrives arrived arriving | arriver être |
leave leaves left leaving | partir pars part partons partez partent partir- parti être |
fall falls fell falling | tomber être |
eat eats ate eating | manger | food mass
drink drinks drank drinking | boire bois boit buvons buvez boivent boir- bu | drink
buy buys bought buying | acheter achète achète achetons achetez achètent achèter- acheté | thing food drink mass
sell sells sold selling | vendre vends vend vendons vendez vendent vendr- vendu | thing food
write writes wrote writing | écrire écris écrit écrivons écrivez écrivent écrir- écrit | text
read reads read reading | lire lis lit lisons lisez lisent lir- lu | text
open opens opened opening | ouvrir ouvre ouvre ouvrons ouvrez ouvrent ouvrir- ouvert | door
close closes closed closing | fermer | door
lose loses lost losing | perdre perds perd perdons perdez perdent perdr- perdu | held clothes book letter newspaper
help helps helped helping | aider | person
invite invites invited inviting | inviter | person
meet meets met meeting | rencontrer | person
wait waits waited waiting for | attendre attends attend attendons attendez attendent attendr- attendu | person awaited
look looks looked looking for | chercher | person animal thing
listen listens listened listening to | écouter | person song
wash washes washed washing | laver | clothes car bicycle boat window table
paint paints painted painting | peindre peins peint peignons peignez peignent peindr- peint | door plant furniture built
build builds built building \
| construire construis construit construisons construisez construisent construir- construit | built
break breaks broke breaking | casser | lamp clock computer furniture guitar window
repair repairs repaired repairing | réparer | machine furniture
drive drives drove driving | conduire conduis conduit conduisons conduisez conduisent conduir- conduit | vehicle
take takes took taking \
| prendre prends prend prenons prenez prennent prendr- pris | held clothes book letter newspaper train
carry carries carried carrying | porter | held furniture
wear wears wore wearing | porter | clothes
choose chooses chose choosing | choisir choisis choisit choisissons choisissez choisissent choisir- choisi | thing food
hide hides hid hiding | cacher | held book letter clothes
follow follows followed following | suivre suis suit suivons suivez suivent suivr- suivi | person animal
feed feeds fed feeding | nourrir nourris nourrit nourrissons nourrissez nourrissent nourrir- nourri | animal
visit visits visited visiting | visiter | sight
cross crosses crossed crossing | traverser | crossed
hit hits hit hitting | entarter | person | with a pie
turn turns turned turning | allumer | switch | on
throw throws threw throwing | jeter jette jette jetons jetez jettent jetter- jeté | held clothes letter newspaper | away
pick picks picked picking | ramasser | held clothes | up
"""

_STATIVE = """
find finds found finding | trouver | person animal thing
see sees saw seeing | voir vois voit voyons voyez voient verr- vu | person animal thing place sight star
hear hears heard hearing | entendre entends entend entendons entendez entendent entendr- entendu | person animal song
love loves loved loving | adorer | person animal thing sight song star
forget forgets forgot forgetting | oublier | held clothes text
understand understands understood understanding \
| comprendre comprends comprend comprenons comprenez comprennent comprendr- compris | person text
"""

_GIVING = """
give gives gave giving | donner | thing food
send sends sent sending | envoyer envoie envoie envoyons envoyez envoient enverr- envoyé | text
show shows showed showing | montrer | thing animal
"""

_MOVING = """
go goes went going to | aller vais va allons allez vont ir- allé être | goal
come comes came coming from | venir viens vient venons venez viennent viendr- venu être | goal
"""

_THINKING = """
think thinks thought thinking | penser |
say says said saying | dire dis dit disons dites disent dir- dit |
hope hopes hoped hoping | espérer espère espère espérons espérez espèrent espérer- espéré |
believe believes believed believing | croire crois croit croyons croyez croient croir- cru |
"""


def _table(text: str) -> list[list[str]]:
    return [[cell.strip() for cell in line.split("|")] for line in text.strip().splitlines()]


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


NOUNS = [_noun(*row) for row in _table(_NOUNS)]
ADJECTIVES = [_adjective(*row) for row in _table(_ADJECTIVES)]
VERBS = [_verb(ALL, *row) for row in _table(_VERBS)] + [_verb(_STATES, *row) for row in _table(_STATIVE)]
GIVING = [_verb(ALL, *row) for row in _table(_GIVING)]
MOVING = [_verb(("present", "progressive", "past", "future"), *row) for row in _table(_MOVING)]
THINKING = [_verb(("present",), *row) for row in _table(_THINKING)]
# Whether it is a woman's name.
NAMES = {"paul": False, "louis": False, "jules": False, "marie": True, "anna": True, "emma": True}


@cache
def nouns(tags: frozenset[str]) -> list[Noun]:
    """The nouns with one of these tags."""
    return [noun for noun in NOUNS if noun.tags & tags]


@cache
def adjectives(tags: frozenset[str]) -> list[Adjective]:
    """The adjectives that suit a noun with these tags."""
    return [adjective for adjective in ADJECTIVES if adjective.tags & tags]
