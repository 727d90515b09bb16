"""Routes of a trace: its description, thumbnails, statistics and patterns, and requests that are refused."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

from regard.seeing import load_trace
from regard.seeing.analysis import Patterns
from regard.viewer.data.token_labels import TokenLabels
from regard.viewer.data.trace_view import TraceView
from tests.support.viewer_client import WORDS, app_of, array_of, error_of, get, json_of, post, seen_of

if TYPE_CHECKING:
    from pathlib import Path


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
    from regard.viewer.data.library import Library, installed_models

    models = [model for model in installed_models() if model.name == "tatoeba-transformer-en-fr"]
    if not models:
        pytest.skip("no translator ships")
    library = Library(models=models)
    read = library.read(models[0].name, "The dog sleeps.")
    read.seen.save(tmp_path / "trace")
    content = TraceView.of(load_trace(tmp_path / "trace")).describe()
    assert content["sides"]["source"][-1] == "</s>"
    assert content["sides"]["read"][0] == "<s>"
    kinds = {(call["kind"], call["query_side"], call["key_side"]) for call in content["calls"]}
    assert kinds == {("self", "source", "source"), ("self", "target", "read"), ("cross", "target", "source")}
    assert content["calls"] == [
        call | {"fidelity": content["calls"][at]["fidelity"]} for at, call in enumerate(read.describe()["calls"])
    ]
