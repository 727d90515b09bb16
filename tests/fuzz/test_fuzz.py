"""Fuzzing: a few cases of every target, of which `make fuzz` runs REGARD_EXAMPLES; and all that once failed."""

from __future__ import annotations

import json
import os
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

pytest.importorskip("fastapi")
pytest.importorskip("pydantic")
pytest.importorskip("soundfile")
pytest.importorskip("PIL")
pytest.importorskip("transformers")

from .targets import REFUSALS, TARGETS, read_model, read_trace, run

CORPUS = json.loads((Path(__file__).parent / "corpus.json").read_text(encoding="utf-8"))
pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.mark.parametrize("target", TARGETS)
def test_what_is_refused_says_why(target: str) -> None:
    @settings(
        max_examples=int(os.environ.get("REGARD_EXAMPLES", "15")),
        deadline=timedelta(minutes=1),
        derandomize="REGARD_EXAMPLES" not in os.environ,
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
