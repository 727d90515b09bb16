"""Contributions over HTTP: the numbers of the library, the limits, and the reasons where there are none."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from regard.attention import Contributions
from regard.viewer import limits
from regard.viewer.data import model_outputs
from regard.viewer.data.contribution_run import contribution_run, trace_answers
from regard.viewer.data.library import Library, installed_models
from regard.viewer.http.application import create_app
from regard.viewer.http.routes import contribution_routes
from regard.viewer.limits import RequestError
from tests.support.viewer_client import error_of, get, json_of, post

if TYPE_CHECKING:
    from fastapi import FastAPI
    from torch import Tensor


@pytest.fixture(scope="module")
def app() -> FastAPI:
    library = Library(models=installed_models())
    library.read("shakespeare-transformer", "The king is", generate=2)
    return create_app(library)


@pytest.fixture(scope="module")
def trace(app: FastAPI) -> str:
    return str(json_of(get(app, "/api/traces"))[0]["id"])


def test_answers_contributions_tiles_and_silenced_heads(app: FastAPI, trace: str) -> None:
    found = json_of(get(app, f"/api/traces/{trace}/answers"))
    library = app.state.jobs.library
    view = library.trace(trace)
    expected = contribution_run(view, trace_answers(library, view, -1))
    assert (found["position"], found["answer"]) == (expected.target.position, expected.target.answer)
    assert found["answers"][0]["id"] == found["answer"]
    assert all(call["kept"] for call in found["calls"])
    chosen = f"position={found['position']}&answer={found['answer']}"
    reply = get(app, f"/api/traces/{trace}/calls/2/contributions?{chosen}&heads=1,3&rows=2:5")
    assert reply.array is not None
    numbers = np.frombuffer(reply.body, "<f4").reshape(reply.array["shape"])
    dense = expected.calls[2].contributions.dense()
    np.testing.assert_allclose(numbers, dense[[1, 3], 2:5].numpy(), atol=1e-6)
    reply = get(
        app,
        f"/api/traces/{trace}/calls/2/contributions/tile?{chosen}&head=1&top=0&left=0&bottom=12&right=12&height=6&width=6",
    )
    assert reply.array is not None
    assert reply.array["shape"] == [6, 6]
    values = json_of(get(app, f"/api/traces/{trace}/silenced?{chosen}&heads=4.0,4.1"))
    assert values["value"] == pytest.approx(found["value"])
    assert 1 <= len(values["values"]) <= 2


def test_a_word_and_the_difference_of_two(app: FastAPI, trace: str) -> None:
    found = json_of(get(app, f"/api/traces/{trace}/answers?position=3&word=a&minus_word=e"))
    pieces = {x["id"]: x["piece"] for x in found["answers"]}
    assert (pieces[found["answer"]], pieces[found["minus"]]) == ("a", "e")
    scores = {x["id"]: x["score"] for x in found["answers"]}
    assert found["value"] == pytest.approx(scores[found["answer"]] - scores[found["minus"]], abs=1e-4)


def test_limits_and_reasons(app: FastAPI, trace: str, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = f"/api/traces/{trace}/answers"
    assert "no position 500" in error_of(get(app, f"{answers}?position=500"), 422)
    assert "no answer 70000" in error_of(get(app, f"{answers}?answer=70000"), 404)
    assert "at most 80" in error_of(get(app, f"{answers}?word={'x' * 81}"), 422)
    assert "first" in error_of(get(app, f"{answers}?minus=3"), 422)
    contributions = f"/api/traces/{trace}/calls/99/contributions?position=0&answer=0"
    assert "no call 99" in error_of(get(app, contributions), 404)
    silenced = f"/api/traces/{trace}/silenced?position=0&answer=0&heads"
    assert "no head 9" in error_of(get(app, f"{silenced}=0.9"), 404)
    assert "heads" in error_of(get(app, f"{silenced}={','.join(['0.0'] * 65)}"), 422)
    monkeypatch.setattr(limits, "EXPLAINED", 4)
    assert "at most 4" in error_of(get(app, f"{answers}?position=1"), 413)
    assert json_of(get(app, "/api/about"))["limits"]["explained"] == 4


def test_only_the_heads_of_the_request_are_computed(app: FastAPI, trace: str, monkeypatch: pytest.MonkeyPatch) -> None:
    computed, tile = [], Contributions.tile

    def record(self: Contributions, *args: Any) -> Tensor:
        result = tile(self, *args)
        computed.append(result.numel())
        return result

    monkeypatch.setattr(Contributions, "tile", record)
    reply = get(app, f"/api/traces/{trace}/calls/2/contributions?position=1&answer=2&heads=3,1,3&rows=2:5")
    assert reply.array is not None
    assert reply.array["shape"][:2] == [3, 3]
    assert sum(computed) == np.prod(reply.array["shape"])


def test_answers_of_a_cached_run_need_no_model(app: FastAPI, trace: str, monkeypatch: pytest.MonkeyPatch) -> None:
    path = f"/api/traces/{trace}/answers?position=2&answer=4&minus=5"
    first = json_of(get(app, path))
    monkeypatch.setattr(contribution_routes, "trace_answers", None)  # calling it would fail
    assert json_of(get(app, path)) == first


def test_a_classifier_has_one_position() -> None:
    library = Library(models=installed_models())
    view = library.read("opinions-lstm", "the food was not good")
    app = create_app(library)
    for path in ("answers?", "calls/0/contributions?"):
        url = f"/api/traces/{view.id}/{path}answer=0&position="
        assert get(app, f"{url}0").status == 200
        assert "no position 999" in error_of(get(app, f"{url}999"), 422)


def test_missing_contributions_of_a_classifier_have_a_reason(app: FastAPI, monkeypatch: pytest.MonkeyPatch) -> None:
    body = {"text": "the food was not good", "models": ["opinions-lstm"]}

    def refuse(*args: object) -> None:
        raise RequestError(422, "no gradient reaches it")

    monkeypatch.setattr(model_outputs, "backward_run", refuse)
    (result,) = json_of(post(app, "/api/classify", body))["classifications"]
    assert (result["contributions"], result["contributions_missing"]) == (None, "no gradient reaches it")


def test_what_each_word_contributed_to_each_label(app: FastAPI) -> None:
    (found,) = json_of(post(app, "/api/classify", {"text": "the food was not good", "models": ["opinions-lstm"]}))[
        "classifications"
    ]
    assert set(found["contributions"]) == set(found["probabilities"])
    assert all(len(x) == len(found["words"]) for x in found["contributions"].values())
    assert found["contribution_error"] <= found["contribution_budget"]
