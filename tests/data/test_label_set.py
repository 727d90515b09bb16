"""Labels: a closed set of names; what is not in it is named with its place."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytest.importorskip("tokenizers")

from regard.data import EncodedCorpus, LabelSet, Pair, Tokenizer, TokenizerPair


def test_they_are_sorted_numbers_as_numbers() -> None:
    assert LabelSet.train(["10", "9", "-1"]).names == ["-1", "9", "10"]
    assert LabelSet.train(["b", "a b"]).names == ["a b", "b"]
    assert LabelSet.train(["²", "3", "--5"]).names == ["--5", "3", "²"]  # digits to Unicode, no numbers to Python


def test_one_number_spelt_in_several_ways_has_one_order() -> None:
    """Of a set, whose order another process draws anew."""
    code = "from regard.data import LabelSet; print(*LabelSet.train(['1', '01', '001', '0001', '-2']).names)"
    for seed in "123":
        done = subprocess.run(
            [sys.executable, "-c", code], env={**os.environ, "PYTHONHASHSEED": seed}, capture_output=True, text=True
        )
        assert done.stdout == "-2 0001 001 01 1\n", done.stderr


def test_an_unknown_label_is_reported_with_its_row_or_skipped() -> None:
    known = [Pair("a word", "good", 0), Pair("another", "bad", 1)]
    sides = TokenizerPair(Tokenizer.train("word", 20, [pair.source for pair in known]), LabelSet.train(["good", "bad"]))
    pairs = [*known, Pair("a word", "middling", 2, "reviews.tsv:3")]
    with pytest.raises(
        ValueError, match=r"reviews\.tsv:3: no label is called 'middling'; the training data has bad, go"
    ):
        EncodedCorpus.build(pairs, sides)
    with pytest.raises(ValueError, match="is called 'ab ab ab ab ab ab ab ab ab ab ab ab ab a…'; the training"):
        EncodedCorpus.build([Pair("a word", "ab " * 20, 0)], sides)
    encoded = EncodedCorpus.build(pairs, sides, on_bad="skip")
    assert encoded.rows.tolist() == [0, 1]
    assert "middling" in encoded.about.unreadable[0]


def test_one_label_is_no_choice() -> None:
    with pytest.raises(ValueError, match="a classifier needs 2"):
        LabelSet(["only"])
