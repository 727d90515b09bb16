"""Models of other tasks than translation."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

from regard.decoding import load_model_and_tokenizers
from regard.decoding.classification import classify
from regard.serving.served_model import RefusedTextError, ServedModel, ServeSettings, listed_alignment
from tests.support.small_translators import TEXTS, save_exported_run

if TYPE_CHECKING:
    from pathlib import Path


def test_labels_with_weights() -> None:
    served = ServedModel("opinions-lstm")
    texts = ["a wonderful film", "dull and far too long", " "]
    answers = served(texts, ServeSettings(weights=True))
    loaded = load_model_and_tokenizers.load("opinions-lstm")
    for answer, expected in zip(
        answers[:2], classify(loaded.model, loaded.tokenizers, texts[:2], weights=True), strict=True
    ):
        assert isinstance(answer, dict)
        assert answer["label"] == expected.label
        assert answer["probabilities"] == pytest.approx(expected.probabilities, abs=1e-5)
        assert expected.weights is not None
        assert len(answer["alignment"]["source"]) == len(answer["alignment"]["weights"]) == len(expected.weights)
        torch.testing.assert_close(answer["alignment"]["weights"], expected.weights, rtol=0, atol=1e-4)
        listed = listed_alignment(answer)["alignment"]["weights"]
        assert listed == [round(weight, 5) for weight in expected.weights.double().tolist()]
    assert isinstance(answers[2], RefusedTextError)


def test_ctranslate2_answers_as_torch_does(tmp_path: Path) -> None:
    pytest.importorskip("ctranslate2", reason="needs the extra `export`")
    run, texts = str(save_exported_run(tmp_path / "run")), [text for text in TEXTS if text]
    torch_answers, answers = (
        ServedModel(run, engine=engine)(texts, ServeSettings(beams=1)) for engine in ("torch", "ctranslate2")
    )
    for expected, answer in zip(torch_answers, answers, strict=True):
        assert isinstance(expected, dict)
        assert isinstance(answer, dict)
        assert answer["text"] == expected["text"]


def test_a_model_without_attention_has_no_alignment() -> None:
    answer = ServedModel("phrasebook-seq2seq-en-fr")(["the red car"], ServeSettings(weights=True))[0]
    assert isinstance(answer, dict)
    assert answer["alignment"] is None


def test_alignment_costs_one_hypothesis_of_each_text() -> None:
    """The weights of 16 hypotheses of long texts take gigabytes, and the answer has those of the best alone."""
    served = ServedModel("phrasebook-bahdanau-en-fr")
    rows: list[int] = []
    whole_passes = served.loaded.model.decoder.register_forward_pre_hook(  # the search calls `step`
        lambda module, inputs: rows.append(len(inputs[0]))
    )
    answers = served(["the red car", "a small house"], ServeSettings(best=4, weights=True))
    whole_passes.remove()
    assert rows == [2]
    for answer in answers:
        assert isinstance(answer, dict)
        assert len(answer["hypotheses"]) == 4
        assert answer["alignment"]["target"] == [*answer["text"].split(), "</s>"]


@pytest.mark.parametrize("name", ["shakespeare-transformer", "scenes-soft", "digits-cnn"])
def test_models_that_read_no_text_or_write_freely_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match=name):
        ServedModel(name)
