"""Writing files and folders whole or not at all.

Content goes to a temporary name beside its place, is flushed to the disk, and is then renamed. A reader sees the old
content or the new one, never a part. An error leaves the old content and no temporary file; only a killed process
leaves one behind, named `*.unfinished`.
"""

from __future__ import annotations

import os
import shutil
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from secrets import token_hex
from stat import S_IMODE
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    AnyPath = str | os.PathLike[str]

SUFFIX = ".unfinished"


def write_text(path: AnyPath, text: str) -> None:
    """Write a text file in UTF-8, line ends as they are."""
    write_bytes(path, text.encode("utf-8"))


def write_bytes(path: AnyPath, content: bytes) -> None:
    with replacing_file(path) as unfinished:
        unfinished.write_bytes(content)


@contextmanager
def replacing_file(path: AnyPath) -> Iterator[Path]:
    """Give the path of an empty file to write; it then takes the place of `path` (of the link, where that is one).

    Its permissions are those the umask gives, even if a library replaced it with a file for the owner alone.
    """
    path = Path(path)
    unfinished = _beside(path)
    try:
        os.close(os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666))
    except OSError as error:
        raise type(error)(error.errno, error.strerror, str(path)) from None
    mode = S_IMODE(unfinished.stat().st_mode)
    try:
        yield unfinished
        _settle(unfinished, mode)
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)
    _sync(path.parent)


@contextmanager
def replacing_folder(path: AnyPath) -> Iterator[Path]:
    """Give the path of an empty folder to fill; it then takes the place of `path`, whatever that held."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = _beside(path)
    unfinished.mkdir()
    mode = S_IMODE(unfinished.stat().st_mode) & 0o666
    try:
        yield unfinished
        for part in unfinished.rglob("*"):
            _settle(part, mode)
        _sync(unfinished)
        if path.is_dir() and not path.is_symlink():  # a folder cannot be renamed over one that is not empty
            former = path.rename(_beside(path))
            unfinished.rename(path)
            shutil.rmtree(former)
        else:
            unfinished.replace(path)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    _sync(path.parent)


def remove_unfinished(folder: Path) -> None:
    """Remove what killed processes left below a folder. Nobody else may be writing there."""
    for path in list(folder.rglob(f"*{SUFFIX}")):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


def _beside(path: Path) -> Path:
    return path.with_name(f".{path.name[:40]}-{token_hex(4)}{SUFFIX}")


def _settle(path: Path, mode: int) -> None:
    if path.is_file():
        path.chmod(S_IMODE(path.stat().st_mode) | mode)
    _sync(path)


def _sync(path: Path) -> None:
    """Flush a file, or the names in a folder, to the disk."""
    folder = path.is_dir()
    if folder and os.name == "nt":  # Windows opens no folder
        return
    handle = os.open(path, os.O_RDONLY)
    try:
        with suppress(OSError) if folder else nullcontext():  # some file systems flush no folder
            os.fsync(handle)
    finally:
        os.close(handle)
