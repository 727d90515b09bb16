"""Text files in blocks of lines: where the blocks begin, and their bytes."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING

from ...checksums import sha256
from ..text_lines import opened

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

BLOCK_LINES = 50_000
"""Lines of a block. It is part of the cache's keys: other blocks are other shards."""
BLOCK_BYTES = 1 << 26  # at most; a file with longer lines is read line by line instead
PIECE = 1 << 18  # bytes read at a time; a line has less than twice as many, or the file is read line by line


class LongLinesError(Exception):
    """A file has lines that are too long to be read in blocks."""


@dataclass(frozen=True)
class FileScan:
    """What one pass over a file tells.

    `cuts` are the bytes where blocks begin, and where the last one ends; () where it cannot be read in blocks. `stamp`
    tells later whether the file was changed since (`require_unchanged`).
    """

    sha256: str
    lines: int
    cuts: tuple[int, ...]
    stamp: str


def require_unchanged(path: Path, stamp: str) -> None:
    """Raise an error where a file was written or replaced since its scan: it may not have the content of its hash."""
    if _stamp(path) != stamp:
        raise ValueError(f"{path} changed while it was read; start again when no other program writes it")


def _stamp(path: Path) -> str:
    """The inode, size and time of modification of a file, or of all files in a folder."""
    files = sorted(path.rglob("*")) if path.is_dir() else [path]
    stats = [(file.relative_to(path).as_posix(), file.stat()) for file in files if file.is_file()]
    content = json.dumps([[name, stat.st_ino, stat.st_size, stat.st_mtime_ns] for name, stat in stats])
    return hashlib.sha256(content.encode()).hexdigest()


def scan_file(path: Path) -> FileScan:
    """Hash a file and count its lines, after decompression; of Parquet and of a folder, hash only."""
    stamp = _stamp(path)
    scan = _scan(path, stamp)
    require_unchanged(path, stamp)
    return scan


def _scan(path: Path, stamp: str) -> FileScan:
    if path.is_dir():
        files = {file.relative_to(path).as_posix(): sha256(file) for file in path.rglob("*") if file.is_file()}
        return FileScan(hashlib.sha256(json.dumps(files, sort_keys=True).encode()).hexdigest(), 0, (0,), stamp)
    digest = sha256(path)
    if path.suffix == ".parquet":
        return FileScan(digest, 0, (0,), stamp)
    cuts, lines = [0], 0
    with opened(path) as file:
        try:
            for block, count in _blocks(file):
                cuts.append(cuts[-1] + len(block))
                lines += count
        except LongLinesError:
            return FileScan(digest, lines, (), stamp)
    return FileScan(digest, lines, tuple(cuts), stamp)


def line_blocks(path: Path) -> Iterator[bytes]:
    """The bytes of each block, in order."""
    with opened(path) as file:
        for block, _ in _blocks(file):
            yield block


def read_block(path: Path, begin: int, end: int) -> bytes:
    """One block of a file that is not compressed."""
    with path.open("rb") as file:
        file.seek(begin)
        return file.read(end - begin)


def _blocks(file: IO[bytes]) -> Iterator[tuple[bytes, int]]:
    """Blocks of whole lines, and how many lines each has; the last line may lack its end."""
    parts: list[bytes] = []
    count = size = 0
    while piece := file.read(PIECE):
        newlines = piece.count(b"\n")
        if not newlines and len(piece) == PIECE:
            raise LongLinesError
        while count + newlines >= BLOCK_LINES:
            cut = 0
            for _ in range(BLOCK_LINES - count):
                cut = piece.index(b"\n", cut) + 1
            yield b"".join([*parts, piece[:cut]]), BLOCK_LINES
            parts, piece, newlines, count, size = [], piece[cut:], newlines - (BLOCK_LINES - count), 0, 0
        parts.append(piece)
        count, size = count + newlines, size + len(piece)
        if size > BLOCK_BYTES:
            raise LongLinesError
    if size:
        yield b"".join(parts), count + (not parts[-1].endswith(b"\n"))
