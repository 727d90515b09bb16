"""data/stream.jsonl of a run: at which update each buffer of the stream began, and where in the corpus."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from ...atomic_write import append_text
from ...json_file import DamagedFileError

if TYPE_CHECKING:
    from pathlib import Path

NAME = "stream.jsonl"


@dataclass(frozen=True)
class StreamPosition:
    """The beginning of a buffer, and what was in it.

    `contents` and `files` are "" in lines of earlier versions, where they are not compared.
    """

    update: int  # how many updates were before it
    number: int  # of the buffer
    epoch: int  # of the corpus
    block: int  # of the epoch, the first that is in the buffer
    settings: str  # a hash of what decides how a buffer becomes batches
    pairs: int = 0
    skipped: int = 0  # bad rows
    dropped: int = 0  # pairs that are too long
    contents: str = ""  # a hash of what decides which pairs a buffer has
    files: str = ""  # a hash of the files (`StreamFiles`)


class StreamPositions:
    """A line for each buffer, written by the first process before any batch of the buffer is used.

    So a checkpoint of update n always has a line for the buffer that update n + 1 is in. After a kill, lines of later
    buffers are left over. They are written again, and the last line that fits counts.
    """

    def __init__(self, file: Path, *, writes: bool) -> None:
        self.file, self.writes = file, writes

    def read(self) -> list[StreamPosition]:
        """All lines; the last one is left out where a kill or a power cut damaged it."""
        return self._parse(self._content())[0]

    def find(self, update: int) -> StreamPosition | None:
        """The buffer from which the batches after so many updates come."""
        return next((each for each in reversed(self.read()) if each.update <= update), None)

    def append(self, position: StreamPosition) -> None:
        """Add a line, in place of a damaged last one."""
        if not self.writes:
            return
        content = self._content()
        _, size = self._parse(content)
        if size < len(content):
            os.truncate(self.file, size)
        line_end = "\n" if size and content[size - 1 : size] != b"\n" else ""
        append_text(self.file, line_end + json.dumps(asdict(position)) + "\n")

    def _content(self) -> bytes:
        return self.file.read_bytes() if self.file.is_file() else b""

    def _parse(self, content: bytes) -> tuple[list[StreamPosition], int]:
        """The positions, and how many bytes their lines have."""
        positions: list[StreamPosition] = []
        lines, size = content.splitlines(keepends=True), 0
        for number, line in enumerate(lines, 1):
            try:
                positions.append(StreamPosition(**json.loads(line)))
            except (ValueError, TypeError) as error:
                if number < len(lines):
                    raise DamagedFileError(
                        f"{self.file}:{number} is no position in a stream ({error}): restore the file from a copy, or "
                        "remove it, and the stream begins again"
                    ) from None
                break
            size += len(line)
        return positions, size
