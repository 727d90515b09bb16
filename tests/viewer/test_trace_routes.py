"""Routes of one call: their numbers are those of the library, and what cannot be computed is refused with a reason."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

import regard
from regard.attention import Contributions
from regard.seeing import load_trace
from regard.seeing.analysis import Patterns
from regard.viewer import guard, trace_routes
from regard.viewer.answer_contributions import contribution_run, trace_answers
from regard.viewer.library import Library, installed_models
from regard.viewer.server import create_app
from regard.viewer.trace_view import TokenLabels, TraceView
from tests.support.viewer_client import WORDS, app_of, array_of, error_of, get, json_of, post, seen_of

if TYPE_CHECKING:
    from concurrent.futures import Future
    from pathlib import Path

    from fastapi import FastAPI
    from torch import Tensor


@pytest.mark.parametrize(("kind", "near"), [("float32", 1e-6), ("float16", 1e-3), ("uint8", 5e-3)])
def test_weights_are_the_librarys(kind: str, near: float) -> None:
    seen = seen_of()
    app, root = app_of(seen)
    result = array_of(get(app, f"{root}/calls/1/weights?entry=1&heads=2,0&rows=3:9&cols=1:&type={kind}"))
    torch.testing.assert_close(result, seen[1].weights.dense()[1, [2, 0], 3:9, 1:], atol=near, rtol=0)


@pytest.mark.parametrize(
    "options",
    [{"normalize": regard.Sparsemax()}, {"normalize": regard.Entmax(1.5)}, {"energy": regard.Gaussian()}],
    ids=["sparsemax", "entmax", "gaussian"],
)
def test_weights_of_other_parts(options: dict[str, object]) -> None:
    seen = seen_of(options)
    app, root = app_of(seen)
    result = array_of(get(app, f"{root}/calls/0/weights"))
    torch.testing.assert_close(result, seen[0].weights.dense()[0], atol=1e-6, rtol=0)


def test_top_and_received() -> None:
    seen = seen_of()
    app, root = app_of(seen)
    top = json_of(get(app, f"{root}/calls/0/top?heads=1&rows=2:5&k=4"))
    wanted = seen[0].head(1).rows(slice(2, 5)).top(4)
    assert top["indices"] == [wanted.indices.tolist()]
    torch.testing.assert_close(torch.tensor(top["values"][0]), wanted.values, atol=1e-5, rtol=0)
    received = array_of(get(app, f"{root}/calls/1/received?head=2&entry=1"))
    torch.testing.assert_close(received, seen[1].head(2, 1).received(), atol=1e-5, rtol=0)


@pytest.mark.parametrize("energy", ["dot", "tanh", "distance", "function"])
def test_one_query_meets_its_keys(energy: str) -> None:
    options = {
        "dot": {"mask": regard.causal()},
        "tanh": {"energy": regard.Additive(8, 8, 5)},
        "distance": {"energy": regard.Gaussian()},
        "function": {"energy": lambda q, k: -(q[..., :, None, :] - k[..., None, :, :]).abs().sum(-1)},
    }[energy]
    seen = seen_of(options)
    app, root = app_of(seen)
    content = json_of(get(app, f"{root}/calls/0/neuron?head=1&query=4&cols=2:9"))
    assert content["kind"] == energy
    weights = seen[0].head(1)
    torch.testing.assert_close(torch.tensor(content["weight"]), weights.dense()[4, 2:9], atol=1e-5, rtol=0)
    if energy != "function":
        product, total = torch.tensor(content["product"]), torch.tensor(content["energy"])
        torch.testing.assert_close(product.sum(-1), total, atol=1e-5, rtol=0)
    if energy == "dot":
        assert content["modified"][3:] == [None] * 4  # query 4 does not see keys 5 to 8
        terms = torch.tensor(content["q"]) * torch.tensor(content["k"]) * content["scale"]
        torch.testing.assert_close(terms, product, atol=1e-5, rtol=0)
    # Softmax over what is shown gives the ratios of the weights.
    shown = [x for x in content["modified"] if x is not None]
    ratios = torch.tensor(shown).exp() / torch.tensor(shown).exp().sum()
    weight = torch.tensor(content["weight"][: len(shown)])
    torch.testing.assert_close(ratios, weight / weight.sum(), atol=1e-5, rtol=0)


@pytest.mark.parametrize(
    ("path", "status", "word"),
    [
        ("/api/traces/abc", 404, "no trace 'abc'"),
        ("{root}/calls/2/top", 404, "has 2, counted from 0"),
        ("{root}/calls/0/weights?entry=2", 404, "batch has 2"),
        ("{root}/calls/0/weights?heads=0,3", 404, "no head 3"),
        ("{root}/calls/0/weights?rows=9:3", 422, "rows 9:3 is an empty range"),
        ("{root}/calls/0/weights?rows=a:b", 422, "rows"),
        ("{root}/calls/0/tile?top=0&left=0&bottom=5&right=5&height=513&width=1", 422, "height"),
        ("{root}/calls/0/tile?top=0&left=0&bottom=5&right=5&height=6&width=1", 422, "cannot be pooled"),
        ("{root}/calls/0/tile?top=5&left=0&bottom=5&right=5&height=1&width=1", 422, "an empty rectangle"),
        ("{root}/calls/0/neuron?query=13", 404, "no query 13"),
        ("/api/nowhere", 404, "openapi.json"),
        ("/static/../app.py", 404, ""),
        ("/static/%2e%2e/app.py", 404, ""),
        ("/static//etc/passwd", 404, ""),
    ],
)
def test_what_cannot_be_answered_is_refused(path: str, status: int, word: str) -> None:
    app, root = app_of(seen_of())
    assert word in error_of(get(app, path.format(root=root)), status)


def test_too_much_at_once_is_refused() -> None:
    app, root = app_of(seen_of(length=1600))
    said = error_of(get(app, f"{root}/calls/0/weights"), 413)
    assert "7,680,000 numbers" in said
    assert "4,194,304" in said


def test_the_largest_are_looked_for_a_few_rows_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each a job of its own, so that a request that is left ends."""
    monkeypatch.setattr(trace_routes, "CHUNK", 2 * 13 * 5)
    seen = seen_of()
    app, root = app_of(seen)
    worker, jobs = app.state.jobs.worker, 0
    submit = worker.submit

    def counted(*given: Any) -> Future[Any]:
        nonlocal jobs
        jobs += 1
        return submit(*given)

    monkeypatch.setattr(worker, "submit", counted)
    top = json_of(get(app, f"{root}/calls/1/top?heads=2,0&k=3"))
    assert jobs == 3 + 1  # 13 rows of both heads, five at a time; and the numbers as text
    for at, head in enumerate((2, 0)):
        wanted = seen[1].head(head).top(3)
        torch.testing.assert_close(torch.tensor(top["values"][at]), wanted.values, atol=1e-5, rtol=0)
        assert [row[0] for row in top["indices"][at]] == wanted.indices[:, 0].tolist()


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
    monkeypatch.setattr(guard, "EXPLAINED", 4)
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
    monkeypatch.setattr(trace_routes, "trace_answers", None)  # calling it would fail
    assert json_of(get(app, path)) == first


