"""Datasets of the Hub: no version of `datasets` runs a dataset's own code."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import pytest

from regard.data import Pair
from regard.data.rows import DatasetSplit, header_remark


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


@pytest.mark.parametrize(
    ("sides", "where", "columns", "names", "noticed"),
    [
        (("source", "target"), "a.csv:1", (0, 1), (), True),
        (("Text", "Label"), "a.csv:1", (1, 0), (), True),
        (("kurdish", "zaza"), "a.csv:1", (0, 1), ("Kurdish", "zaza"), True),
        (("kurdish", "zaza"), "a.csv:1", (0, 1), (), False),
        (("source", "une source"), "a.csv:1", (0, 1), (), False),
        (("source", "target"), "a.csv:2", (0, 1), (), False),
        (("source", "target"), "a.csv:1", ("x", "y"), (), False),
    ],
)
def test_header(sides: tuple[str, str], where: str, columns: Any, names: tuple[str, ...], noticed: bool) -> None:
    remark = header_remark(Pair(*sides, 0, where), columns, "--columns {},{}", names)
    assert (remark is not None) == noticed
    if remark is not None:
        assert remark.startswith(f"a.csv:1 looks like a header ({sides[0]!r}, {sides[1]!r})")
        assert remark.endswith(f"--columns {sides[0]},{sides[1]}")
