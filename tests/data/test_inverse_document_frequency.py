"""Both formulas of inverse document frequency."""

from __future__ import annotations

import math

import numpy as np
import torch

from regard.data.inverse_document_frequency import document_counts, inverse_document_frequency
from regard.models import Classifier, ClassifierConfig
from regard.models.classifier import HeadConfig
from regard.models.encoders.sequences import BagEncoderConfig


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
