"""Snapshots: the weights of a model in training, files in checkpoints/ of its run, which also has its config.json."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from pathlib import Path

Kind = Literal["update", "best"]


def snapshot_file(folder: Path, kind: Kind, update: int) -> Path:
    """The file of the weights after an update; "best" are those with the best score so far."""
    return folder / f"{kind}-{update:08d}.safetensors"


def snapshot_files(folder: Path, kind: Kind) -> list[Path]:
    """Those there are, the oldest first. Files that somebody copied beside them have other names."""
    files = (file for file in folder.glob(f"{kind}-*.safetensors") if re.fullmatch(rf"{kind}-[0-9]+", file.stem))
    return sorted(files, key=snapshot_update)


def snapshot_update(file: Path) -> int:
    """The update that the weights of a file are of."""
    return int(file.stem.split("-")[1])


def best_or_newest(folder: Path) -> Path | None:
    """The snapshot with the best score, or the newest before the first validation; None where there is none."""
    files = snapshot_files(folder, "best") or snapshot_files(folder, "update")
    return files[-1] if files else None
