"""Contributions to an answer: attention × gradient of the models that ship, against autograd and silenced runs."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch

import regard
from regard.decoding import answers as answers_module
from regard.viewer.data import library as library_module
from regard.viewer.data.contribution_run import (
    Target,
    backward_run,
    contribution_run,
    pooled_contributions,
    silence,
    trace_answers,
)
from regard.viewer.data.library import Library, installed_models
from regard.viewer.data.tile import Tile
from regard.viewer.limits import RequestError

CASES = [
    ("shakespeare-transformer", "The king is", 3),
    ("opinions-lstm", "the food was not good", 0),
    ("tatoeba-transformer-en-fr", "I like the small cat.", 0),
    ("tatoeba-bahdanau-en-fr", "I like the small cat.", 0),
]


@pytest.fixture(scope="module")
def library() -> Library:
    return Library(models=installed_models())


@pytest.mark.parametrize(("name", "text", "tokens"), CASES)
def test_contributions_of_every_call_add_up(library: Library, name: str, text: str, tokens: int) -> None:
    trace = library.read(name, text, generate=tokens)
    for position in (0, -1):
        run = contribution_run(trace, trace_answers(library, trace, position))
        assert not run.missing
        assert len(run.calls) == len(trace.seen.calls)
        for number, call in run.calls.items():
            assert call.error <= call.budget
            assert call.error < 1e-5
            assert call.contributions.shape == trace.weights(number, 0).shape
            # The weights are those of the trace: of the same text, read at once instead of token by token.
            difference = call.contributions.weights.dense() - trace.weights(number, 0).dense()
            assert float(difference.abs().max()) < 1e-4
    assert any(abs(total) > 1e-3 for call in run.calls.values() for total in call.totals)


def test_contributions_to_a_difference_are_the_difference_of_contributions(library: Library) -> None:
    trace = library.read("shakespeare-transformer", "The king is")
    answers = trace_answers(library, trace, -1)
    run = contribution_run(trace, answers, Target(answers.position, 5, 7))
    one, other = (contribution_run(trace, answers, Target(answers.position, x)) for x in (5, 7))
    assert run.value == pytest.approx(one.value - other.value)
    for number in run.calls:
        c, a, b = (x.calls[number].contributions.dense() for x in (run, one, other))
        torch.testing.assert_close(c, a - b, atol=1e-5, rtol=1e-4)


def test_silencing_a_head_changes_the_answer(library: Library) -> None:
    trace = library.read("shakespeare-transformer", "The king is")
    run = contribution_run(trace, trace_answers(library, trace, -1))
    last = len(trace.seen) - 1
    heads = [(last, head) for head in range(4)]
    values = silence(library, run, trace, heads)
    assert 1 <= len(values) <= 4
    answers = trace_answers(library, trace, -1)
    with regard.watch(answers.model), torch.no_grad():
        again = answers.metric(run.target.answer)(answers.model(**answers.inputs))
    assert float(again[0]) == pytest.approx(run.value, abs=1e-5)
    assert all(abs(value - run.value) > 1e-6 for value in values)


@pytest.mark.parametrize(("name", "text", "tokens"), CASES)
def test_a_run_does_not_keep_its_model(name: str, text: str, tokens: int) -> None:
    library = Library(models=installed_models())
    trace = library.read(name, text, generate=tokens)
    run = contribution_run(trace, trace_answers(library, trace, -1))
    model = weakref.ref(library.loaded(library.model(name)).model)
    del library, trace  # a trace, which is not part of the cache, keeps what its calls were recorded of
    gc.collect()
    assert model() is None
    assert len(run.describe()["answers"]) > 1


def test_heads_are_silenced_after_the_library_dropped_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    library = Library(models=installed_models())
    trace = library.read("shakespeare-transformer", "The king is", generate=3)
    run = contribution_run(trace, trace_answers(library, trace, -1))
    before = silence(library, run, trace, [(0, 0)])
    monkeypatch.setattr(library_module, "LOADED", 1)
    library.loaded(library.model("opinions-lstm"))  # another, which takes the only place
    assert silence(library, run, trace, [(0, 0)]) == pytest.approx(before)


def test_gradients_and_scores_are_counted_and_texts_are_decoded_once(
    library: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    trace = library.read("tatoeba-transformer-en-fr", "I like the small cat.")
    answers = trace_answers(library, trace, -1)
    seen = backward_run(answers)[0]
    run = contribution_run(trace, answers)
    gradients = sum(call.gradient.nbytes for call in seen.calls)
    assert run.nbytes >= seen.nbytes + gradients + run.scores.nbytes
    monkeypatch.setattr(answers_module, "translate", None)  # a second translation would call it
    assert trace_answers(library, trace, 0).inputs["target"].tolist() == answers.inputs["target"].tolist()


def test_tiles_are_signed_maxima_and_means(library: Library) -> None:
    trace = library.read("shakespeare-transformer", "The king is dead")
    run = contribution_run(trace, trace_answers(library, trace, -1))
    c = run.calls[1].contributions[0]
    dense = c.dense()
    pooled = pooled_contributions(c, Tile(0, 0, 15, 15, 8, 8), "max")
    block = dense[4:6, 2:4].flatten()
    assert float(pooled[2, 1]) == pytest.approx(float(block[block.abs().argmax()]))
    mean = pooled_contributions(c, Tile(0, 0, 15, 15, 8, 8), "mean")
    assert float(mean[2, 1]) == pytest.approx(float(block.mean()), rel=1e-4)
    assert bool((pooled < 0).any())


def test_what_cannot_be_explained_says_why(library: Library) -> None:
    trace = library.read("phrasebook-lstmn-en", "He hit me with a")
    with pytest.raises(RequestError, match="no gradient of this answer reaches"):
        contribution_run(trace, trace_answers(library, trace, -1))
    trace = library.read("shakespeare-transformer", "The king")
    with pytest.raises(ValueError, match="no position 99"):
        trace_answers(library, trace, 99)
    with pytest.raises(RequestError, match="no answer 100000"):
        contribution_run(trace, trace_answers(library, trace, -1), Target(7, 100_000))
    trace.made = None
    with pytest.raises(RequestError, match="the model of this trace is not here"):
        trace_answers(library, trace, -1)
