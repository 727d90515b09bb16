"""The lines of a text file, plain or compressed, one at a time and never more than a limit in memory."""

from __future__ import annotations

import gzip
import lzma
import zlib
from contextlib import contextmanager, suppress
from typing import IO, TYPE_CHECKING, Any

from .pair import RowProblem

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

LONGEST = 1 << 20  # bytes; a longer line is no sentence, and a file without line ends must not fill the memory
LARGEST = 1 << 28  # bytes of running text
COMPRESSED: dict[str, Callable[..., Any]] = {".gz": gzip.open, ".xz": lzma.open}
DAMAGE = (EOFError, gzip.BadGzipFile, lzma.LZMAError, zlib.error)
BOM = b"\xef\xbb\xbf"


@contextmanager
def opened(path: Path) -> Iterator[IO[bytes]]:
    """A file opened for reading, decompressed; damage is an error that names the line where it begins."""
    with _open_binary(path) as file:
        try:
            yield file
        except DAMAGE as error:
            raise ValueError(f"{path}:{_damaged_line(path)}: the file is damaged from here on: {error}") from error


def _open_binary(path: Path) -> Any:
    return COMPRESSED.get(path.suffix, open)(path, "rb")


def _damaged_line(path: Path) -> int:
    """The number of the first line that cannot be read."""
    number = 0
    with _open_binary(path) as file, suppress(*DAMAGE):
        for number, _ in enumerate(read(file), 1):  # noqa: B007  the number is the result
            pass
    return number + 1


def lines(path: Path) -> Iterator[str | RowProblem]:
    """The lines of a file, as `read` gives them."""
    with opened(path) as file:
        yield from read(file)


def text(path: Path) -> str:
    """A whole file, plain or compressed, with \\n at the end of every line."""
    with opened(path) as file:
        content = file.read(LARGEST + 1)
    if len(content) > LARGEST:
        raise ValueError(f"{path} has more than {LARGEST:,} bytes, and running text is held whole; cut it up")
    try:
        return str(content.decode("utf-8-sig")).replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: byte {error.start + 1}, 0x{content[error.start]:02x}, is not UTF-8") from None


def read(file: IO[bytes]) -> Iterator[str | RowProblem]:
    """Each line without its end; a RowProblem for one that is too long or not UTF-8. Only \\n and \\r\\n end a line.

    A byte order mark at the beginning is left out; a file that is only this mark has no lines.
    """
    return map(decode, raw_lines(file))


def raw_lines(file: IO[bytes]) -> Iterator[bytes]:
    """Each line with its end; of one that is too long, the first bytes."""
    first = True
    while line := file.readline(LONGEST + 2):  # the longest line and its end
        if len(line) == LONGEST + 2 and not line.endswith(b"\n"):
            _skip_rest(file)
        elif first and not (line := line.removeprefix(BOM)):
            return
        first = False
        yield line


def decode(line: bytes) -> str | RowProblem:
    text = line.removesuffix(b"\n").removesuffix(b"\r")
    if len(text) > LONGEST:
        return RowProblem("over-long line", f"the line is longer than {LONGEST:,} bytes")
    try:
        return text.decode("utf-8")
    except UnicodeDecodeError as error:
        return RowProblem(
            "undecodable bytes", f"byte {error.start + 1} of the line, 0x{text[error.start]:02x}, is not UTF-8"
        )


def _skip_rest(file: IO[bytes]) -> None:
    while (part := file.readline(LONGEST)) and not part.endswith(b"\n"):
        pass
