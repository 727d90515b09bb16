"""TraceView: the same trace has the same id, and a file that contradicts itself is refused."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
import torch
from safetensors.torch import load_file, save_file

import regard
from regard.files import write_list
from regard.seeing import load_trace
from regard.viewer.trace_view import TraceView
from tests.support.viewer_client import app_of, get, json_of, seen_of

if TYPE_CHECKING:
    from pathlib import Path


def test_the_same_trace_has_the_same_name() -> None:
    assert app_of(seen_of())[1] == app_of(seen_of())[1] != app_of(seen_of(batch=1))[1]


def _rewritten(folder: Path, **changes: object) -> None:
    about = json.loads((folder / "trace.json").read_text())
    del about["own_sha256"]
    about["calls"][0] |= changes
    write_list(folder / "trace.json", about)


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
    _rewritten(tmp_path / "trace", sha256=None)  # a stranger's digests would fit
    if wrong == "narrow":
        with pytest.raises(ValueError, match="cannot be shown"):
            TraceView.of(load_trace(tmp_path / "trace"))
        return
    app, root = app_of(load_trace(tmp_path / "trace"))
    assert json_of(get(app, root))["calls"][0]["fidelity"]["kept"] is not True
    for path in ("stats", "patterns", "calls/0/top", "calls/0/neuron?query=3", "thumbs", "calls/0/received"):
        assert get(app, f"{root}/{path}").status == 200, path


def test_statistics_that_are_not_defined_are_null() -> None:
    """Weights of sums may be negative: they have no entropy, and JSON has no NaN."""
    shown = TraceView.of(seen_of({"normalize": regard.Unnormalized()}, {"normalize": regard.Softmax(sink=0.0)}))
    sums, sinks = shown.statistics(0, 0), shown.statistics(1, 0)
    assert sums["entropy"] == [None, None, None]
    assert all(isinstance(x, float) for x in (*sums["confidence"], *sinks["entropy"]))
    json.dumps(sums, allow_nan=False)
