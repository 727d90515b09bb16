"""`regard serve`: texts of many requests share batches, small requests pass large ones, and a stop loses no answer."""

from __future__ import annotations

import gc
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("fastapi", reason="needs the extra `view`")

import httpx
import torch

from regard import serving
from regard.decoding import model_folders, translate
from regard.decoding.beam import check_step
from regard.decoding.classification import classify
from regard.seeing.align import translation_word_weights
from regard.serving import ServedModel, Settings, create_serve_app
from regard.viewer.server import AppServer
from tests.support.small_translators import TEXTS as SMALL_TEXTS
from tests.support.small_translators import save_exported_run

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

MODEL = "phrasebook-bahdanau-en-fr"
TEXTS = ["the red car", "a small house", "the dog sees the cat", "two birds", "the old woman reads a book"]


class StandIn:
    """In the place of a translator: texts are words, and come back doubled. Batches wait for `go`, step by step."""

    name, task, attends, threads, batch_tokens = "stand-in", "translate", False, 2, 40

    def __init__(self) -> None:
        self.batches: list[list[str]] = []
        self.go, self.long_go, self.started = threading.Event(), threading.Event(), threading.Event()
        self.loaded: Any = type("Loaded", (), {"search": {"beams": 1}})

    def lengths(self, texts: list[str]) -> list[int]:
        return [len(text.split()) for text in texts]

    def __call__(self, texts: list[str], settings: Settings) -> list[dict[str, Any]]:
        self.batches.append(texts)
        self.started.set()
        if texts == ["panic"]:
            raise KeyboardInterrupt("a panic is no Exception")
        if "nan" in texts:
            raise ValueError("the logits are NaN")
        while not (self.long_go if len(texts[0]) > 100 else self.go).wait(0.01):
            check_step()
        return [{"text": text * 2} for text in texts]


@pytest.fixture(scope="module")
def model() -> ServedModel:
    torch.set_num_threads(1)
    return ServedModel(MODEL)


@contextmanager
def served(model: Any, **options: Any) -> Iterator[AppServer]:
    with AppServer(partial(create_serve_app, model, **options), token="secret", drain=0.5) as server:
        yield server


@pytest.fixture(scope="module")
def server(model: ServedModel) -> Iterator[AppServer]:
    with served(model, batch=8, wait=0.0, queue=20) as server:
        yield server


def ask(server: AppServer, path: str, body: Any = None, token: str = "secret") -> tuple[int, Any]:
    headers = {"Authorization": f"Bearer {token}"}
    method = "GET" if body is None else "POST"
    answer = httpx.request(method, server.address + path, json=body, headers=headers, timeout=60)
    return answer.status_code, answer.json() if "json" in answer.headers["content-type"] else answer.text


def metric(server: AppServer, name: str) -> float:
    lines = ask(server, "/metrics")[1].splitlines()
    return next((float(line.removeprefix(f"{name} ")) for line in lines if line.startswith(f"{name} ")), 0)


def requests(server: AppServer, route: str, status: int) -> float:
    return metric(server, f'regard_requests_total{{route="{route}",status="{status}"}}')


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


# --- Batches ---------------------------------------------------------------------------------------------------------


def test_requests_that_arrive_while_a_batch_is_computed_share_the_next() -> None:
    model = StandIn()
    with served(model, wait=0.0) as server, ThreadPoolExecutor(8) as pool:
        first = pool.submit(ask, server, "/translate", {"texts": ["first"]})
        assert model.started.wait(30)
        others = [pool.submit(ask, server, "/translate", {"texts": [name]}) for name in "abcd"]
        other_beams = pool.submit(ask, server, "/translate", {"texts": ["e"], "beams": 2})
        until(lambda: metric(server, "regard_queue_length") == 5)
        model.go.set()
        answers = [future.result() for future in (first, *others, other_beams)]
        assert [status for status, _ in answers] == [200] * 6
        assert [answer["translations"][0]["text"] for _, answer in answers[1:5]] == ["aa", "bb", "cc", "dd"]
        assert sorted(map(len, model.batches)) == [1, 1, 4]
        assert (metric(server, "regard_texts_total"), metric(server, "regard_batch_size_count")) == (6, 3)
        assert [metric(server, f'regard_batch_size_bucket{{le="{n}.0"}}') for n in (1, 2, 4, 8)] == [2, 2, 3, 3]


