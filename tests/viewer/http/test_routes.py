"""The viewer's API: what it answers is what the library says, and what cannot be answered is refused with a reason."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import regard
from regard.seeing import load_trace
from regard.seeing.analysis import Patterns
from regard.viewer.data.token_labels import TokenLabels
from regard.viewer.data.trace_view import TraceView
from regard.viewer.http.routes import call_routes
from tests.support.viewer_client import WORDS, app_of, array_of, error_of, get, json_of, post, seen_of

if TYPE_CHECKING:
    from concurrent.futures import Future
    from pathlib import Path


def test_a_trace_is_told() -> None:
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


@pytest.mark.parametrize(("kind", "near"), [("float32", 1e-6), ("float16", 1e-3), ("uint8", 5e-3)])
def test_weights_are_the_librarys(kind: str, near: float) -> None:
    seen = seen_of()
    app, root = app_of(seen)
    found = array_of(get(app, f"{root}/calls/1/weights?entry=1&heads=2,0&rows=3:9&cols=1:&type={kind}"))
    torch.testing.assert_close(found, seen[1].weights.dense()[1, [2, 0], 3:9, 1:], atol=near, rtol=0)


@pytest.mark.parametrize(
    "options",
    [{"normalize": regard.Sparsemax()}, {"normalize": regard.Entmax(1.5)}, {"energy": regard.Gaussian()}],
    ids=["sparsemax", "entmax", "gaussian"],
)
def test_weights_of_other_parts(options: dict[str, object]) -> None:
    seen = seen_of(options)
    app, root = app_of(seen)
    found = array_of(get(app, f"{root}/calls/0/weights"))
    torch.testing.assert_close(found, seen[0].weights.dense()[0], atol=1e-6, rtol=0)


def test_top_and_received() -> None:
    seen = seen_of()
    app, root = app_of(seen)
    top = json_of(get(app, f"{root}/calls/0/top?heads=1&rows=2:5&k=4"))
    wanted = seen[0].head(1).rows(slice(2, 5)).top(4)
    assert top["indices"] == [wanted.indices.tolist()]
    torch.testing.assert_close(torch.tensor(top["values"][0]), wanted.values, atol=1e-5, rtol=0)
    received = array_of(get(app, f"{root}/calls/1/received?head=2&entry=1"))
    torch.testing.assert_close(received, seen[1].head(2, 1).received(), atol=1e-5, rtol=0)


@pytest.mark.parametrize("pool", ["max", "mean"])
def test_thumbs_are_maps(pool: str) -> None:
    seen = seen_of()
    app, root = app_of(seen)
    found = array_of(get(app, f"{root}/thumbs?size=4&pool={pool}"))
    wanted = torch.cat([call.weights[0].map((4, 4), pool) for call in seen])  # type: ignore[arg-type]
    torch.testing.assert_close(found, wanted, atol=4e-3, rtol=0)


def test_thumbs_of_fewer_tokens_than_cells_repeat_them() -> None:
    seen = seen_of(length=3)
    app, root = app_of(seen)
    found = array_of(get(app, f"{root}/thumbs?size=6"))
    wanted = seen[0].weights.dense()[0].repeat_interleave(2, 1).repeat_interleave(2, 2)
    torch.testing.assert_close(found[:3], wanted, atol=4e-3, rtol=0)


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
    found = json_of(get(app, f"{root}/patterns"))
    patterns = Patterns()
    patterns.add(seen, TokenLabels.of(WORDS).text())
    wanted = patterns.heads()
    assert [(head["call"], head["head"]) for head in found["heads"]] == [(str(x.layer), x.head) for x in wanted]
    assert found["heads"][4]["scores"] == pytest.approx(wanted[4].scores)
    assert found["heads"][4]["labels"] == wanted[4].labels
    assert found["why"] == ""


def test_patterns_say_why_there_are_none() -> None:
    app, root = app_of(seen_of(length=5))
    assert "tokens" in json_of(get(app, f"{root}/patterns"))["why"]


@pytest.mark.parametrize("energy", ["dot", "tanh", "function"])
def test_one_query_meets_its_keys(energy: str) -> None:
    options = {
        "dot": {"mask": regard.causal()},
        "tanh": {"energy": regard.Additive(8, 8, 5)},
        "function": {"energy": lambda q, k: -(q[..., :, None, :] - k[..., None, :, :]).abs().sum(-1)},
    }[energy]
    seen = seen_of(options)
    app, root = app_of(seen)
    told = json_of(get(app, f"{root}/calls/0/neuron?head=1&query=4&cols=2:9"))
    assert told["kind"] == energy
    weights = seen[0].head(1)
    torch.testing.assert_close(torch.tensor(told["weight"]), weights.dense()[4, 2:9], atol=1e-5, rtol=0)
    if energy != "function":
        product, total = torch.tensor(told["product"]), torch.tensor(told["energy"])
        torch.testing.assert_close(product.sum(-1), total, atol=1e-5, rtol=0)
    if energy == "dot":
        assert told["modified"][3:] == [None] * 4  # query 4 does not see keys 5 to 8
        terms = torch.tensor(told["q"]) * torch.tensor(told["k"]) * told["scale"]
        torch.testing.assert_close(terms, product, atol=1e-5, rtol=0)
    # Softmax over what is shown gives the ratios of the weights.
    shown = [x for x in told["modified"] if x is not None]
    ratios = torch.tensor(shown).exp() / torch.tensor(shown).exp().sum()
    weight = torch.tensor(told["weight"][: len(shown)])
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
    """Each a job of its own, so that a request that is left ends; and no more than somebody would wait for."""
    monkeypatch.setattr(call_routes, "CHUNK", 13 * 5)
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
    assert jobs == 2 + 2 * 3  # row states of each head, then 13 rows of each, five at a time
    for at, head in enumerate((2, 0)):
        wanted = seen[1].head(head).top(3)
        torch.testing.assert_close(torch.tensor(top["values"][at]), wanted.values, atol=1e-5, rtol=0)
        assert [row[0] for row in top["indices"][at]] == wanted.indices[:, 0].tolist()
    monkeypatch.setattr(call_routes, "MOST_WEIGHTS", 3 * 13 * 13 - 1)
    assert "3 × 13 × 13 weights" in error_of(get(app, f"{root}/calls/1/top?k=1"), 413)


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


def test_the_same_trace_has_the_same_name() -> None:
    assert app_of(seen_of())[1] == app_of(seen_of())[1] != app_of(seen_of(batch=1))[1]


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
    from regard.viewer.data.library import Library, installed_models

    models = [model for model in installed_models() if model.name == "tatoeba-transformer-en-fr"]
    if not models:
        pytest.skip("no translator ships")
    library = Library(models=models)
    read = library.read(models[0].name, "The dog sleeps.")
    read.seen.save(tmp_path / "trace")
    told = TraceView.of(load_trace(tmp_path / "trace")).describe()
    assert told["sides"]["source"][-1] == "</s>"
    assert told["sides"]["read"][0] == "<s>"
    kinds = {(call["kind"], call["query_side"], call["key_side"]) for call in told["calls"]}
    assert kinds == {("self", "source", "source"), ("self", "target", "read"), ("cross", "target", "source")}
    assert told["calls"] == [
        call | {"fidelity": told["calls"][at]["fidelity"]} for at, call in enumerate(read.describe()["calls"])
    ]


def _rewritten(folder: Path, **changes: object) -> None:
    about = json.loads((folder / "trace.json").read_text())
    about["calls"][0] |= changes
    (folder / "trace.json").write_text(json.dumps(about))


@pytest.mark.parametrize(
    "changes",
    [
        {"batch": [10**9, 3]},
        {"batch": []},
        {"batch": [2, 3, 0]},
        {"groups": 0},
        {"groups": 7},
        {"steps": [1, 2]},
        {"mask": {"dense": True}},
        {"mask": {"intervals": True}},
        {"modifiers": [{"bias": 0}]},
        {"normalize": {"kind": "Softmax", "temperature": -1}},
        {"normalize": {"kind": "os.system"}},
        {"form": {"dot": "x"}},
        {"form": {"tanh": True}},
    ],
    ids=str,
)
def test_a_trace_that_says_one_thing_and_holds_another_is_refused(changes: dict[str, object], tmp_path: Path) -> None:
    seen_of().save(tmp_path / "trace")
    _rewritten(tmp_path / "trace", **changes)
    with pytest.raises(ValueError, match="layers.0|0000"):  # noqa: RUF043
        TraceView.of(load_trace(tmp_path / "trace"))


@pytest.mark.parametrize("wrong", ["narrow", "nan", "huge"])
def test_tensors_of_a_stranger(wrong: str, tmp_path: Path) -> None:
    seen_of().save(tmp_path / "trace")
    file = tmp_path / "trace" / "0000.safetensors"
    tensors = load_file(file)
    if wrong == "narrow":
        tensors["k"] = tensors["k"][..., :5].contiguous()
    else:
        tensors["q"][0, 0, 3] = {"nan": torch.nan, "huge": 1e38}[wrong]
    save_file(tensors, file)
    if wrong == "narrow":
        with pytest.raises(ValueError, match="cannot be shown"):
            TraceView.of(load_trace(tmp_path / "trace"))
        return
    app, root = app_of(load_trace(tmp_path / "trace"))
    assert json_of(get(app, root))["calls"][0]["fidelity"]["kept"] is not True
    for path in ("stats", "patterns", "calls/0/top", "calls/0/neuron?query=3", "thumbs", "calls/0/received"):
        assert get(app, f"{root}/{path}").status == 200, path
