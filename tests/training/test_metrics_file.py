"""metrics.csv: what a resumed run keeps of it."""

from __future__ import annotations

import csv
from typing import TYPE_CHECKING

from regard.training.checkpoint import MEASURES, MetricsFile

if TYPE_CHECKING:
    from pathlib import Path


def test_metrics_drop_what_comes_after_the_checkpoint(tmp_path: Path) -> None:
    metrics = MetricsFile(tmp_path / "metrics.csv", "valid_bleu")
    metrics.begin(0)
    for update in (1, 2, 3):
        metrics.write({"update": update, "loss": update / 3})
    with metrics.path.open("a") as file:
        file.write("4,0,0.1")  # a line that a kill cut short
    metrics.begin(2)
    with metrics.path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(row["update"], float(row["loss"])) for row in rows] == [("1", 1 / 3), ("2", 2 / 3)]
    assert tuple(rows[0]) == (*MEASURES, "valid_bleu")
