"""The answers a model chooses from: their scores are the model's own, their names lead back to them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from regard import load_trace
from regard.data import LabelSet, Tokenizer, TokenizerPair
from regard.data.tokenizer_pair import make_reader
from regard.decoding import model_folders
from regard.decoding.answer_scores import (
    check_position,
    classifier_answers,
    reads_file,
    translator_answers,
    watch_file,
    watch_text,
    writer_answers,
)
from regard.decoding.classification import classify
from regard.decoding.model_folders import Pretrained
from regard.models import (
    Classifier,
    ClassifierConfig,
    EncoderDecoder,
    EncoderDecoderConfig,
    HeadConfig,
    LSTMNDecoderConfig,
    LSTMNEncoderConfig,
    NoEncoderConfig,
    RecurrentDecoderConfig,
    RecurrentEncoderConfig,
)
from regard.seeing.patterns import row_and_column_tokens
from regard.viewer.trace_view import TraceView


@torch.no_grad()
def test_the_next_token_of_a_writer() -> None:
    loaded = model_folders.load("shakespeare-transformer")
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
    loaded = model_folders.load("opinions-lstm")
    answers = classifier_answers(loaded, "the food was not good")
    shares = answers.scores(answers.model(**answers.inputs))[0].double().softmax(-1)
    (expected,) = classify(loaded.model, loaded.tokenizers, ["the food was not good"])
    for label, share in expected.probabilities.items():
        assert float(shares[answers.find(label)]) == pytest.approx(share, abs=1e-6)
    with pytest.raises(ValueError, match="no label 'blue'"):
        answers.find("blue")


@torch.no_grad()
def test_each_token_of_a_greedy_translation_is_the_likeliest() -> None:
    loaded = model_folders.load("tatoeba-transformer-en-fr")
    pieces = []
    for position in range(translator_answers(loaded, "I like the small cat.").positions):
        answers = translator_answers(loaded, "I like the small cat.", position)
        pieces += answers.names([int(answers.scores(answers.model(**answers.inputs))[0].argmax())])
    assert pieces[-1] == "</s>"
    with pytest.raises(ValueError, match="no position 9"):
        check_position(9, 3)


SENTENCE = "the fbi is chasing a criminal"
WORDS = SENTENCE.split()


def lstmn_language_model() -> Pretrained:
    tokenizer = Tokenizer.train("word", 20, [SENTENCE])
    torch.manual_seed(0)
    decoder = LSTMNDecoderConfig(fusion="none", embedding=8, width=8, layers=1)
    config = EncoderDecoderConfig(0, len(tokenizer), NoEncoderConfig(), decoder)
    reader = make_reader(kind="none")
    return Pretrained(EncoderDecoder(config).eval(), TokenizerPair(reader, tokenizer), Path(), None, {})


def lstmn_classifier() -> Pretrained:
    tokenizer = Tokenizer.train("word", 20, [SENTENCE])
    torch.manual_seed(0)
    encoder = LSTMNEncoderConfig(embedding=8, width=8)
    config = ClassifierConfig(len(tokenizer), 2, encoder, HeadConfig(pooling="mean"))
    labels = LabelSet(["no", "yes"])
    return Pretrained(Classifier(config).eval(), TokenizerPair(tokenizer, labels), Path(), None, {})


@pytest.mark.parametrize(("make", "tokens"), [(lstmn_language_model, WORDS), (lstmn_classifier, [*WORDS, "</s>"])])
def test_each_row_of_an_lstmn_is_a_word_and_each_column_an_earlier_one(make: object, tokens: list[str]) -> None:
    seen, _ = watch_text(make(), SENTENCE)  # type: ignore[operator]
    [call] = [call for call in seen if call.kind == "self"]
    assert row_and_column_tokens(seen, call) == (tokens[1:], tokens[:-1])
    described = TraceView.of(seen).describe()
    drawn = next(each for each in described["calls"] if each["kind"] == "self")
    assert described["sides"][drawn["query_side"]] == tokens[1:]
    assert described["sides"][drawn["key_side"]] == tokens[:-1]


def test_a_captioner_reads_a_picture_and_its_columns_are_cells() -> None:
    loaded = model_folders.load("scenes-soft")
    assert reads_file(loaded)
    seen, grid = watch_file(loaded, "scene:test:0:7")
    rows, columns = row_and_column_tokens(seen, seen[0])
    assert grid == (8, 8)
    assert columns[:9] == ["0,0", "0,1", "0,2", "0,3", "0,4", "0,5", "0,6", "0,7", "1,0"]
    assert "circles" in rows
    described = TraceView.of(seen, grid=grid).describe()
    assert described["sides"][described["calls"][0]["query_side"]][: len(rows)] == rows


def test_a_text_model_reads_no_file() -> None:
    assert not reads_file(lstmn_classifier())


def test_a_trace_of_a_pointer_has_the_copied_words_and_p_gen(tmp_path: Path) -> None:
    tokenizer = Tokenizer.train("word", 20, [SENTENCE], slots=5)
    torch.manual_seed(0)
    parts = RecurrentEncoderConfig(embedding=8, width=4), RecurrentDecoderConfig(embedding=8, width=8, copy=True)
    model = EncoderDecoder(EncoderDecoderConfig(len(tokenizer), len(tokenizer), *parts, slots=5)).eval()
    with torch.no_grad():
        model.decoder.gate.bias.fill_(-1e3)  # always copy
    loaded = Pretrained(model, TokenizerPair(tokenizer, tokenizer), Path(), None, {})
    seen, _ = watch_text(loaded, "zork 4711")
    assert seen.sides["source"] == ["zork", "4711", "</s>"]
    assert set(seen.sides["target"]) <= {"zork", "4711", "</s>"}
    assert seen.sides["generation"] == ["0.0000"] * len(seen.sides["target"])
    seen.save(tmp_path / "trace")
    assert load_trace(tmp_path / "trace").sides == seen.sides
