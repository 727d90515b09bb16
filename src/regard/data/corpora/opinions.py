"""Opinions: small reviews from a grammar of ours, each positive, negative or neutral.

Counting words is not enough to tell which: `not` turns a clause round, what follows `but` outweighs what came before
it, and a clause under `although` does not count, so order matters.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Literal
from zlib import crc32

from ..pair import Pair

if TYPE_CHECKING:
    from collections.abc import Iterator

LABELS = ("positive", "negative", "neutral")

_WORDS = {
    "thing": "soup bread fish coffee wine dessert service waiter room bed view garden museum tour guide film story "
    "ending music book lecture concert weather walk boat train hotel breakfast market exhibition",
    "good": "good great lovely fine wonderful excellent charming delightful superb pleasant splendid fresh",
    "poor": "bad poor awful dreadful dull terrible disappointing unpleasant boring horrible dreary stale",
    "liked": "liked loved enjoyed praised",
    "disliked": "disliked hated regretted cursed",
}
_THINGS, _GOOD, _POOR, _LIKED, _DISLIKED = (words.split() for words in _WORDS.values())
_DEGREES = ["", "", "", "very", "really", "rather", "quite", "simply"]
_NOT = ["was not", "was never", "was hardly", "was anything but"]
_FACTS = [
    "came at noon",
    "stood near the door",
    "lasted two hours",
    "began at eight",
    "was on the second floor",
    "was behind the station",
    "belonged to the town",
    "cost nine coins",
    "was announced in the paper",
    "had a green sign",
    "was moved to monday",
    "needed a ticket",
    "was next to the bridge",
    "changed every week",
]
_WHEN = ["", "", "", "yesterday", "this morning", "last week", "on sunday", "in the evening"]


def pairs(count: int, seed: int = 0, *, split: Literal["train", "test"] = "train") -> Iterator[Pair]:
    """Reviews and their labels, each review once; none of the training's is in the test."""
    if not 0 <= count <= 100_000:
        raise ValueError(f"there are between 0 and 100,000 opinions to be had, got {count:,}")
    chance, seen = random.Random(f"opinions {split} {seed}"), set[str]()
    while len(seen) < count:
        label = chance.choice(LABELS)
        text = _neutral(chance) if label == "neutral" else _review(chance, label)
        # A tenth of all sentences, whatever the seed, is kept for testing.
        if text not in seen and (crc32(text.encode()) % 10 == 0) == (split == "test"):
            seen.add(text)
            yield Pair(text, label, len(seen) - 1)


def _review(chance: random.Random, side: str) -> str:
    other = "negative" if side == "positive" else "positive"
    form = chance.randrange(8)
    if form < 2:
        text = _clause(chance, side)
    elif form == 2:
        text = f"{_clause(chance, side)} and {_clause(chance, side)}"
    elif form == 3:
        text = f"{_clause(chance, other)} , but {_clause(chance, side)}"
    elif form == 4:
        text = f"although {_clause(chance, other)} , {_clause(chance, side)}"
    elif form == 5:
        text = f"{_clause(chance, side)} , although {_clause(chance, other)}"
    elif form == 6:
        text = f"{_fact(chance)} and {_clause(chance, side)}"
    else:
        text = _hearsay(chance, side)
    return _joined(text, chance.choice(_WHEN))


def _neutral(chance: random.Random) -> str:
    form = chance.randrange(4)
    if form == 0:
        text = _fact(chance)
    elif form == 1:
        text = f"{_fact(chance)} and {_fact(chance)}"
    elif form == 2:
        text = f"the {chance.choice(_THINGS)} was neither {chance.choice(_GOOD)} nor {chance.choice(_POOR)}"
    else:
        text = f"i cannot say whether the {chance.choice(_THINGS)} was {chance.choice([*_GOOD, *_POOR])}"
    return _joined(text, chance.choice(_WHEN))


def _clause(chance: random.Random, side: str) -> str:
    """One thing and what is thought of it, said straight or by its opposite."""
    thing, good = chance.choice(_THINGS), side == "positive"
    form = chance.randrange(4)
    if form == 0:
        return f"i {chance.choice(_LIKED if good else _DISLIKED)} the {thing}"
    if form == 1:
        return _joined(f"the {thing}", chance.choice(_NOT), chance.choice(_POOR if good else _GOOD))
    return _joined(f"the {thing} was", chance.choice(_DEGREES), chance.choice(_GOOD if good else _POOR))


def _hearsay(chance: random.Random, side: str) -> str:
    """What others said, and whether it was so."""
    so = chance.random() < 0.5
    words = _GOOD if so == (side == "positive") else _POOR
    claim = f"everyone said that the {chance.choice(_THINGS)} was {chance.choice(words)}"
    return f"{claim} , and it was" if so else f"{claim} , but it was not"


def _fact(chance: random.Random) -> str:
    return f"the {chance.choice(_THINGS)} {chance.choice(_FACTS)}"


def _joined(*parts: str) -> str:
    return " ".join(part for part in parts if part)
