"""Learning curves: what a run's metrics.csv says, as points by update."""

from __future__ import annotations

import csv
import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


def learning_curve(metrics: Path, column: str) -> list[tuple[float, float]]:
    """The points (update, value) of a column, such as "valid_nll"; lines without a finite value are left out."""
    points = []
    with metrics.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            if column not in row:
                raise ValueError(f"{metrics} has no column {column}; it has {', '.join(row)}")
            if row[column] and math.isfinite(float(row[column])):
                points.append((float(row["update"]), float(row[column])))
    return points
