"""metrics.csv: what training measured, a line at a time, without gaps or repeats after an interruption."""

from __future__ import annotations

import csv
import io
from typing import TYPE_CHECKING

from ...atomic_write import write_text

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

FIRST = (
    "update",
    "epoch",
    "loss",  # what is minimised: smoothed, per target token
    "nll",  # −log p per target token
    "rate",
    "tokens_per_second",  # target tokens
    "valid_nll",
)


class MetricsFile:
    """Appends lines; `begin` first drops those that an interrupted run wrote past its last checkpoint.

    The last column is what the task's validation measures.
    """

    def __init__(self, path: Path, last: str) -> None:
        self.path, self.columns = path, (*FIRST, last)

    def begin(self, update: int) -> None:
        kept = []
        if self.path.exists():
            with self.path.open(encoding="utf-8", newline="") as file:
                kept = [row for row in csv.reader(file) if len(row) == len(self.columns) and row[0].isdecimal()]
        lines = io.StringIO()
        csv.writer(lines).writerows([self.columns, *(row for row in kept if int(row[0]) <= update)])
        write_text(self.path, lines.getvalue())

    def write(self, values: Mapping[str, int | float]) -> None:
        line = io.StringIO()
        csv.DictWriter(line, self.columns).writerow(dict(values))
        with self.path.open("a", encoding="utf-8", newline="") as file:  # one write: a kill leaves whole lines
            file.write(line.getvalue())
