"""Restarts by a launcher, and what is said when the number of processes changes."""

from __future__ import annotations

from typing import Any

import pytest

from regard.training.distributed import RESTARTS, batch_remark, check_processes, restarted
from regard.training.recipe_sections import TrainingSection


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, False),
        ({"TORCHELASTIC_RESTART_COUNT": "0"}, False),
        ({"TORCHELASTIC_RESTART_COUNT": "2"}, True),
        ({"SLURM_RESTART_COUNT": "1"}, True),
    ],
)
def test_a_launcher_says_that_it_starts_again(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], expected: bool
) -> None:
    for name in RESTARTS:
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert restarted() is expected


@pytest.mark.parametrize(
    ("changed", "before"),
    [
        ({}, None),
        ({"training.devices": [8, 2], "training.accumulate": [1, 4]}, None),  # 8 × 1 and 2 × 4
        ({"training.devices": [4, 2]}, 16),
        ({"training.nodes": [3, 1]}, 24),
        ({"training.rate": [0.1, 0.2]}, None),
    ],
)
def test_updates_of_another_size_are_remarked(changed: dict[str, Any], before: int | None) -> None:
    remark = batch_remark(TrainingSection(devices=2, accumulate=4), changed)
    assert (remark is None) == (before is None)
    if remark is not None:
        assert remark.startswith(f"an update takes 8 batches from here on, and took {before} so far")


def test_one_process_is_no_plural(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"TORCHELASTIC_RUN_ID": "1", "WORLD_SIZE": "1"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ValueError, match=r"^torchrun started 1 process, .* training\.devices = 2 on each of "):
        check_processes(TrainingSection(devices=2))


def test_several_devices_are_started_by_torchrun(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TORCHELASTIC_RUN_ID", "SLURM_NTASKS"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ValueError, match=r"torchrun --standalone --nproc-per-node 2 -m regard train"):
        check_processes(TrainingSection(devices=2))
