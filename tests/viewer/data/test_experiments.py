"""Experiments on models: the next tokens are the model's own, and a silenced head changes what comes after it."""

from __future__ import annotations

import pytest

from regard.decoding import load_model_and_tokenizers
from regard.decoding.text_generation import generate
from regard.viewer.data.experiments import next_tokens, what_if
from regard.viewer.data.library import Library, installed_models
from regard.viewer.limits import RequestError

TEXT = "My lord, the night is"


@pytest.fixture(scope="module")
def library() -> Library:
    return Library(models=installed_models())


def test_next_tokens_at_a_temperature(library: Library) -> None:
    model = library.models["shakespeare-transformer"]
    loaded = load_model_and_tokenizers.load(model.name)
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
    with pytest.raises(RequestError, match="nothing was changed"):
        what_if(library, model, TEXT, {}, [])
    with pytest.raises(RequestError, match="no call 'nowhere'"):
        what_if(library, model, TEXT, {"nowhere": [0]}, [])