def test_a_small_request_passes_a_large_one_and_a_short_text_a_long_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "SPEED", 1)
    model = StandIn()
    with served(model, wait=0.0) as server, ThreadPoolExecutor(4) as pool:
        long = pool.submit(ask, server, "/translate", {"texts": ["word " * 100]})
        large = pool.submit(ask, server, "/translate", {"texts": ["w " * 30 + str(n) for n in range(4)]})
        until(lambda: len(model.batches) == 2)
        small = pool.submit(ask, server, "/translate", {"texts": ["small"]})
        until(lambda: metric(server, "regard_queue_length") == 4)
        model.go.set()
        assert small.result()[0] == large.result()[0] == 200
        assert model.batches[2] == ["small"]
        assert {len(batch) for batch in model.batches} == {1}, "31 tokens twice are more than a batch has"
        assert not long.done()
        model.long_go.set()
        assert long.result()[0] == 200


def test_a_client_that_leaves_stops_its_work(caplog: pytest.LogCaptureFixture) -> None:
    model = StandIn()
    with served(model, wait=0.0) as server:
        headers = {"Authorization": "Bearer secret"}
        for texts in (["left"], ["left"] * 5):
            with pytest.raises(httpx.ReadTimeout):
                httpx.post(f"{server.address}/translate", json={"texts": texts}, headers=headers, timeout=0.5)
        until(lambda: requests(server, "/translate", 499) == 2)
        model.go.set()
        assert ask(server, "/translate", {"texts": ["stays"]})[0] == 200
        assert metric(server, "regard_queue_length") == 0
    gc.collect()
    assert not caplog.records


def test_a_text_that_fails_leaves_the_others_of_its_batch_their_answers() -> None:
    model = StandIn()
    model.go.set()
    with served(model, wait=0.1) as server, ThreadPoolExecutor(4) as pool:
        texts = ["good", "nan", "panic"]
        answers = [
            future.result() for future in [pool.submit(ask, server, "/translate", {"texts": [x]}) for x in texts]
        ]
        assert [status for status, _ in answers] == [200, 500, 500]
        assert answers[1][1]["error"] == "internal server error: ValueError; the traceback is in the server's log"
        assert requests(server, "/translate", 500) == 2
        assert ask(server, "/translate", {"texts": ["more"]})[0] == 200


def test_a_queue_has_room_for_so_many_texts() -> None:
    model = StandIn()
    with served(model, wait=0.0, queue=3) as server, ThreadPoolExecutor(2) as pool:
        status, answer = ask(server, "/translate", {"texts": ["a"] * 4})
        assert status == 422
        assert answer["error"] == "texts: 4 texts, and the queue of this server has room for 3; send fewer"
        first = pool.submit(ask, server, "/translate", {"texts": ["first"]})
        assert model.started.wait(30)
        second = pool.submit(ask, server, "/translate", {"texts": ["b"] * 3})
        until(lambda: metric(server, "regard_queue_length") == 3)
        status, answer = ask(server, "/translate", {"texts": ["c"]})
        assert (status, "its queue has 3 texts, and room for 3" in answer["error"]) == (503, True)
        model.go.set()
        assert first.result()[0] == second.result()[0] == 200


def test_a_request_without_an_answer_in_time_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "SECONDS", 0.3)
    model = StandIn()
    with served(model, wait=0.0) as server:
        status, answer = ask(server, "/translate", {"texts": ["a"] * 2})
        assert status == 503
        assert answer["error"].startswith("0 of 2 texts computed within 0 seconds; the server is busy, or the request")


