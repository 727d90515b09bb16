"""The answers a model chooses from: their scores are the model's own, their names lead back to them."""

from __future__ import annotations

import pytest
import torch

from regard.decoding import load_model_and_tokenizers
from regard.decoding.answers import check_position, classifier_answers, translator_answers, writer_answers
from regard.decoding.classification import classify


@torch.no_grad()
def test_the_next_token_of_a_writer() -> None:
    loaded = load_model_and_tokenizers.load("shakespeare-transformer")
    ids = loaded.tokenizers.target.continued("My lord, the nigh")
    answers = writer_answers(loaded, ids)
    best = int(answers.scores(answers.model(**answers.inputs))[0].argmax())
    assert answers.names([best]) == ["t"]
    assert answers.find("t") == best
    assert answers.position == len(ids) - 1
    assert float(answers.metric(best, best)(answers.model(**answers.inputs))) == 0
    with pytest.raises(ValueError, match="is no word"):
        answers.find("  ")


@torch.no_grad()
def test_the_label_of_a_classifier() -> None:
    loaded = load_model_and_tokenizers.load("opinions-lstm")
    answers = classifier_answers(loaded, "the food was not good")
    shares = answers.scores(answers.model(**answers.inputs))[0].double().softmax(-1)
    (expected,) = classify(loaded.model, loaded.tokenizers, ["the food was not good"])
    for label, share in expected.probabilities.items():
        assert float(shares[answers.find(label)]) == pytest.approx(share, abs=1e-6)
    with pytest.raises(ValueError, match="no label 'blue'"):
        answers.find("blue")


@torch.no_grad()
def test_each_token_of_a_greedy_translation_is_the_likeliest() -> None:
    loaded = load_model_and_tokenizers.load("tatoeba-transformer-en-fr")
    pieces = []
    for position in range(translator_answers(loaded, "I like the small cat.").positions):
        answers = translator_answers(loaded, "I like the small cat.", position)
        pieces += answers.names([int(answers.scores(answers.model(**answers.inputs))[0].argmax())])
    assert pieces[-1] == "</s>"
    with pytest.raises(ValueError, match="no position 9"):
        check_position(9, 3)
