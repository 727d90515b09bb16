"""Files: written whole or not at all, read as JSON, verified by checksums.

Content goes to a temporary name beside its place and is flushed to the disk (fsync). Then it is renamed, and the folder
is flushed. A reader sees the old content or the new one, never a part; so does a reader after a power cut, who sees the
new one if the call had returned. An error leaves the old content and no temporary file; only a killed process leaves
one behind, named `.NAME-0123abcd.unfinished`. tests/training/test_power_cut.py replays a run with everything
lost that was not flushed.

`checksums.json` in a folder has the SHA-256 of files beside it, and a damaged file is refused by name. It has a SHA-256
of its own content too. Without it, a flipped bit in a checksum would look like damage of the file that it belongs to.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import shutil
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from secrets import token_hex
from stat import S_IMODE
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

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


CACHE = "REGARD_CACHE"


def cache_folder() -> Path:
    """Where commands keep what they would else make again."""
    default = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "regard"
    return Path(os.environ.get(CACHE) or default).expanduser()


def check_figure_path(path: AnyPath) -> Path:
    """The path, if a figure can be written there. Call it before a long computation."""
    path = _check_output(Path(path), "figure", (".png", ".svg", ".pdf"))
    if find_spec("matplotlib") is None:
        raise ValueError("figures need matplotlib; install it with: pip install 'regard[train]'")
    return path


def check_table_path(path: AnyPath) -> Path:
    """The path, if a table can be written there. Call it before a long computation."""
    return _check_output(Path(path), "table", (".csv", ".parquet"))


def _check_output(path: Path, what: str, suffixes: tuple[str, ...]) -> Path:
    if path.suffix not in suffixes:
        known = f"{', '.join(suffixes[:-1])} or {suffixes[-1]}"
        raise ValueError(f"{path}: a {what} is written as {known}; end the name in one of them")
    if not path.parent.is_dir():
        raise ValueError(f"{path}: there is no folder {path.parent}")
    return path


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


@contextmanager
def locked_folder(path: AnyPath, busy: str) -> Iterator[None]:
    """Lock the folder; a ValueError that says `busy` if another process has. Nothing is locked on Windows."""
    try:
        import fcntl
    except ModuleNotFoundError:  # not on Windows
        yield
        return
    handle = os.open(path, os.O_RDONLY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)  # released however the process ends
        except BlockingIOError:
            raise ValueError(busy) from None
        yield
    finally:
        os.close(handle)


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


LARGEST = 16 << 20
"""The maximum size of a file, in bytes."""


class DamagedFileError(ValueError):
    """A file that is not what was written: its name, and what to do."""


def read_json(file: Path, advice: str = "get it again", largest: int = LARGEST) -> Any:
    """What a JSON file holds."""
    size = file.stat().st_size
    if size > largest:
        raise DamagedFileError(f"{file} has {size:,} bytes; at most {largest:,} are read; {advice}")
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        reason = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise DamagedFileError(f"{file} is not JSON: {reason}; {advice}") from None


def read_object(file: Path, advice: str = "get it again", largest: int = LARGEST) -> dict[str, Any]:
    """The JSON object in a file."""
    value = read_json(file, advice, largest)
    if not isinstance(value, dict):
        raise DamagedFileError(f"{file} holds a {type(value).__name__}; it should be a JSON object; {advice}")
    return value


CHECKSUMS = "checksums.json"
OWN = "own_sha256"
"""The key of the SHA-256 of the other content of `checksums.json`."""


def sha256(path: AnyPath) -> str:
    """The SHA-256 of a file, in hexadecimal."""
    with Path(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_list(file: Path, content: dict[str, Any]) -> None:
    """Write a list of checksums, with the SHA-256 of the list itself."""
    write_text(file, json.dumps({**content, OWN: _content_sha256(content)}, indent=1) + "\n")


def read_list(file: Path, advice: str) -> dict[str, Any]:
    """Read what `write_list` wrote; a DamagedFileError where it is damaged. Earlier versions did not write `OWN`."""
    content = read_object(file, advice)
    return verified(content, file, advice) if OWN in content else content


def verified(content: dict[str, Any], file: Path, advice: str) -> dict[str, Any]:
    """What `write_list` was given, from what it wrote; a DamagedFileError where that is not what was written."""
    stated = content.pop(OWN, None)
    if stated != _content_sha256(content):
        raise DamagedFileError(f"{file} is damaged: its content does not have the SHA-256 that it states; {advice}")
    return content


def _content_sha256(content: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def write_checksums(folder: Path, names: Iterable[str]) -> None:
    """Write `checksums.json` for these files, named relative to the folder."""
    write_list(folder / CHECKSUMS, {"sha256": {name: sha256(folder / name) for name in sorted(names)}})


def check_files(folder: Path, advice: str, names: Iterable[str] | None = None) -> None:
    """Raise a DamagedFileError that names the first file that is missing or is not what was written.

    Checks `names`, by default all that are listed. A folder without `checksums.json`, written by an earlier version,
    is not checked.
    """
    file = folder / CHECKSUMS
    if not file.is_file():
        return
    own_advice = f"remove it to go on without comparing checksums, or {advice}"
    expected = read_list(file, own_advice).get("sha256")
    if not isinstance(expected, dict):
        raise DamagedFileError(f"{file} is damaged: it has no sha256; {own_advice}")
    for name, digest in expected.items():
        if names is None or name in names:
            check_file(folder / name, digest, advice)


def check_file(path: Path, digest: object, advice: str) -> None:
    """Raise a DamagedFileError where a file is missing or has another SHA-256."""
    if not path.is_file():
        raise DamagedFileError(f"{path} is missing; {advice}")
    actual = sha256(path)
    if actual != digest:
        raise DamagedFileError(
            f"{path} is damaged: its SHA-256 is {actual[:12]}…, and {str(digest)[:12]}… was written; {advice}"
        )
