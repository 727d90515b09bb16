"""The text format of Prometheus, as its documentation defines it."""

from __future__ import annotations

import asyncio
import json
import threading
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any

import httpx
import pytest
import torch

from regard.decoding import load_model_and_tokenizers, translate
from regard.decoding.translation import ON_CPU
from regard.seeing.align import translation_word_weights
from regard.serving import application
from regard.serving.application import (
    CounterMetric,
    HistogramMetric,
    RequestCounter,
    ServeMetrics,
    create_serve_app,
    gauge_lines,
)
from regard.serving.batches import ServedModel, ServeSettings, listed_alignment
from regard.viewer.server import AppServer, running

if TYPE_CHECKING:
    from collections.abc import Iterator

    from starlette.types import Message, Receive, Scope, Send


def test_counters_have_labels() -> None:
    counter = CounterMetric("texts_total", "Texts.", ["route", "status"])
    counter.add("/translate", "200", amount=3)
    counter.add('a"b\\c\n', "404")
    assert counter.lines() == [
        "# HELP texts_total Texts.",
        "# TYPE texts_total counter",
        'texts_total{route="/translate",status="200"} 3',
        'texts_total{route="a\\"b\\\\c\\n",status="404"} 1',
    ]
    assert CounterMetric("none_total", "Nothing yet.").lines()[-1] == "none_total 0"


def test_buckets_of_a_histogram_are_cumulative_and_closed_above() -> None:
    histogram = HistogramMetric("seconds", "Time.", (0.1, 1.0))
    for value in (0.1, 0.5, 3.0):
        histogram.observe(value)
    assert histogram.lines()[2:] == [
        'seconds_bucket{le="0.1"} 1',
        'seconds_bucket{le="1.0"} 2',
        'seconds_bucket{le="+Inf"} 3',
        "seconds_sum 3.600000",
        "seconds_count 3",
    ]


def test_gauges() -> None:
    assert gauge_lines("queue", "Waiting.", 2) == ["# HELP queue Waiting.", "# TYPE queue gauge", "queue 2"]


pytest.importorskip("fastapi", reason="needs the extra `view`")


MODEL = "phrasebook-bahdanau-en-fr"
TEXTS = ["the red car", "a small house", "the dog sees the cat", "two birds", "the old woman reads a book"]


class PausableModel(ServedModel):
    """Computes a batch once `go` is set, so that others can gather meanwhile."""

    def __init__(self) -> None:
        super().__init__(MODEL)
        self.started, self.go = threading.Event(), threading.Event()
        self.go.set()

    def __call__(self, texts: list[str], settings: ServeSettings) -> list[dict[str, Any] | Exception]:
        self.started.set()
        assert self.go.wait(30)
        return super().__call__(texts, settings)


@pytest.fixture(scope="module")
def model() -> PausableModel:
    torch.set_num_threads(1)
    return PausableModel()


@pytest.fixture(scope="module")
def server(model: PausableModel) -> Iterator[AppServer]:
    make = partial(create_serve_app, model, batch=8, wait=0.0, queue=20)
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


def requests(server: AppServer, route: str, status: int) -> int:
    """The value of `regard_requests_total`."""
    name = f'regard_requests_total{{route="{route}",status="{status}"}} '
    lines = ask(server, "/metrics")[1].splitlines()
    return next((int(line.removeprefix(name)) for line in lines if line.startswith(name)), 0)


