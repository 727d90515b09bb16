"""How many processes prepare data."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from regard.data.preparation import shard_worker
from regard.data.preparation.shard_worker import process_count

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(autouse=True)
def _many_cores(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("REGARD_PROCESSES", raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: range(192), raising=False)
    monkeypatch.setattr(shard_worker, "CONTROL_GROUP", tmp_path, raising=False)


@pytest.mark.parametrize(
    ("files", "count"),
    [
        ({}, 32),
        ({"cpu.max": "max 100000\n"}, 32),
        ({"cpu.max": "150000 100000\n"}, 2),
        ({"cpu.max": "50000 100000\n"}, 1),
        ({"cpu.max": "9000000 100000\n"}, 32),
        ({"cpu/cpu.cfs_quota_us": "400000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 4),
        ({"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, 32),
    ],
)
def test_a_container_has_as_many_processes_as_its_quota(files: dict[str, str], count: int, tmp_path: Path) -> None:
    (tmp_path / "cpu").mkdir()
    for name, content in files.items():
        (tmp_path / name).write_text(content)
    assert process_count() == count


def test_the_variable_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REGARD_PROCESSES", "64")
    assert process_count() == 64


def test_no_more_processes_than_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: range(3), raising=False)
    assert process_count() == 3
