"""Fuzzing in seconds: a few cases of every target, and all that once failed. `make fuzz` takes half an hour."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

pytest.importorskip("fastapi")
pytest.importorskip("pydantic")
pytest.importorskip("soundfile")
pytest.importorskip("PIL")
pytest.importorskip("transformers")

from .http_requests import Parts, mutated_request, right_request, routes
from .targets import REFUSALS, TARGETS, application, base, random_request, read_model, read_trace, run, send

CORPUS = json.loads((Path(__file__).parent / "corpus.json").read_text(encoding="utf-8"))
pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.mark.parametrize("target", TARGETS)
def test_what_is_refused_says_why(target: str) -> None:
    @settings(
        max_examples=15,
        deadline=None,
        derandomize=True,
        database=None,
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(seed=st.integers(0, 1 << 32))
    def check(seed: int) -> None:
        run(target, seed)

    check()


@pytest.mark.parametrize("case", CORPUS, ids=[case["why"] for case in CORPUS])
def test_what_once_failed(case: dict[str, Any], tmp_path: Path) -> None:
    """Accepted, or refused with a reason."""
    try:
        if case["target"] == "traces":
            read_trace(tmp_path, case["changes"])
        else:
            read_model(tmp_path, case["model"], case["changes"])
    except REFUSALS as error:
        reason = str(error)
    else:
        reason = "accepted"
    assert reason


def test_a_defect_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(chance: object, folder: object) -> None:
        raise KeyError("tokens")

    monkeypatch.setitem(TARGETS, "traces", fails)
    with pytest.raises(KeyError):
        run("traces", 0)


def test_every_route_is_fuzzed() -> None:
    """Each route that the server has accepts its right request, and is among the requests that are mutated."""
    app = application()
    described = {(method.upper(), path) for path, item in app.openapi()["paths"].items() for method in item}
    for route in routes(app):
        send(app, right_request(app, route, Random(0), base("media")))
    requests = [random_request(Random(seed)) for seed in range(500)]
    assert {parts.path for parts in requests} == {path for _, path in routes(app)}
    assert {(parts.method, parts.path) for parts in requests} >= described


def test_a_status_is_accepted_refused_or_a_defect() -> None:
    app = application()
    right = right_request(app, ("GET", "/api/traces/{trace}/stats"), Random(0), base("media"))
    send(app, right)
    with pytest.raises(ValueError, match="no entry 99"):
        send(app, Parts("GET", right.path, right.parameters, [("entry", 99)]))
    with pytest.raises(ValueError, match="no route"):
        send(app, Parts("GET", "/api/other", {}, []))
    mutated = [mutated_request(app, right, Random(seed)).url for seed in range(50)]
    assert len(set(mutated)) > 10