def test_a_stopped_server_answers_what_it_can_and_the_rest_with_503() -> None:
    model = StandIn()
    with ThreadPoolExecutor(2) as pool:
        with served(model, wait=0.0) as server:
            ended = pool.submit(ask, server, "/translate", {"texts": ["ended"]})
            until(lambda: len(model.batches) == 1)
            cut_off = pool.submit(ask, server, "/translate", {"texts": ["word " * 100]})
            until(lambda: len(model.batches) == 2)
            server.stop()
            model.go.set()
        assert ended.result()[0] == 200
        status, answer = cut_off.result()
        assert (status, answer["error"].partition(",")[0]) == (503, "the server is shutting down")


@pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
def test_sigterm_lets_a_running_request_end() -> None:
    """The command, in a process of its own."""
    texts = ["the old woman reads a book"] * 50
    command = [sys.executable, "-m", "regard", "serve", MODEL, "--port", "0", "--batch", "1", "--drain", "120"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        address, header = process.stdout.readline().split()[-1], process.stdout.readline().split(": ")[1].strip()
        with ThreadPoolExecutor(1) as pool:
            post = partial(httpx.post, address, json={"texts": texts}, headers={"Authorization": header}, timeout=120)
            asked = pool.submit(post)
            time.sleep(0.5)
            process.send_signal(signal.SIGTERM)
            answer = asked.result()
        assert answer.status_code == 200
        assert len(answer.json()["translations"]) == len(texts)
        assert "Traceback" not in process.communicate(timeout=60)[1]


# --- The model -------------------------------------------------------------------------------------------------------


def test_translations_are_those_of_the_library(server: AppServer) -> None:
    status, answer = ask(server, "/translate", {"texts": TEXTS, "alignment": True, "best": 3})
    assert status == 200
    loaded = model_folders.load(MODEL)
    how: Any = {"beams": 5, "best": 3, "weights": True}
    expected = translate(loaded.model, loaded.tokenizers, TEXTS, **how)
    for item, theirs in zip(answer["translations"], expected, strict=True):
        weights, target, source = translation_word_weights(theirs)
        assert (item["alignment"]["target"], item["alignment"]["source"]) == (target, source)
        torch.testing.assert_close(torch.tensor(item["alignment"]["weights"]), weights.float(), rtol=0, atol=1e-4)
        assert [hypothesis["text"] for hypothesis in item["hypotheses"]] == theirs.texts
        assert (item["text"], item["source"]) == (theirs.text, theirs.source)
    plain = ask(server, "/translate", {"texts": TEXTS[:1], "best": 7})[1]["translations"][0]
    assert "alignment" not in plain
    assert len(plain["hypotheses"]) == 7, "a beam that is not given is as large as best"


def test_two_threads_compute_what_one_does(server: AppServer) -> None:
    long = " ".join(TEXTS * 5)
    bodies = [{"texts": [text], "alignment": True, "beams": 2} for text in [long, *TEXTS, long, *TEXTS]]
    alone = [ask(server, "/translate", body) for body in bodies]
    with ThreadPoolExecutor(len(bodies)) as pool:
        together = list(pool.map(partial(ask, server, "/translate"), bodies))
    for (_, one), (_, other) in zip(alone, together, strict=True):
        (a,), (b,) = one["translations"], other["translations"]
        # Another batch rounds otherwise: the last of five digits may differ by one.
        weights = [torch.tensor(x["alignment"].pop("weights")) for x in (a, b)]
        torch.testing.assert_close(*weights, atol=1.1e-5, rtol=0)
        assert a.pop("score") == pytest.approx(b.pop("score"), abs=1.1e-5)
        assert a == b


def test_labels_with_weights() -> None:
    loaded = model_folders.load("opinions-lstm")
    texts = ["a wonderful film", "dull and far too long"]
    with served(ServedModel("opinions-lstm")) as server:
        status, answer = ask(server, "/classify", {"texts": texts, "alignment": True})
    assert status == 200
    expected = classify(loaded.model, loaded.tokenizers, texts, weights=True)
    for item, theirs in zip(answer["classifications"], expected, strict=True):
        assert (item["label"], item["probabilities"]) == (theirs.label, pytest.approx(theirs.probabilities, abs=1e-5))
        assert theirs.weights is not None
        assert item["alignment"]["weights"] == [round(weight, 5) for weight in theirs.weights.double().tolist()]
        assert len(item["alignment"]["source"]) == len(theirs.weights)


def test_ctranslate2_answers_as_torch_does(tmp_path: Path) -> None:
    pytest.importorskip("ctranslate2", reason="needs the extra `export`")
    run, texts = str(save_exported_run(tmp_path / "run")), [text for text in SMALL_TEXTS if text]
    answers = [ServedModel(run, engine=engine)(texts, Settings()) for engine in ("torch", "ctranslate2")]
    assert [x["text"] for x in answers[0]] == [x["text"] for x in answers[1]]


def test_alignment_costs_one_hypothesis_of_each_text(model: ServedModel) -> None:
    """The weights of 16 hypotheses of long texts take gigabytes, and the answer has those of the best alone."""
    rows: list[int] = []
    whole_passes = model.loaded.model.decoder.register_forward_pre_hook(  # the search calls `step`
        lambda module, inputs: rows.append(len(inputs[0]))
    )
    answers = model(["the red car", "a small house"], Settings(5, 4, weights=True))
    whole_passes.remove()
    assert rows == [2]
    assert [len(answer["hypotheses"]) for answer in answers] == [4, 4]
    without_attention = ServedModel("phrasebook-seq2seq-en-fr")(["the red car"], Settings(5, weights=True))
    assert without_attention[0]["alignment"] is None


@pytest.mark.parametrize("name", ["shakespeare-transformer", "scenes-soft", "digits-cnn"])
def test_models_that_read_no_text_or_write_freely_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match=name):
        ServedModel(name)


