"""Contributions to an answer: attention × gradient of the models that ship, against autograd and silenced runs."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch

import regard
from regard.decoding import answer_scores as answers_module
from regard.decoding import model_folders
from regard.decoding.generation import generate
from regard.viewer import library as library_module
from regard.viewer.answer_contributions import (
    Target,
    backward_run,
    contribution_run,
    next_tokens,
    pooled_contributions,
    silence,
    trace_answers,
    what_if,
)
from regard.viewer.guard import RequestError
from regard.viewer.library import Library, installed_models
from regard.viewer.tiles import Tile

CASES = [
    ("shakespeare-transformer", "The king is", 3),
    ("opinions-lstm", "the food was not good", 0),
    ("phrasebook-lstmn-en", "He hit me with a", 0),
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
    trace = library.read("shakespeare-transformer", "The king")
    with pytest.raises(ValueError, match="no position 99"):
        trace_answers(library, trace, 99)
    with pytest.raises(RequestError, match="no answer 100000"):
        contribution_run(trace, trace_answers(library, trace, -1), Target(7, 100_000))
    trace.made = None
    with pytest.raises(RequestError, match="the model of this trace is not here"):
        trace_answers(library, trace, -1)


TEXT = "My lord, the night is"


def test_next_tokens_at_a_temperature(library: Library) -> None:
    model = library.models["shakespeare-transformer"]
    loaded = model_folders.load(model.name)
    written = next(iter(generate(loaded.model, loaded.tokenizers.target, "My lord, the nigh", tokens=1)))
    best = next_tokens(library, model, "My lord, the nigh")
    assert best[0]["piece"] == written == "t"
    assert sum(x["share"] for x in best) <= 1
    cold, warm = (next_tokens(library, model, TEXT, temperature=t)[0]["share"] for t in (0.3, 3.0))
    assert cold > next_tokens(library, model, TEXT)[0]["share"] > warm


def test_a_silenced_head_changes_what_follows(library: Library) -> None:
    model = library.models["shakespeare-transformer"]
    answer = what_if(library, model, TEXT, {"decoder.layers.2.attention": [0]}, [])
    assert answer["before"] == next_tokens(library, model, TEXT)
    assert answer["after"] != answer["before"]
    changes = {(x["layer"], x["head"]): x["change"] for x in answer["heads"]}
    assert (
        min(layer for layer, _ in changes if changes[layer, _] > 0) == 3
    )  # layers up to the silenced one are as before
    assert list(changes.values()) == sorted(changes.values(), reverse=True)
    trace = library.trace(answer["trace"])
    assert "without head 0 of decoder.layers.2.attention" in trace.title


def test_classifiers_and_translators_are_watched(library: Library) -> None:
    """As `regard see` and "Type a sentence" run them: rows and columns are labelled by words."""
    view = library.read("opinions-lstm", "The soup was not bad.")
    (call,) = view.describe()["calls"]
    sides = view.describe()["sides"]
    assert sides[call["key_side"]][:2] == ["▁the", "▁soup"]
    assert sides[call["query_side"]][0] in {"negative", "neutral", "positive"}
    answer = what_if(
        library, library.models["tatoeba-transformer-en-fr"], "I am tired.", {"encoder.layers.0.attention": [1]}, []
    )
    assert answer["before"][0]["piece"]


def test_what_cannot_be_changed_is_refused(library: Library) -> None:
    model = library.models["shakespeare-transformer"]
    with pytest.raises(ValueError, match="nothing to ablate"):
        what_if(library, model, TEXT, {}, [])
    with pytest.raises(ValueError, match="nothing was ablated in nowhere"):
        what_if(library, model, TEXT, {"nowhere": [0]}, [])
