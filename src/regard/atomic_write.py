"""Writing files and folders whole or not at all, so that a kill or a power cut loses nothing that was finished.

Content goes to a temporary name beside its place and is flushed to the disk (fsync). Then it is renamed, and the folder
is flushed. A reader sees the old content or the new one, never a part; so does a reader after a power cut, who sees the
new one if the call had returned. An error leaves the old content and no temporary file; only a killed process leaves
one behind, named `.NAME-0123abcd.unfinished`. tests/training/trainer/test_power_cut.py replays a run with everything
lost that was not flushed.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
from contextlib import contextmanager
from pathlib import Path
from secrets import token_hex
from stat import S_IMODE
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    AnyPath = str | os.PathLike[str]

SUFFIX = ".unfinished"
FORMER = ".former"
"""Of a folder that another one is about to replace: `remove_unfinished` puts it back where that did not happen."""
LONGEST = 40
"""Characters of a name that temporary names repeat."""
LEFTOVER = re.compile(r"(?:\.(?P<name>.{1,40})|cache)-[a-z0-9_]{8}(?P<suffix>\.unfinished|\.former)", re.DOTALL)
"""Names that `_beside` gives, and those of temporary folders of a run. Nothing of another name is ever removed."""
NO_FOLDER_SYNC = {errno.EINVAL, errno.ENOTSUP, errno.EBADF, errno.EACCES}
"""Errors of file systems that flush no folder. Any other, such as EIO, means that data may be lost, and is raised."""


def write_text(path: AnyPath, text: str) -> None:
    """Write a text file in UTF-8, line ends as they are."""
    write_bytes(path, text.encode("utf-8"))


def write_bytes(path: AnyPath, content: bytes) -> None:
    with replacing_file(path) as unfinished:
        unfinished.write_bytes(content)


def append_text(path: AnyPath, text: str) -> None:
    """Append to a text file with one write, so that a kill leaves whole lines. `sync` makes it survive a power cut."""
    handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | getattr(os, "O_BINARY", 0), 0o666)
    try:
        content = text.encode("utf-8")
        while content:
            content = content[os.write(handle, content) :]
    finally:
        os.close(handle)


def make_folder(path: AnyPath) -> Path:
    """Make a folder and its missing parents, if it is not there, and flush their names to the disk."""
    path = Path(path)
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    for folder in reversed(missing):
        folder.mkdir(exist_ok=True)
        sync(folder.parent)
    return path


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
    sync(path.parent)


@contextmanager
def replacing_folder(path: AnyPath) -> Iterator[Path]:
    """Give the path of an empty folder to fill; it then takes the place of `path`, whatever that held."""
    path = Path(path)
    make_folder(path.parent)
    unfinished = _beside(path)
    unfinished.mkdir()
    mode = S_IMODE(unfinished.stat().st_mode) & 0o666
    try:
        yield unfinished
        for part in unfinished.rglob("*"):
            _settle(part, mode)
        sync(unfinished)
        if path.is_dir() and not path.is_symlink():  # a folder cannot be renamed over one that is not empty
            former = _beside(path, FORMER)
            try:
                path.rename(former)
                unfinished.rename(path)
            except BaseException:  # Ctrl-C between the two, too
                if former.is_dir() and not path.exists():
                    former.rename(path)
                raise
            sync(path.parent)
            shutil.rmtree(former)
        else:
            unfinished.replace(path)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    sync(path.parent)


def remove_unfinished(folder: Path) -> None:
    """Remove what killed processes left below a folder, and put back what they were about to replace.

    Nobody else may be writing there.
    """
    left = [(path, match) for path in folder.rglob("*") if (match := LEFTOVER.fullmatch(path.name))]
    for former, match in left:
        if match["suffix"] != FORMER or len(match["name"] or "") in (0, LONGEST):  # it may have been cut
            continue
        place = former.with_name(match["name"])
        if place.exists():
            shutil.rmtree(former)
        else:
            former.rename(place)
            sync(place.parent)
    for path, match in left:
        if match["suffix"] != SUFFIX:
            continue
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


def is_leftover(path: Path) -> bool:
    """Whether a killed process left this behind."""
    return LEFTOVER.fullmatch(path.name) is not None


def _beside(path: Path, suffix: str = SUFFIX) -> Path:
    return path.with_name(f".{path.name[:LONGEST]}-{token_hex(4)}{suffix}")


def sync(path: AnyPath) -> None:
    """Flush a file, or the names in a folder, to the disk."""
    folder = Path(path).is_dir()
    if folder and os.name == "nt":  # Windows opens no folder
        return
    handle = os.open(path, os.O_RDONLY if folder or os.name != "nt" else os.O_RDWR)
    try:
        _flush(handle)
    except OSError as error:
        if not (folder and error.errno in NO_FOLDER_SYNC):
            raise type(error)(error.errno, error.strerror, str(path)) from None
    finally:
        os.close(handle)


def _settle(path: Path, mode: int) -> None:
    if path.is_file():
        path.chmod(S_IMODE(path.stat().st_mode) | mode)
    sync(path)


def _flush(handle: int) -> None:
    try:
        import fcntl
    except ModuleNotFoundError:  # Windows
        os.fsync(handle)
        return
    if hasattr(fcntl, "F_FULLFSYNC"):  # macOS: fsync leaves the data in the cache of the drive
        fcntl.fcntl(handle, fcntl.F_FULLFSYNC)
    else:
        os.fsync(handle)