# --- The API ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ({"texts": []}, "texts: is []: List should have at least 1 item"),
        ({"texts": [" "]}, "texts.0: is ' '; it should have a character that is not a space"),
        ({"texts": ["a"] * (serving.TEXTS + 1)}, "List should have at most 256 items after validation, not 257"),
        ({"texts": ["a" * 5_001]}, "String should have at most 5000 characters"),
        ({"texts": ["a", "a " * 2_400]}, "texts.1: the text has 2,401 tokens; at most 2,048 fit: split it"),
        ({"texts": ["a"], "beams": 1000}, "beams: is 1000; it should be less than or equal to 16"),
        ({"texts": ["a"], "beam": 1}, "beam: unknown key; did you mean beams?"),
        ({"text": "a"}, "texts: is missing; text: unknown key; did you mean texts?"),
        ({"texts": ["a"], "beams": 2, "best": 5}, "best: 5 is more than beams, which is 2"),
        ({"texts": ["a " * 900] * 20, "alignment": True}, "alignment: these texts have 18,020 tokens, and alignments"),
    ],
    ids=lambda value: str(value)[:20] if isinstance(value, str) else "",
)
def test_a_request_beyond_a_limit_is_refused_with_a_reason(server: AppServer, body: Any, reason: str) -> None:
    status, answer = ask(server, "/translate", body)
    assert (status, reason in answer["error"]) == (422, True), answer


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
        (
            "application/json",
            b'{"texts": ["\xff"]}',
            "the body is not JSON: 'utf-8' codec can't decode byte 0xff in position 12: invalid start byte",
        ),
        ("application/json", b"[" * 100_000, "the body is not JSON: maximum recursion depth exceeded"),
    ],
    ids=["form", "undeclared", "invalid", "empty", "latin", "nested"],
)
def test_a_body_that_is_not_json_is_refused_with_a_reason(
    server: AppServer, kind: str | None, body: bytes, reason: str
) -> None:
    headers = {"Authorization": "Bearer secret"} | ({"Content-Type": kind} if kind else {})
    answer = httpx.post(f"{server.address}/translate", content=body, headers=headers)
    assert (answer.status_code, answer.json()["error"][: len(reason)]) == (422, reason)


