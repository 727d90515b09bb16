"""The files of weight snapshots: their order, and which one is used of a run that is not finished."""

from __future__ import annotations

from typing import TYPE_CHECKING

from regard.models.weight_snapshots import best_or_newest, snapshot_file, snapshot_files, snapshot_update

if TYPE_CHECKING:
    from pathlib import Path


def test_files_are_in_the_order_of_their_updates(tmp_path: Path) -> None:
    for update in (100_000_000, 99_999_999, 7):  # the first has more digits than names are padded to
        snapshot_file(tmp_path, "update", update).touch()
    for copy in ("update-copy", "update-00000010-before-the-move"):
        (tmp_path / f"{copy}.safetensors").touch()
    assert [snapshot_update(file) for file in snapshot_files(tmp_path, "update")] == [7, 99_999_999, 100_000_000]


def test_the_best_comes_before_the_newest(tmp_path: Path) -> None:
    assert best_or_newest(tmp_path) is None
    snapshot_file(tmp_path, "update", 20).touch()
    assert best_or_newest(tmp_path) == tmp_path / "update-00000020.safetensors"
    snapshot_file(tmp_path, "best", 10).touch()
    assert best_or_newest(tmp_path) == tmp_path / "best-00000010.safetensors"
