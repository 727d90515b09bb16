"""Ids of unknown words: the same on both sides, and back to the words of the source."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from regard.data import Pair, Tokenizer, TokenizerPair
from regard.special_tokens import UNKNOWN

if TYPE_CHECKING:
    from pathlib import Path

PAIRS = [Pair("the bird sees paul", "paul voit", 0)]
SLOTS = 50


@pytest.fixture
def pair() -> TokenizerPair:
    return TokenizerPair.train("word", 100, PAIRS, joint=True, slots=SLOTS)


def test_an_unknown_word_has_one_id_and_comes_back(pair: TokenizerPair) -> None:
    both, known = pair.source, 4 + 5  # the specials; the bird sees paul voit
    assert len(both) == known + SLOTS
    source, target = both.encode_batch(["the Zork sees paul 4711", "4711 Zork voit"])
    assert (source[1], source[4]) == (target[1], target[0])
    assert all(i >= known for i in (source[1], source[4]))
    assert source[0] < known
    copied = pair.words_to_copy("the Zork sees paul 4711")
    assert copied == {source[1]: "Zork", source[4]: "4711"}
    assert both.decode(target, copied) == "4711 Zork voit"
    assert both.pieces(target, copied) == ["4711", "Zork", "voit"]
    assert both.decode(target) == "<unk> <unk> voit"
    assert both.encode("</s>") == [UNKNOWN]  # no end of a sentence, and no word to copy


def test_lower_case_is_one_word_and_the_source_keeps_its_case() -> None:
    both = Tokenizer.train("word", 100, ["the bird"], lowercase=True, slots=SLOTS)
    (upper,), (lower,) = both.encode_batch(["Zork", "zork"])
    assert upper == lower
    assert both.words_to_copy("the Zork") == {upper: "Zork"}
    assert both.words_not_copied("ZORK bird blip", {upper: "Zork"}) == ["blip"]


def test_it_survives_its_file(pair: TokenizerPair, tmp_path: Path) -> None:
    pair.save(tmp_path)
    again = TokenizerPair.load(tmp_path)
    assert again.source.encode("the zork sees") == pair.source.encode("the zork sees")
    assert again.words_to_copy("zork") == pair.words_to_copy("zork") != {}


def test_a_text_cannot_name_the_ids(pair: TokenizerPair) -> None:
    assert pair.source.encode("<unknown 0>") == [pair.source.encode(word)[0] for word in ("<unknown", "0>")]


def test_a_vocabulary_that_goes_on_after_them_is_refused(pair: TokenizerPair, tmp_path: Path) -> None:
    file = tmp_path / "tokenizer.json"
    values = json.loads(pair.source.to_json())
    values["model"]["vocab"]["later"] = len(pair.source)
    file.write_text(json.dumps(values), encoding="utf-8")
    with pytest.raises(ValueError, match="does not end in ids of unknown words"):
        Tokenizer.load(file)


def test_without_slots_nothing_changes() -> None:
    plain = TokenizerPair.train("word", 100, PAIRS, joint=True)
    assert plain.source.unknown_words is None
    assert plain.source.encode("zork") == [UNKNOWN]
    assert plain.words_to_copy("zork") == {}
    with pytest.raises(ValueError, match='slots = 5 are for the tokenizer "word"'):
        Tokenizer.train("bpe", 100, ["the bird"], slots=5)