def test_a_classifier_has_one_position() -> None:
    library = Library(models=installed_models())
    view = library.read("opinions-lstm", "the food was not good")
    app = create_app(library)
    for path in ("answers?", "calls/0/contributions?"):
        url = f"/api/traces/{view.id}/{path}answer=0&position="
        assert get(app, f"{url}0").status == 200
        assert "no position 999" in error_of(get(app, f"{url}999"), 422)


def test_a_trace_and_its_calls() -> None:
    app, root = app_of(seen_of())
    about = json_of(get(app, "/api/about"))
    assert about["coming"] == 0
    assert about["traces"][0] == {
        "id": root.split("/")[-1], "title": about["traces"][0]["title"], "model": "Model",
        "tokens": len(WORDS), "calls": 2, "faithful": True,
    }  # fmt: skip
    trace = json_of(get(app, root))
    assert [call["name"] for call in trace["calls"]] == ["layers.0", "layers.1"]
    assert trace["calls"][0] | {"fidelity": None} == {
        "id": "0", "name": "layers.0", "layer": 0, "kind": "self", "heads": 3, "queries": 13, "keys": 13, "steps": [13],
        "origin": trace["calls"][0]["origin"], "fidelity": None, "query_side": "text", "key_side": "text",
    }  # fmt: skip
    assert trace["calls"][0]["fidelity"]["kept"] is True
    assert trace["sides"]["text"] == WORDS
    assert trace["words"][0] == [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 9, 10, 11]  # still and ##ness are one
    assert [word for word, odd in zip(WORDS, trace["special"][0], strict=True) if odd] == ["[CLS]", "[SEP]"]
    assert trace["batch"] == 2


