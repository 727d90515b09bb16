"""Datasets of the Hub: no version of `datasets` runs a dataset's own code."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import pytest

from regard.data.arrow_rows import DatasetSplit


@pytest.mark.parametrize(("version", "expected"), [("3.6.0", {"trust_remote_code": False}), ("4.0.0", {})])
def test_the_script_of_a_dataset_is_not_run(
    monkeypatch: pytest.MonkeyPatch, version: str, expected: dict[str, bool]
) -> None:
    calls: list[dict[str, Any]] = []
    library: Any = ModuleType("datasets")
    library.__version__ = version
    library.load_dataset = lambda *names, **options: calls.append(options)
    monkeypatch.setitem(sys.modules, "datasets", library)
    DatasetSplit("made/up", "train").open()
    assert [{name: each[name] for name in each if name == "trust_remote_code"} for each in calls] == [expected]
