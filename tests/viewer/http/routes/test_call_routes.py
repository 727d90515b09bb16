"""Routes of one call: their numbers are those of the library, and what cannot be computed is refused with a reason."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch

import regard
from regard.viewer.http.routes import call_routes
from tests.support.viewer_client import app_of, array_of, error_of, get, json_of, seen_of

if TYPE_CHECKING:
    from concurrent.futures import Future


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