@pytest.mark.parametrize("pool", ["max", "mean"])
def test_thumbs_are_maps(pool: str) -> None:
    seen = seen_of()
    app, root = app_of(seen)
    result = array_of(get(app, f"{root}/thumbs?size=4&pool={pool}"))
    wanted = torch.cat([call.weights[0].map((4, 4), pool) for call in seen])  # type: ignore[arg-type]
    torch.testing.assert_close(result, wanted, atol=4e-3, rtol=0)


def test_thumbs_of_fewer_tokens_than_cells_repeat_them() -> None:
    seen = seen_of(length=3)
    app, root = app_of(seen)
    result = array_of(get(app, f"{root}/thumbs?size=6"))
    wanted = seen[0].weights.dense()[0].repeat_interleave(2, 1).repeat_interleave(2, 2)
    torch.testing.assert_close(result[:3], wanted, atol=4e-3, rtol=0)


def test_statistics() -> None:
    seen = seen_of()
    app, root = app_of(seen)
    second = json_of(get(app, f"{root}/stats?entry=1"))["calls"][1]
    weights = seen[1].weights[1]
    assert (second["id"], second["rows"], second["of"]) == ("1", 13, 13)
    torch.testing.assert_close(torch.tensor(second["entropy"]), weights.entropy().mean(-1), atol=1e-5, rtol=0)
    torch.testing.assert_close(torch.tensor(second["sink"]), weights.received()[:, 0] / 13, atol=1e-5, rtol=0)
    torch.testing.assert_close(
        torch.tensor(second["confidence"]), weights.top(1).values[..., 0].mean(-1), atol=1e-5, rtol=0
    )


def test_patterns() -> None:
    seen = seen_of(batch=1)
    app, root = app_of(seen)
    result = json_of(get(app, f"{root}/patterns"))
    patterns = Patterns()
    patterns.add(seen, TokenLabels.of(WORDS).text())
    wanted = patterns.heads()
    assert [(head["call"], head["head"]) for head in result["heads"]] == [(str(x.layer), x.head) for x in wanted]
    assert result["heads"][4]["scores"] == pytest.approx(wanted[4].scores)
    assert result["heads"][4]["labels"] == wanted[4].labels
    assert result["why"] == ""


def test_patterns_say_why_there_are_none() -> None:
    app, root = app_of(seen_of(length=5))
    assert "tokens" in json_of(get(app, f"{root}/patterns"))["why"]


@pytest.mark.parametrize(
    ("body", "status", "word"),
    [
        ({"model": "../../etc", "text": "a"}, 404, "none is installed"),
        ({"model": "x", "text": ""}, 422, "text"),
        ({"model": "x", "text": "a" * 20_001}, 422, "text"),
        ({"model": "x", "text": "a", "generate": 257}, 422, "generate"),
        ({"model": "x", "text": "a", "path": "/etc"}, 422, "path"),
        ([], 422, ""),
    ],
)
def test_what_cannot_be_read_is_refused(body: object, status: int, word: str) -> None:
    app, _ = app_of(seen_of())
    assert word in error_of(post(app, "/api/traces", body), status)


def test_a_hostile_name_stays_text() -> None:
    seen = seen_of()
    seen.tokens = [["<script>alert(1)</script>", *WORDS[1:]]] * 2
    app, root = app_of(seen)
    answer = get(app, root)
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert json_of(answer)["sides"]["text"][0] == "<script>alert(1)</script>"


def test_two_sides_of_a_translator(tmp_path: Path) -> None:
    """The words of both sides go with a trace, into a folder and out of it, and stand beside rows and columns."""
    library = Library(models=installed_models())
    read = library.read("tatoeba-transformer-en-fr", "The dog sleeps.")
    read.seen.save(tmp_path / "trace")
    content = TraceView.of(load_trace(tmp_path / "trace")).describe()
    assert content["sides"]["source"][-1] == "</s>"
    assert content["sides"]["read"][0] == "<s>"
    kinds = {(call["kind"], call["query_side"], call["key_side"]) for call in content["calls"]}
    assert kinds == {("self", "source", "source"), ("self", "target", "read"), ("cross", "target", "source")}
    assert content["calls"] == [
        call | {"fidelity": content["calls"][at]["fidelity"]} for at, call in enumerate(read.describe()["calls"])
    ]