def test_the_token_is_needed_except_for_health(server: AppServer) -> None:
    status, answer = ask(server, "/translate", {"texts": ["a"]}, token="wrong")
    assert status == 401
    assert answer["error"].endswith("send the header Authorization: Bearer TOKEN, with the token of regard serve")
    in_a_browser = httpx.get(f"{server.address}/", headers={"Accept": "text/html"})  # there is no page to open
    assert in_a_browser.json() == answer
    assert in_a_browser.headers["WWW-Authenticate"] == "Bearer"
    assert ask(server, "/metrics", token="wrong")[0] == 401
    assert ask(server, "/health", token="wrong") == (200, {"status": "ok", "model": MODEL, "task": "translate"})


def test_the_api_lists_every_status_that_it_answers_and_no_other(
    server: AppServer, model: ServedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    document = ask(server, "/openapi.json")[1]
    assert set(document["paths"]) == {"/translate", "/health", "/metrics"}
    headers = {"Authorization": "Bearer secret", "Content-Type": "application/json"}

    def status(content: bytes = b'{"texts": ["a"]}', **others: str) -> int:
        answer = httpx.post(f"{server.address}/translate", content=content, headers={**headers, **others}, timeout=60)
        assert answer.status_code == 200 or list(answer.json()) == ["error"]
        return answer.status_code

    answered = [
        status(),
        status(Authorization="Bearer wrong"),
        status(Origin="https://elsewhere.example"),
        status(b" " * (2 * serving.BODY)),
        status(Host="elsewhere.example"),
        status(b"{"),
    ]
    monkeypatch.setattr(serving, "SECONDS", 0.0)
    answered.append(status())
    monkeypatch.setattr(serving, "SECONDS", 60.0)
    monkeypatch.setattr(ServedModel, "__call__", lambda *inputs: 1 / 0)
    answered.append(status())
    listed = document["paths"]["/translate"]["post"]["responses"]
    assert set(listed) == {str(each) for each in answered}
    assert set(document["paths"]["/metrics"]["get"]["responses"]) == {"200", "401", "403", "421"}
    assert "401" not in str(create_serve_app(model).openapi()["paths"])
    status_code, answer = ask(server, "/classify", {"texts": ["a"]})
    assert (status_code, "GET /openapi.json lists the routes" in answer["error"]) == (404, True)


def test_a_body_beyond_the_limit_is_refused_with_413(server: AppServer) -> None:
    before = requests(server, "/translate", 413)
    headers = {"Authorization": "Bearer secret", "Content-Type": "application/json"}
    chunks = (b" " * 65536 for _ in range(2 * serving.BODY // 65536))  # an iterator is sent without Content-Length
    for body in (b" " * (8 * serving.BODY), chunks):
        answer = httpx.post(f"{server.address}/translate", content=body, headers=headers, timeout=60)
        assert answer.status_code == 413
        assert "more than 1,048,576 bytes" in answer.json()["error"]
    assert requests(server, "/translate", 413) == before + 2


def test_metrics_count_requests_by_status(server: AppServer) -> None:
    before = {status: requests(server, "/translate", status) for status in (401, 403, 421, 422)}
    seconds = metric(server, "regard_request_seconds_count")
    ask(server, "/translate", {"texts": []})
    ask(server, "/translate", {"texts": ["a"]}, token="wrong")
    for headers in ({"Origin": "https://elsewhere.example"}, {"Host": "elsewhere.example"}):
        httpx.post(f"{server.address}/translate", headers=headers, timeout=60)
    after = {status: requests(server, "/translate", status) - count for status, count in before.items()}
    assert after == dict.fromkeys(before, 1)
    assert metric(server, "regard_request_seconds_count") - seconds == 4
    ask(server, "/nothing/here")
    assert requests(server, "other", 404) >= 1
