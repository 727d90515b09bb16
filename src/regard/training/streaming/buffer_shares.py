"""Buffers of a stream that several processes encode together, each a share of the rows.

The shares are exchanged through a folder of the run, which all processes see. So the process that makes the batches, a
worker of a DataLoader, needs no process group.
"""

from __future__ import annotations

import multiprocessing
import shutil
import time
from typing import TYPE_CHECKING, Protocol

from ...data import EncodedCorpus

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from ...data.preparation.row_chunk import RowChunk

NAME = "stream-shares"
PAUSE = 0.02
"""Seconds between two looks at the folder."""
LIMIT = 1800.0
"""Seconds that a process waits for another one, as PyTorch's process groups do."""


class BuildCorpus(Protocol):
    """Encodes chunks of rows, into a new folder or into memory."""

    def __call__(self, chunks: Iterable[RowChunk], *, folder: Path | None = None) -> EncodedCorpus: ...


class BufferShares:
    """The shares of one of `world` processes.

    Every process reads all rows of a buffer, encodes a contiguous part of them into the folder, and then reads the
    parts of the others. Once it has all parts of a buffer, it removes its own part of the buffer before: the others
    have read that one whole before they write this one.

    `session` is a name that no other session of the run has. Workers of killed processes go on for a moment: what they
    write, perhaps for another number of processes, is not read by those that resume the run.
    """

    def __init__(self, folder: Path, session: str, rank: int, world: int) -> None:
        self._root, self.folder, self.rank, self.world = folder, folder / session, rank, world
        self._last: Path | None = None

    def clear(self) -> None:
        """Remove what earlier sessions left. One process does this, before any of them begins."""
        shutil.rmtree(self._root, ignore_errors=True)
        self.folder.mkdir(parents=True)

    def end(self) -> None:
        """This process makes no more batches: nobody waits for its shares, and its own worker waits for none.

        The last one removes the folder.
        """
        if not self.folder.is_dir():
            return
        self._end_mark(self.rank).touch()
        for share in self.folder.glob(f"*.{self.rank}"):
            shutil.rmtree(share, ignore_errors=True)
        if all(self._end_mark(rank).exists() for rank in range(self.world)):
            shutil.rmtree(self._root, ignore_errors=True)

    def build(self, name: str, chunks: Sequence[RowChunk], build: BuildCorpus) -> EncodedCorpus:
        """The corpus of all chunks; `name` is that of the buffer."""
        first, last = (len(chunks) * rank // self.world for rank in (self.rank, self.rank + 1))
        own = self.folder / f"{name}.{self.rank}"
        self._require_running(self.rank, name)
        build(chunks[first:last], folder=own)
        corpus = EncodedCorpus.concatenate([self._read(name, rank) for rank in range(self.world)])
        if self._last is not None:
            shutil.rmtree(self._last, ignore_errors=True)
        self._last = own
        return corpus

    def _read(self, name: str, rank: int) -> EncodedCorpus:
        share, deadline = self.folder / f"{name}.{rank}", time.monotonic() + LIMIT
        parent = multiprocessing.parent_process()
        while not share.is_dir():  # it is renamed when it is whole
            self._require_running(rank, name)
            if parent is not None and not parent.is_alive():
                raise RuntimeError("the process that this worker makes batches for has ended")
            if time.monotonic() > deadline:
                raise RuntimeError(
                    f"process {rank} has not written {share} for {LIMIT:.0f} seconds: it has ended, or its machine "
                    "does not share the run's folder"
                )
            time.sleep(PAUSE)
        try:
            return EncodedCorpus.load(share)
        except (OSError, ValueError):
            self._require_running(rank, name)  # a process that ends removes its shares
            raise

    def _require_running(self, rank: int, name: str) -> None:
        """Raise an error if the session, this process or the one of that rank has ended."""
        if not self.folder.is_dir() or self._end_mark(rank).exists() or self._end_mark(self.rank).exists():
            raise RuntimeError(f"process {rank} has ended, and its share of the buffer {name} is missing")

    def _end_mark(self, rank: int) -> Path:
        return self.folder / f"ended-{rank}"
