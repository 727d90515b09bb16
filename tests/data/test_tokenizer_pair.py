"""Both formulas of inverse document frequency."""

from __future__ import annotations

import math
import os
import subprocess
import sys

import numpy as np
import pytest
import torch

from regard.data import EncodedCorpus, LabelSet, Pair, Tokenizer, TokenizerPair
from regard.data.tokenizer_pair import document_counts, inverse_document_frequency
from regard.models import Classifier, ClassifierConfig
from regard.models.classifier import HeadConfig
from regard.models.encoders import BagEncoderConfig


def test_plain_is_log_of_n_over_n_j_and_smoothed_is_never_zero() -> None:
    counts = np.array([8, 1, 0])
    assert np.allclose(inverse_document_frequency(counts, 8, "plain"), [0, math.log(8), math.log(8)])
    assert np.allclose(inverse_document_frequency(counts, 8, "smoothed"), [1, math.log(9 / 2) + 1, math.log(9) + 1])


def test_a_word_counts_once_per_document_in_any_case() -> None:
    assert document_counts(["David, david!", "don't ask David"]) == {"david": 2, "don't": 1, "ask": 1}


def test_a_text_whose_words_are_all_common_gets_no_weights() -> None:
    """With the plain formula Σ idf may be 0."""
    config = ClassifierConfig(6, 2, BagEncoderConfig(), HeadConfig(pooling="static", idf="plain"))
    model = Classifier(config).eval()
    assert model.static is not None
    model.static.idf.copy_(torch.tensor([0.0, 0, 0, 0, 0, 1]))
    source, lengths = torch.tensor([[4, 4], [4, 5]]), torch.tensor([2, 2])
    output = model(source, lengths, weights=True)
    assert output.weights.tolist() == [[0, 0], [0, 1]]
    rarity = model.rarity(source, lengths)
    assert rarity is not None
    assert rarity.tolist() == [[0, 0], [0, 1]]


pytest.importorskip("tokenizers")


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