def test_requests_that_arrive_while_a_batch_is_computed_share_the_next(server: AppServer, model: PausableModel) -> None:
    torch.set_num_threads(1)
    loaded = load_model_and_tokenizers.load(MODEL)
    expected = [each.text for each in translate(loaded.model, loaded.tokenizers, TEXTS, beams=2)]
    batches, texts = metric(server, "regard_batch_size_count"), metric(server, "regard_texts_total")

    def request(text: str) -> tuple[int, Any]:
        return ask(server, "/translate", {"texts": [text], "beams": 2})

    model.started.clear()
    model.go.clear()
    with ThreadPoolExecutor(len(TEXTS)) as pool:
        try:
            first = pool.submit(request, TEXTS[0])
            assert model.started.wait(30)
            others = [pool.submit(request, text) for text in TEXTS[1:]]
            deadline = time.monotonic() + 30
            while metric(server, "regard_queue_length") < len(others):
                assert time.monotonic() < deadline
                time.sleep(0.01)
        finally:
            model.go.set()
        answers = [future.result(60) for future in (first, *others)]
    assert [status for status, _ in answers] == [200] * len(TEXTS)
    assert [answer["translations"][0]["text"] for _, answer in answers] == expected
    assert metric(server, "regard_texts_total") - texts == len(TEXTS)
    assert metric(server, "regard_batch_size_count") - batches == 2


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
        ({"texts": []}, 422, "texts: has 0 entries; it should have at least 1"),
        ({"texts": [" "]}, 422, "texts.0: is ' '; it should have a character that is not a space"),
        ({"texts": ["a"] * (application.TEXTS + 1)}, 422, "texts: has 257 entries; it should have at most 256"),
        (
            {"texts": ["a" * (application.CHARACTERS + 1)]},
            422,
            "texts.0: has 5,001 characters; it should have at most 5,000",
        ),
        ({"texts": ["a"], "beams": 1000}, 422, "beams: is 1000; it should be at most 16"),
        ({"texts": ["a"], "beam": 1}, 422, "beam: unknown key; did you mean beams?"),
        ({"text": "a"}, 422, "texts: is missing; text: unknown key; did you mean texts?"),
        ({"texts": ["a"], "colour": 1}, 422, "colour: unknown key; known are alignment, beams, best, texts"),
        ({"texts": ["a"], "beams": 2, "best": 5}, 422, "best: 5 is more than beams, which is 2"),
        ({"texts": ["a"] * 21}, 422, "texts: 21 texts, and the queue of this server has room for 20"),
    ],
    ids=lambda value: str(value)[:20] if isinstance(value, str | int) else "",
)
def test_a_request_beyond_a_limit_is_refused_with_a_reason(
    server: AppServer, body: Any, status: int, reason: str
) -> None:
    actual, answer = ask(server, "/translate", body)
    assert actual == status, answer
    assert reason in answer["error"]


@pytest.mark.parametrize(
    ("kind", "body", "reason"),
    [
        (
            "application/x-www-form-urlencoded",  # what `curl -d` declares
            b'{"texts": ["a"]}',
            "the body is declared as application/x-www-form-urlencoded; send Content-Type: application/json",
        ),
        (None, b'{"texts": ["a"]}', "the body has no Content-Type; send Content-Type: application/json"),
        ("application/json", b'{"texts": [a]}', "the body is not JSON: Expecting value (character 12)"),
        ("application/json", b"", "the request has no body; send JSON"),
        ("application/json", b'{"texts": ["\xff"]}', "the body is not JSON: byte 13 is not UTF-8"),
        ("application/json", b"[" * 100_000, "the body is not JSON: it is nested too deeply"),
    ],
    ids=["form", "undeclared", "invalid", "empty", "latin", "nested"],
)
def test_a_body_that_is_not_json_is_refused_with_a_reason(
    server: AppServer, kind: str | None, body: bytes, reason: str
) -> None:
    headers = {"Authorization": "Bearer secret"} | ({"Content-Type": kind} if kind else {})
    answer = httpx.post(f"{server.address}/translate", content=body, headers=headers)
    assert (answer.status_code, answer.json()) == (422, {"error": reason})


def test_the_token_is_needed_except_for_health(server: AppServer) -> None:
    status, answer = ask(server, "/translate", {"texts": ["a"]}, token="wrong")
    assert (status, answer["error"]) == (
        401,
        "the token is missing or wrong; send the header Authorization: Bearer TOKEN, with the token of regard serve",
    )
    in_a_browser = httpx.get(f"{server.address}/", headers={"Accept": "text/html"})  # there is no page to open
    assert in_a_browser.json() == answer
    assert in_a_browser.headers["WWW-Authenticate"] == "Bearer"
    assert ask(server, "/metrics", token="wrong")[0] == 401
    assert ask(server, "/health", token="wrong") == (200, {"status": "ok", "model": MODEL, "task": "translate"})


def test_the_api_describes_itself(server: AppServer) -> None:
    paths = ask(server, "/openapi.json")[1]["paths"]
    assert set(paths) == {"/translate", "/health", "/metrics"}
    status, answer = ask(server, "/classify", {"texts": ["a"]})
    assert status == 404
    assert "GET /openapi.json lists the routes" in answer["error"]


