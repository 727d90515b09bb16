"""Texts that arrive together are computed together, within the limits."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from regard.serving.dynamic_batches import DynamicBatches, QueueFullError, TooManyTextsError


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
    first = batches.submit(["first"], "a")[0]
    assert recorder.started.wait(30)
    return first


def test_texts_gather_while_a_batch_is_computed() -> None:
    recorder, observed = Recorder(), list[int]()
    batches = DynamicBatches(recorder, size=3, wait=0.0, room=10, observe=lambda texts, seconds: observed.append(texts))
    first = begin(batches, recorder)
    later = [*batches.submit(["b", "c"], "a"), *batches.submit(["d"], "other"), *batches.submit(["e", "f"], "a")]
    assert batches.waiting == 5
    recorder.go.set()
    assert first.result(30) == "firstfirst"
    assert [future.result(30) for future in later] == ["bb", "cc", "dd", "ee", "ff"]
    assert recorder.batches == [(["first"], "a"), (["b", "c", "e"], "a"), (["d"], "other"), (["f"], "a")]
    batches.close()
    assert observed == [1, 3, 1, 1]


def test_a_text_waits_for_others_and_a_full_batch_does_not() -> None:
    recorder = Recorder()
    recorder.go.set()
    batches = DynamicBatches(recorder, size=2, wait=60.0, room=10)  # a test that waited for it would not end
    one = batches.submit(["x"], "a")[0]
    other = batches.submit(["y"], "a")[0]
    assert (one.result(30), other.result(30)) == ("xx", "yy")
    assert recorder.batches == [(["x", "y"], "a")]
    left = batches.submit(["z"], "a")[0]
    batches.close()
    assert left.result(30) == "zz", "what is in the queue is computed at the end"
    with pytest.raises(QueueFullError, match="shutting down"):
        batches.submit(["late"], "a")


def test_errors_and_limits() -> None:
    recorder = Recorder()
    batches = DynamicBatches(recorder, size=4, wait=0.0, room=3)
    first = begin(batches, recorder)
    futures = batches.submit(["bad", "g", "gone"], "a")
    with pytest.raises(QueueFullError, match="the queue has 3 texts, and room for 3"):
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
    for future in batches.submit(["a", "b"], None):
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
    good, first, last, second = batches.submit(["a", bad, "b", bad], None)
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
    assert [batches.submit([text], None)[0].result(30) for text in "ab"] == ["aa", "bb"]
    assert batches.alive
    batches.close()
    assert "a batch was computed and not counted" in caplog.text


def test_more_texts_than_the_queue_ever_holds_are_refused_for_good() -> None:
    batches = DynamicBatches(double_or_fail, size=1, wait=0.0, room=2)
    with pytest.raises(TooManyTextsError, match="3 texts, and the queue of this server has room for 2"):
        batches.submit(["a", "b", "c"], None)
    batches.close()
    assert not batches.alive
