"""The HTTP API of `regard serve`: the answers of the model, alignment, limits, token, health and metrics."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
import torch

pytest.importorskip("fastapi", reason="needs the extra `view`")

from regard.decoding import load_model_and_tokenizers, translate
from regard.seeing.alignment.word_level_weights import translation_word_weights
from regard.serving import serve_limits
from regard.serving.serve_application import create_serve_app
from regard.serving.served_model import ServedModel
from regard.viewer.http.server import AppServer, running

if TYPE_CHECKING:
    from collections.abc import Iterator

MODEL = "phrasebook-bahdanau-en-fr"
TEXTS = ["the red car", "a small house", "the dog sees the cat", "two birds", "the old woman reads a book"]


@pytest.fixture(scope="module")
def server() -> Iterator[AppServer]:
    torch.set_num_threads(1)
    make = partial(create_serve_app, ServedModel(MODEL), batch=8, wait=0.2, queue=20)
    with running(AppServer(make, token="secret")) as server:
        yield server


def ask(server: AppServer, path: str, body: Any = None, token: str = "secret") -> tuple[int, Any]:
    data = None if body is None else json.dumps(body).encode()
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    request = urllib.request.Request(server.address + path, data, headers)
    try:
        with urllib.request.urlopen(request, timeout=60) as response:
            status, content, kind = response.status, response.read().decode(), response.headers["Content-Type"]
    except urllib.error.HTTPError as error:
        status, content, kind = error.code, error.read().decode(), error.headers["Content-Type"]
    return status, json.loads(content) if kind == "application/json" else content


def metric(server: AppServer, name: str) -> float:
    lines = ask(server, "/metrics")[1].splitlines()
    return float(next(line.rsplit(" ", 1)[1] for line in lines if line.startswith(f"{name} ")))


def test_requests_that_arrive_together_share_a_batch_and_get_the_models_answers(server: AppServer) -> None:
    torch.set_num_threads(1)
    loaded = load_model_and_tokenizers.load(MODEL)
    expected = [each.text for each in translate(loaded.model, loaded.tokenizers, TEXTS, beams=2)]
    batches, texts = metric(server, "regard_batch_size_count"), metric(server, "regard_texts_total")
    with ThreadPoolExecutor(len(TEXTS)) as pool:
        answers = list(pool.map(lambda text: ask(server, "/translate", {"texts": [text], "beams": 2}), TEXTS))
    assert [status for status, _ in answers] == [200] * len(TEXTS)
    assert [answer["translations"][0]["text"] for _, answer in answers] == expected
    assert metric(server, "regard_texts_total") - texts == len(TEXTS)
    assert metric(server, "regard_batch_size_count") - batches < len(TEXTS)


def test_alignment_and_several_hypotheses_are_returned_on_request(server: AppServer) -> None:
    status, answer = ask(server, "/translate", {"texts": TEXTS[:2], "alignment": True, "best": 3})
    assert status == 200
    loaded = load_model_and_tokenizers.load(MODEL)
    how: Any = {"beams": 5, "best": 3, "weights": True}
    for item, expected in zip(
        answer["translations"], translate(loaded.model, loaded.tokenizers, TEXTS[:2], **how), strict=True
    ):
        weights, target, source = translation_word_weights(expected)
        assert (item["alignment"]["target"], item["alignment"]["source"]) == (target, source)
        torch.testing.assert_close(torch.tensor(item["alignment"]["weights"]), weights.float(), rtol=0, atol=1e-4)
        assert [hypothesis["text"] for hypothesis in item["hypotheses"]] == expected.texts
    plain = ask(server, "/translate", {"texts": TEXTS[:1]})[1]["translations"][0]
    assert "alignment" not in plain


@pytest.mark.parametrize(
    ("body", "status", "reason"),
    [
        ({"texts": []}, 422, "texts: List should have at least 1 item"),
        ({"texts": [" "]}, 422, "texts.0: String should match pattern"),
        ({"texts": ["a"] * (serve_limits.TEXTS + 1)}, 422, "texts: List should have at most"),
        ({"texts": ["a" * (serve_limits.CHARACTERS + 1)]}, 422, "texts.0: String should have at most"),
        ({"texts": ["a"], "beams": 1000}, 422, "beams: Input should be less than or equal to"),
        ({"texts": ["a"], "beam": 1}, 422, "beam: Extra inputs are not permitted"),
        ({"texts": ["a"] * 21}, 503, "there is room for 20"),
        ({"texts": ["a" * serve_limits.BODY]}, 413, "at most 1,048,576 are allowed"),
    ],
    ids=lambda value: str(value)[:20] if isinstance(value, str | int) else "",
)
def test_a_request_beyond_a_limit_is_refused_with_a_reason(
    server: AppServer, body: Any, status: int, reason: str
) -> None:
    actual, answer = ask(server, "/translate", body)
    assert actual == status, answer
    assert reason in answer["error"]


def test_the_token_is_needed_except_for_health(server: AppServer) -> None:
    status, answer = ask(server, "/translate", {"texts": ["a"]}, token="wrong")
    assert (status, answer["error"]) == (
        401,
        "the token is missing or wrong; open the whole address that regard serve printed",
    )
    assert ask(server, "/metrics", token="wrong")[0] == 401
    assert ask(server, "/health", token="wrong") == (200, {"status": "ok", "model": MODEL, "task": "translate"})


def test_the_api_describes_itself(server: AppServer) -> None:
    paths = ask(server, "/openapi.json")[1]["paths"]
    assert set(paths) == {"/translate", "/health", "/metrics"}
    status, answer = ask(server, "/classify", {"texts": ["a"]})
    assert status == 404
    assert "GET /openapi.json lists the routes" in answer["error"]


def test_metrics_count_requests_by_status(server: AppServer) -> None:
    ask(server, "/translate", {"texts": []})
    text = ask(server, "/metrics")[1]
    assert 'regard_requests_total{route="/translate",status="422"}' in text
    assert "regard_queue_length 0" in text
