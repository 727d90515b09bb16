"""Invented names and numbers: the same word on both sides, with a link, at least one in each sentence."""

from __future__ import annotations

import re

import pytest

from regard.data.corpora import phrasebook
from regard.data.corpora.phrasebook.grammar import NAMES

INVENTED = re.compile(r"([bdfgklmnprstvz]{1,2}[aeiou]){3}(la|k)|\d{2,5}")


def test_every_sentence_has_a_word_to_copy_and_it_is_linked() -> None:
    train = list(phrasebook.pairs(300, invented=True))
    words = set()
    for pair in train:
        source, target = pair.source.split(), pair.target.split()
        links = {(int(i), int(j)) for i, j in (link.split("-") for link in (pair.alignment or "").split())}
        copied = [(i, j) for i, j in links if source[i] == target[j] and INVENTED.fullmatch(source[i])]
        assert copied, pair
        assert not set(source) & NAMES.keys(), pair
        words |= {source[i] for i, _ in copied}
    assert len(words) > 250  # hardly one twice
    assert train == list(phrasebook.pairs(300, invented=True))
    assert not {pair.source for pair in train} & {
        pair.source for pair in phrasebook.pairs(300, split="test", invented=True)
    }


def test_other_languages_have_none() -> None:
    with pytest.raises(ValueError, match="invented names and numbers are for French"):
        phrasebook.pairs(1, language="spanish", invented=True)
