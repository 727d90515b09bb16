"""metrics.csv: what training measured, a line at a time, without gaps or repeats after an interruption."""

from __future__ import annotations

import csv
import hashlib
import io
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...atomic_write import append_text, sync, write_bytes, write_text
from ...json_file import DamagedFileError

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


@dataclass(frozen=True)
class MetricsMark:
    """How much of metrics.csv belongs to a checkpoint, and its SHA-256."""

    bytes: int
    sha256: str


class MetricsFile:
    """Appends lines; `begin` first drops those that an interrupted run wrote past its last checkpoint.

    The last column is what the task's validation measures.
    """

    def __init__(self, path: Path, last: str) -> None:
        self.path, self.columns = path, (*FIRST, last)

    def begin(self, update: int, mark: MetricsMark | None = None) -> None:
        if mark is not None and self.path.exists():
            write_bytes(self.path, check_mark(self.path, mark))
            return
        kept = []
        if update and self.path.exists():  # from update 0 everything is measured again, also what is before update 1
            text = self.path.read_bytes().replace(b"\0", b"").decode("utf-8", errors="replace")
            rows = csv.reader(io.StringIO(text, newline=""))
            kept = [row for row in rows if len(row) == len(self.columns) and row[0].isdecimal()]
        lines = io.StringIO()
        csv.writer(lines).writerows([self.columns, *(row for row in kept if int(row[0]) <= update)])
        write_text(self.path, lines.getvalue())

    def write(self, values: Mapping[str, int | float]) -> None:
        line = io.StringIO()
        csv.DictWriter(line, self.columns).writerow(dict(values))
        append_text(self.path, line.getvalue())

    def mark(self) -> MetricsMark:
        """Flush the lines to the disk: a checkpoint that is written after this can rely on them."""
        sync(self.path)
        content = self.path.read_bytes()
        return MetricsMark(len(content), hashlib.sha256(content).hexdigest())


def check_mark(path: Path, mark: MetricsMark) -> bytes:
    """The content that belongs to a checkpoint; an error that names the file where it is not what was written.

    A file that was removed has nothing to check.
    """
    content = path.read_bytes()[: mark.bytes] if path.exists() else b""
    if path.exists() and hashlib.sha256(content).hexdigest() != mark.sha256:
        raise DamagedFileError(
            f"{path} is damaged: its first {mark.bytes:,} bytes are not those that were written; restore it from a "
            "copy, or remove it to continue without its lines so far"
        )
    return content
