"""data/stream.jsonl of a run: at which update each buffer of the stream began, and where in the corpus."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

NAME = "stream.jsonl"


@dataclass(frozen=True)
class StreamPosition:
    """The beginning of a buffer, and what was in it."""

    update: int  # how many updates were before it
    number: int  # of the buffer
    epoch: int  # of the corpus
    block: int  # of the epoch, the first that is in the buffer
    settings: str  # a hash of what decides how a buffer becomes batches
    pairs: int = 0
    skipped: int = 0  # bad rows
    dropped: int = 0  # pairs that are too long


class StreamPositions:
    """A line for each buffer, written by the first process before any batch of the buffer is used.

    So a checkpoint of update n always has a line for the buffer that update n + 1 is in. After a kill, lines of later
    buffers are left over. They are written again, and the last line that fits counts.
    """

    def __init__(self, file: Path, *, writes: bool) -> None:
        self.file, self.writes = file, writes

    def read(self) -> list[StreamPosition]:
        """All lines; one that was cut short by a kill is left out."""
        positions = []
        if self.file.is_file():
            for line in self.file.read_text(encoding="utf-8").splitlines():
                try:
                    positions.append(StreamPosition(**json.loads(line)))
                except (ValueError, TypeError):
                    continue
        return positions

    def find(self, update: int) -> StreamPosition | None:
        """The buffer from which the batches after so many updates come."""
        return next((each for each in reversed(self.read()) if each.update <= update), None)

    def append(self, position: StreamPosition) -> None:
        if self.writes:
            with self.file.open("a", encoding="utf-8") as file:
                file.write("\n" * self._is_cut() + json.dumps(asdict(position)) + "\n")

    def _is_cut(self) -> bool:
        content = self.file.read_bytes() if self.file.is_file() else b""
        return bool(content) and not content.endswith(b"\n")
