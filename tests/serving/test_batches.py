"""Texts that arrive together are computed together, within the limits."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

import pytest
import torch

from regard.decoding import load_model_and_tokenizers
from regard.decoding.classification import classify
from regard.serving.batches import (
    DynamicBatches,
    QueuedRequest,
    QueuedText,
    QueueFullError,
    RefusedTextError,
    ServedModel,
    ServeSettings,
    TooManyTextsError,
    listed_alignment,
)
from tests.support.small_translators import TEXTS, save_exported_run

if TYPE_CHECKING:
    from pathlib import Path


class Recorder:
    """Doubles texts. The first batch waits until `go` is set, so that others gather meanwhile."""

    def __init__(self) -> None:
        self.batches: list[tuple[list[str], Any]] = []
        self.started, self.go = threading.Event(), threading.Event()

    def __call__(self, texts: list[str], settings: Any) -> list[Any]:
        self.batches.append((texts, settings))
        self.started.set()
        assert self.go.wait(30)
        return [ValueError(text) if text == "bad" else text * 2 for text in texts]


def begin(batches: DynamicBatches, recorder: Recorder) -> Any:
    """A first text that is being computed."""
    first = batches.submit(["first"], "a").results[0]
    assert recorder.started.wait(30)
    return first


def test_texts_gather_while_a_batch_is_computed() -> None:
    recorder, observed = Recorder(), list[int]()
    batches = DynamicBatches(recorder, size=3, wait=0.0, room=10, observe=lambda texts, seconds: observed.append(texts))
    first = begin(batches, recorder)
    requests = [batches.submit(["b", "c"], "a"), batches.submit(["d"], "other"), batches.submit(["e", "f"], "a")]
    assert batches.waiting == 5
    recorder.go.set()
    assert first.result(30) == "firstfirst"
    texts = [future.result(30) for request in requests for future in request.results]
    assert texts == ["bb", "cc", "dd", "ee", "ff"]
    assert recorder.batches == [(["first"], "a"), (["b", "e", "c"], "a"), (["d"], "other"), (["f"], "a")]
    batches.close()
    assert observed == [1, 3, 1, 1]


def test_a_text_waits_for_others_and_a_full_batch_does_not() -> None:
    recorder = Recorder()
    recorder.go.set()
    batches = DynamicBatches(recorder, size=2, wait=60.0, room=10)  # a test that waited for it would not end
    one = batches.submit(["x"], "a").results[0]
    other = batches.submit(["y"], "a").results[0]
    assert (one.result(30), other.result(30)) == ("xx", "yy")
    assert recorder.batches == [(["x", "y"], "a")]
    left = batches.submit(["z"], "a").results[0]
    batches.close()
    assert left.result(30) == "zz", "what is in the queue is computed at the end"
    with pytest.raises(QueueFullError, match="shutting down"):
        batches.submit(["late"], "a")


def test_errors_and_limits() -> None:
    recorder = Recorder()
    batches = DynamicBatches(recorder, size=4, wait=0.0, room=3)
    first = begin(batches, recorder)
    futures = batches.submit(["bad", "g", "gone"], "a").results
    with pytest.raises(QueueFullError, match="busy: its queue has 3 texts, and room for 3"):
        batches.submit(["more"], "a")
    futures[2].cancel()
    recorder.go.set()
    assert first.result(30) == "firstfirst"
    with pytest.raises(ValueError, match="bad"):
        futures[0].result(30)
    assert futures[1].result(30) == "gg"
    batches.close()
    assert recorder.batches[1] == (["bad", "g"], "a"), "what was cancelled is not computed"


def test_an_error_of_the_model_is_the_result_of_every_text() -> None:
    def broken(texts: list[str], settings: Any) -> list[Any]:
        raise MemoryError("no room")

    batches = DynamicBatches(broken, size=4, wait=0.0, room=4)
    for future in batches.submit(["a", "b"], None).results:
        with pytest.raises(MemoryError, match="no room"):
            future.result(30)
    batches.close()


class Panic(BaseException):
    """What an extension in Rust raises when it panics: no Exception."""


def double_or_fail(texts: list[str], settings: Any) -> list[Any]:
    if "nan" in texts:
        raise ValueError("the logits are NaN")
    if "panic" in texts:
        raise Panic("index out of bounds")
    return [text * 2 for text in texts]


@pytest.mark.parametrize(("bad", "message"), [("nan", "the logits are NaN"), ("panic", "Panic: index out of bounds")])
def test_a_text_that_fails_leaves_the_others_of_its_batch_their_results(bad: str, message: str) -> None:
    observed = list[int]()
    batches = DynamicBatches(
        double_or_fail, size=4, wait=60.0, room=4, observe=lambda texts, seconds: observed.append(texts)
    )
    good, first, last, second = batches.submit(["a", bad, "b", bad], None).results
    assert (good.result(30), last.result(30)) == ("aa", "bb")
    errors = [first.exception(30), second.exception(30)]
    assert all(isinstance(error, Exception) and message in str(error) for error in errors)
    assert errors[0] is not errors[1], "each is raised in a task of its own"
    assert batches.alive
    batches.close()
    assert observed == [4], "a text is counted once"


def test_an_error_of_the_observer_does_not_end_the_thread(caplog: pytest.LogCaptureFixture) -> None:
    def observe(texts: int, seconds: float) -> None:
        raise ZeroDivisionError

    batches = DynamicBatches(double_or_fail, size=1, wait=0.0, room=4, observe=observe)
    assert [batches.submit([text], None).results[0].result(30) for text in "ab"] == ["aa", "bb"]
    assert batches.alive
    batches.close()
    assert "a batch was computed and not counted" in caplog.text


def test_more_texts_than_the_queue_ever_holds_are_refused_for_good() -> None:
    batches = DynamicBatches(double_or_fail, size=1, wait=0.0, room=2)
    with pytest.raises(TooManyTextsError, match="3 texts, and the queue of this server has room for 2"):
        batches.submit(["a", "b", "c"], None)
    batches.close()
    assert not batches.alive


def test_a_batch_has_at_most_so_many_tokens_with_padding() -> None:
    recorder = Recorder()
    batches = DynamicBatches(recorder, size=64, wait=0.0, room=100, tokens=20)
    begin(batches, recorder)
    request = batches.submit(["10", "3", "50", "5", "4"], "a", [10, 3, 50, 5, 4])
    recorder.go.set()
    assert [future.result(30) for future in request.results] == ["1010", "33", "5050", "55", "44"]
    batches.close()
    assert [texts for texts, _ in recorder.batches[1:]] == [["3", "4", "5"], ["10"], ["50"]]


def test_a_batch_that_is_full_of_tokens_does_not_wait_for_more_texts() -> None:
    recorder = Recorder()
    recorder.go.set()
    batches = DynamicBatches(recorder, size=64, wait=60.0, room=100, tokens=20)  # a test that waited would not end
    request = batches.submit(["p", "q", "r"], "a", [10, 10, 10])
    assert [future.result(30) for future in request.results[:2]] == ["pp", "qq"]
    batches.close()


def test_requests_take_turns() -> None:
    """A text that arrives while a large request is computed does not wait for all of its texts."""
    recorder = Recorder()
    batches = DynamicBatches(recorder, size=64, wait=0.0, room=100, tokens=20)
    large = batches.submit(["long"] * 4, "a", [20] * 4)
    assert recorder.started.wait(30)
    short = batches.submit(["short"], "a", [2])
    second = batches.submit(["second"] * 2, "b", [20] * 2)
    recorder.go.set()
    for request in (large, short, second):
        assert all(future.result(30) for future in request.results)
    batches.close()
    order = [texts for texts, _ in recorder.batches]
    assert order == [["long"], ["short"], ["second"], ["long"], ["second"], ["long"], ["long"]]


def test_a_cancelled_request_gives_its_room_back() -> None:
    recorder = Recorder()
    batches = DynamicBatches(recorder, size=1, wait=0.0, room=3)
    begin(batches, recorder)
    left = batches.submit(["p", "q", "r"], "a")
    for future in left.results:
        future.cancel()
    other = batches.submit(["s", "t"], "a")
    recorder.go.set()
    assert [future.result(30) for future in other.results] == ["ss", "tt"]
    batches.close()
    assert [texts for texts, _ in recorder.batches] == [["first"], ["s"], ["t"]]


def test_a_request_is_larger_than_a_time_if_it_needs_more_without_others() -> None:
    request = QueuedRequest([QueuedText("x", 10) for _ in range(4)], "a")
    assert not request.larger_than(60.0), "nothing of it was computed: other requests took the time"
    request.computed_tokens, request.computed_seconds = 20, 31.0
    assert request.larger_than(60.0)
    assert not request.larger_than(62.0)
    request = QueuedRequest([QueuedText("x", 10)], "a", running_since=time.monotonic() - 50)
    assert request.larger_than(60.0), "one text alone takes most of it"


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
