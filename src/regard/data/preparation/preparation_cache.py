"""The cache of prepared corpora and vocabularies, which runs share.

The folder is $REGARD_CACHE, else $XDG_CACHE_HOME/regard, else ~/.cache/regard. An entry is a folder named by a hash of
all that it depends on. It is written whole or not at all, has the checksums of its files, and is locked while it is
made or used. When the cache is larger than $REGARD_CACHE_LIMIT gigabytes, the entries that were not used for the
longest time are removed.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from secrets import token_hex
from stat import S_ISREG
from typing import TYPE_CHECKING, Any

from ...atomic_write import SUFFIX
from ...checksums import CHECKSUMS, check_files
from ...json_file import DamagedFileError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

VARIABLE, LIMIT_VARIABLE = "REGARD_CACHE", "REGARD_CACHE_LIMIT"
LIMIT = 20.0  # gigabytes
FORMAT = 3  # of the entries; another number makes all of them anew
KINDS = {"corpora": "encoded corpora", "vocabularies": "vocabularies", "shards": "parts of unfinished corpora"}
LOCKS = "locks"


@dataclass(frozen=True)
class CacheEntry:
    path: Path
    bytes: int
    used: float  # when, in seconds since 1970


def cache_key(**settings: Any) -> str:
    """The name of an entry that depends on these settings."""
    return hashlib.sha256(json.dumps({"format": FORMAT, **settings}, sort_keys=True).encode()).hexdigest()[:40]


class PreparationCache:
    """The entries in a folder. The folder is made when something is kept in it."""

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = _default_folder() if folder is None else folder

    def path(self, kind: str, key: str) -> Path:
        return self.folder / kind / key

    def find(self, kind: str, key: str, say: Callable[[str], None]) -> Path | None:
        """The folder of an entry that is whole. A damaged one is removed, and is made again."""
        path = self.path(kind, key)
        if not os.path.lexists(path):
            return None
        try:
            if not (path / CHECKSUMS).is_file():  # `check_files` takes such a folder for one of an earlier version
                raise DamagedFileError(f"{path / CHECKSUMS} is missing")
            check_files(path, "it is removed")
        except DamagedFileError as error:
            say(f"the cache has a damaged entry, which is made again: {error}")
            _delete(path)
            return None
        os.utime(path)
        return path

    @contextmanager
    def lock(self, key: str, say: Callable[[str], None] = lambda line: None) -> Iterator[None]:
        """One process at a time makes or uses an entry; another one waits. Released however the process ends."""
        waited = False
        while (handle := self._locked_handle(key)) is None:
            if not waited:
                say("another process is preparing the same data: waiting for it")
            waited = True
            time.sleep(0.2)
        try:
            yield
        finally:
            os.close(handle)

    def _locked_handle(self, key: str) -> int | None:
        """The lock file of a key, opened and locked; None where another process has locked it."""
        self.folder.mkdir(parents=True, mode=0o700, exist_ok=True)
        path = self.folder / LOCKS / key
        path.parent.mkdir(exist_ok=True)
        while True:
            handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
            if not _try_lock(handle):
                os.close(handle)
                return None
            with suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(handle), path.stat()):
                    return handle
            os.close(handle)  # the process that had locked it has removed it: a new file is the lock

    def entries(self) -> list[CacheEntry]:
        """All of them, the one that was not used for the longest time first."""
        entries = []
        for kind in KINDS:
            for path in (self.folder / kind).glob("*"):
                with suppress(FileNotFoundError):  # another process has just removed it
                    stats = [file.lstat() for file in (path.rglob("*") if _is_folder(path) else [path])]
                    files = [stat for stat in stats if S_ISREG(stat.st_mode)]
                    used = max([path.lstat().st_mtime, *(file.st_mtime for file in files if kind == "shards")])
                    entries.append(CacheEntry(path, sum(file.st_size for file in files), used))
        return sorted(entries, key=lambda entry: entry.used)

    def prune(self) -> None:
        """Remove entries until the rest is within the limit."""
        limit = _limit() * 1e9
        entries = self.entries()
        total = sum(entry.bytes for entry in entries)
        for entry in entries:
            if total <= limit:
                return
            if self._remove(entry.path):
                total -= entry.bytes

    def clear(self) -> tuple[int, int]:
        """Remove all entries that no process uses; how many were removed, and how many were left.

        An entry is left where a process uses it, or where the file system does not let it be removed.
        """
        removed = [self._remove(entry.path) for entry in self.entries()]
        for lock in (self.folder / LOCKS).glob("*"):
            handle = self._locked_handle(lock.name)
            if handle is not None:
                _remove_lock(lock, handle)
        return sum(removed), len(removed) - sum(removed)

    def _remove(self, path: Path) -> bool:
        """Remove an entry that no process uses, or what a killed process left of one; whether it is gone."""
        key = path.name[1:].partition("-")[0] if path.name.startswith(".") else path.name
        handle = self._locked_handle(key)
        if handle is None:
            return False
        try:
            return _delete(path)
        finally:
            _remove_lock(self.folder / LOCKS / key, handle)


def _delete(path: Path) -> bool:
    """Delete a folder, file or link; whether it is gone. A folder gets another name first: no entry is half deleted."""
    with suppress(OSError):
        if not _is_folder(path):
            path.unlink()
        elif path.name.endswith(SUFFIX):
            shutil.rmtree(path, ignore_errors=True)
        else:
            unfinished = path.with_name(f".{path.name}-{token_hex(4)}{SUFFIX}")
            path.rename(unfinished)
            path = unfinished
            shutil.rmtree(path, ignore_errors=True)
    return not os.path.lexists(path)


def _is_folder(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink()


def _remove_lock(path: Path, handle: int) -> None:
    """Remove a lock file, which this process has locked, and close it."""
    with suppress(OSError):  # Windows removes no file that is open
        path.unlink()
    os.close(handle)


def _default_folder() -> Path:
    if own := os.environ.get(VARIABLE):
        return Path(own).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "regard"


def _limit() -> float:
    setting = os.environ.get(LIMIT_VARIABLE, "") or str(LIMIT)
    try:
        limit = float(setting)
    except ValueError:
        limit = -1.0
    if not limit >= 0:
        raise ValueError(f"{LIMIT_VARIABLE} is {setting!r:.40}; it should be a number of gigabytes, such as 20")
    return limit


def _try_lock(handle: int) -> bool:
    try:
        import fcntl
    except ModuleNotFoundError:  # Windows: two processes may make the same entry, and the later one replaces it
        return True
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