def test_the_api_lists_every_status_that_it_answers_and_no_other(
    server: AppServer, model: PausableModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    document = ask(server, "/openapi.json")[1]
    headers = {"Authorization": "Bearer secret", "Content-Type": "application/json"}

    def status(content: bytes = b'{"texts": ["a"]}', **others: str) -> int:
        answer = httpx.post(f"{server.address}/translate", content=content, headers={**headers, **others}, timeout=60)
        assert answer.status_code == 200 or list(answer.json()) == ["error"]
        return answer.status_code

    answered = [
        status(),
        status(Authorization="Bearer wrong"),
        status(Origin="https://elsewhere.example"),
        status(b" " * (2 * application.BODY)),
        status(Host="elsewhere.example"),
        status(b"{"),
        status(b"\xff"),
    ]
    monkeypatch.setattr(application, "SECONDS", 0.0)
    answered.append(status())
    monkeypatch.setattr(application, "SECONDS", 60.0)
    monkeypatch.setattr(ServedModel, "__call__", lambda *inputs: 1 / 0)
    answered.append(status())
    listed = document["paths"]["/translate"]["post"]["responses"]
    assert set(listed) == {str(each) for each in answered}
    for operation in (operation for path in document["paths"].values() for operation in path.values()):
        for code, response in operation["responses"].items():
            if code != "200":
                schema = response["content"]["application/json"]["schema"]
                assert schema == {"$ref": "#/components/schemas/ErrorBody"}
    assert set(document["paths"]["/health"]["get"]["responses"]) == {"200", "403", "413", "421", "503"}
    assert set(document["paths"]["/metrics"]["get"]["responses"]) == {"200", "401", "403", "413", "421"}
    without_token = create_serve_app(model)
    assert "401" not in str(without_token.openapi()["paths"])
    without_token.state.batches.close()


def test_a_beam_that_is_not_given_is_as_large_as_best(server: AppServer) -> None:
    status, answer = ask(server, "/translate", {"texts": TEXTS[:1], "best": 7})
    assert status == 200
    assert len(answer["translations"][0]["hypotheses"]) == 7


def chunks() -> Iterator[bytes]:
    for _ in range(2 * application.BODY // 65536):
        yield b" " * 65536


def test_a_body_beyond_the_limit_is_refused_with_413(server: AppServer) -> None:
    before = requests(server, "/translate", 413)
    headers = {"Authorization": "Bearer secret", "Content-Type": "application/json"}
    bodies = {"at most 1,048,576 are allowed": b" " * (8 * application.BODY), "more than 1,048,576 bytes": chunks()}
    for message, body in bodies.items():  # an iterator is sent without Content-Length
        answer = httpx.post(f"{server.address}/translate", content=body, headers=headers, timeout=60)
        assert answer.status_code == 413
        assert message in answer.json()["error"]
    assert requests(server, "/translate", 413) == before + 2


def test_an_answer_with_too_many_weights_is_refused(server: AppServer, monkeypatch: pytest.MonkeyPatch) -> None:
    body = {"texts": TEXTS[:3], "alignment": True}
    status, answer = ask(server, "/translate", body)
    assert status == 200
    alignments = [each["alignment"] for each in answer["translations"]]
    count = sum(len(each["source"]) * len(each["target"]) for each in alignments)
    monkeypatch.setattr(application, "WEIGHTS", count)
    assert ask(server, "/translate", body) == (status, answer)
    monkeypatch.setattr(application, "WEIGHTS", count - 1)
    status, answer = ask(server, "/translate", body)
    assert status == 422
    assert answer["error"].startswith(
        f"alignment: these texts have {count:,} weights; an answer has at most {count - 1:,}"
    )
    assert ask(server, "/translate", {**body, "alignment": False})[0] == 200


def test_texts_that_may_have_too_many_weights_are_refused_before_the_search(
    server: AppServer, model: PausableModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = {"texts": TEXTS[:3], "alignment": True}
    possible = model.possible_weights(model.lengths(TEXTS[:3]))
    alignments = [each["alignment"] for each in ask(server, "/translate", body)[1]["translations"]]
    assert possible >= sum(len(each["source"]) * len(each["target"]) for each in alignments)
    monkeypatch.setattr(application, "POSSIBLE_WEIGHTS", possible - 1)
    model.started.clear()
    status, answer = ask(server, "/translate", body)
    assert status == 422
    assert answer["error"].startswith(f"alignment: these texts may have {possible:,} weights, and more than")
    assert not model.started.is_set()
    assert ask(server, "/translate", {**body, "alignment": False})[0] == 200
    monkeypatch.setattr(application, "POSSIBLE_WEIGHTS", possible)
    assert ask(server, "/translate", body)[0] == 200


def test_answers_are_written_outside_the_thread_of_the_event_loop(
    model: PausableModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[threading.Thread] = []

    def listed(answer: dict[str, Any]) -> dict[str, Any]:
        threads.append(threading.current_thread())
        return listed_alignment(answer)

    monkeypatch.setattr(application, "listed_alignment", listed)
    app = create_serve_app(model, hosts=frozenset())

    async def post() -> httpx.Response:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://here") as client:
            return await client.post("/translate", json={"texts": TEXTS[:1], "alignment": True})

    assert asyncio.run(post()).status_code == 200
    app.state.batches.close()
    assert threads
    assert threading.current_thread() not in threads


def test_a_request_without_an_answer_in_time_says_whether_it_was_too_large_or_the_server_busy(
    server: AppServer, model: PausableModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(application, "SECONDS", 0.5)
    model.started.clear()
    model.go.clear()
    with ThreadPoolExecutor(2) as pool:
        try:
            first = pool.submit(ask, server, "/translate", {"texts": TEXTS[:2], "beams": 2})
            assert model.started.wait(30)
            other = pool.submit(ask, server, "/translate", {"texts": TEXTS[2:3], "beams": 3})
            answers = first.result(60), other.result(60)
        finally:
            model.go.set()
    assert [status for status, _ in answers] == [503, 503]
    assert answers[0][1]["error"].startswith("the request is too large: 0 of 2 texts computed within")
    assert answers[0][1]["error"].endswith("; send fewer or shorter texts in a request")
    assert answers[1][1]["error"].startswith("the server is busy with other requests: 0 of 1 text computed")
    assert answers[1][1]["error"].endswith("; try again later")


def test_a_batch_has_no_more_tokens_than_the_model_computes_at_once(model: PausableModel) -> None:
    app = create_serve_app(model, hosts=frozenset())
    assert app.state.batches.tokens == model.batch_tokens == ON_CPU
    app.state.batches.close()


def test_metrics_count_requests_by_status(server: AppServer) -> None:
    before = {status: requests(server, "/translate", status) for status in (401, 403, 421, 422)}
    seconds = metric(server, "regard_request_seconds_count")
    ask(server, "/translate", {"texts": []})
    ask(server, "/translate", {"texts": ["a"]}, token="wrong")
    for headers in ({"Origin": "https://elsewhere.example"}, {"Host": "elsewhere.example"}):
        httpx.post(f"{server.address}/translate", headers=headers, timeout=60)
    assert {
        status: requests(server, "/translate", status) - count for status, count in before.items()
    } == dict.fromkeys(before, 1)
    assert metric(server, "regard_request_seconds_count") - seconds == 4
    ask(server, "/nothing/here")
    assert requests(server, "other", 404) >= 1
    assert "regard_queue_length 0" in ask(server, "/metrics")[1]


def test_health_is_503_once_no_texts_are_computed(model: PausableModel) -> None:
    app = create_serve_app(model, hosts=frozenset())

    async def health() -> httpx.Response:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://here") as client:
            return await client.get("/health")

    assert asyncio.run(health()).json()["status"] == "ok"
    app.state.batches.close()
    answer = asyncio.run(health())
    assert answer.status_code == 503
    assert "the thread that computes batches has ended" in answer.json()["error"]


START: Message = {"type": "http.response.start", "status": 418, "headers": []}


@pytest.mark.parametrize(("responds", "status"), [(False, 500), (True, 418)])
def test_a_request_that_ends_in_an_error_is_counted_once(responds: bool, status: int) -> None:
    async def broken(scope: Scope, receive: Receive, send: Send) -> None:
        if responds:
            await send(START)
        raise ZeroDivisionError

    async def receive() -> Message:
        raise AssertionError("nothing is read")

    sent: list[Any] = []

    async def send(message: Message) -> None:
        assert f'{{route="/task",status="{status}"}} 1' in metrics.text(0), "counted before it is sent"
        sent.append(message)

    metrics = ServeMetrics()
    counter = RequestCounter(broken, metrics, "/task", frozenset({"/health"}))
    with pytest.raises(ZeroDivisionError):
        asyncio.run(counter({"type": "http", "path": "/task"}, receive, send))
    assert sent == [START] * responds
    lines = metrics.text(0).splitlines()
    assert [line for line in lines if line.startswith("regard_requests_total")] == [
        f'regard_requests_total{{route="/task",status="{status}"}} 1'
    ]
    assert "regard_request_seconds_count 1" in lines
