"""The cache of prepared corpora and vocabularies that runs share.

Its folder is $REGARD_CACHE, else $XDG_CACHE_HOME/regard, else ~/.cache/regard. An entry is a folder named by a hash of
all that it depends on. It is written whole or not at all, and has the checksums of its files. When the cache is larger
than $REGARD_CACHE_LIMIT gigabytes, the entries that were not used for the longest time are removed.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ..files import CHECKSUMS, DamagedFileError, check_files, replacing_folder, write_checksums

if TYPE_CHECKING:
    from collections.abc import Callable

CACHE, CACHE_LIMIT = "REGARD_CACHE", "REGARD_CACHE_LIMIT"
LIMIT = 20.0  # gigabytes
FORMAT = 4  # of the entries; another number makes all of them anew
KINDS = {"corpora": "encoded corpora", "vocabularies": "vocabularies"}


def cache_key(**settings: object) -> str:
    """The name of an entry that depends on these settings."""
    return hashlib.sha256(json.dumps({"format": FORMAT, **settings}, sort_keys=True).encode()).hexdigest()[:40]


@dataclass(frozen=True)
class CacheEntry:
    path: Path
    bytes: int
    used: float  # when, in seconds since 1970


class PreparationCache:
    """The entries in a folder. It is made when something is kept in it.

    There are no locks: two processes that need the same entry at once both make it, and the second one finds it there.
    A run whose entry another process removes just now makes its own.
    """

    def __init__(self, folder: Path | None = None) -> None:
        default = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "regard"
        self.folder = Path(os.environ.get(CACHE) or default).expanduser() if folder is None else folder

    def path(self, kind: str, key: str) -> Path:
        return self.folder / kind / key

    def take(self, kind: str, key: str, folder: Path, say: Callable[[str], None]) -> bool:
        """Make `folder` with the files of an entry, if the cache has it whole. A damaged one is removed."""
        path = self.path(kind, key)
        if not os.path.lexists(path):
            return False
        try:
            if not (path / CHECKSUMS).is_file():
                raise DamagedFileError(f"{path / CHECKSUMS} is missing")
            check_files(path, "it is removed")
            os.utime(path)
            folder.mkdir()
            link_files(path, folder)
        except DamagedFileError as error:
            say(f"the cache has a damaged entry, which is made again: {error}")
            _delete(path)
            return False
        except FileNotFoundError:  # another process has just removed it
            shutil.rmtree(folder, ignore_errors=True)
            return False
        return True

    def keep(self, kind: str, key: str, fill: Callable[[Path], object], say: Callable[[str], None]) -> None:
        """Add an entry, whose folder `fill` fills, and remove old ones. A cache that cannot be written is no error."""
        path = self.path(kind, key)
        try:
            if not path.is_dir():
                with replacing_folder(path) as unfinished:
                    fill(unfinished)
                    write_checksums(unfinished, [file.name for file in unfinished.iterdir()])
        except OSError as error:
            say(f"the cache {self.folder} cannot be written ({error.strerror}): nothing is kept for other runs")
        self.prune()

    def entries(self) -> list[CacheEntry]:
        """All of them, the one that was not used for the longest time first."""
        entries = []
        for path in (path for kind in KINDS for path in (self.folder / kind).glob("*")):
            with suppress(FileNotFoundError):  # another process has just removed it
                files = [file.lstat() for file in (path.rglob("*") if path.is_dir() else [])]
                entries.append(CacheEntry(path, sum(file.st_size for file in files), path.lstat().st_mtime))
        return sorted(entries, key=lambda entry: entry.used)

    def prune(self) -> None:
        """Remove entries until the rest is within the limit."""
        setting = os.environ.get(CACHE_LIMIT, "") or str(LIMIT)
        try:
            limit = float(setting) * 1e9
        except ValueError:
            limit = -1.0
        if not limit >= 0:
            raise ValueError(f"{CACHE_LIMIT} is {setting!r:.40}; it should be a number of gigabytes, such as 20")
        entries = self.entries()
        total = sum(entry.bytes for entry in entries)
        for entry in entries:
            if total > limit and _delete(entry.path):
                total -= entry.bytes

    def clear(self) -> tuple[int, int]:
        """Remove all entries; how many were removed, and how many could not be."""
        removed = [_delete(entry.path) for entry in self.entries()]
        return sum(removed), len(removed) - sum(removed)


def link_files(folder: Path, other: Path) -> None:
    """The files of a folder in another one: as hard links where possible, so that they take no more room."""
    for file in folder.iterdir():
        if file.name == CHECKSUMS:
            continue
        try:
            os.link(file, other / file.name)
        except FileNotFoundError:
            raise
        except OSError:  # another disk, or a file system without links
            shutil.copyfile(file, other / file.name)


def _delete(path: Path) -> bool:
    """Delete an entry, which may be a file or a link; whether it is gone."""
    with suppress(OSError):
        if path.is_symlink() or not path.is_dir():
            path.unlink()
        else:
            (path / CHECKSUMS).unlink(missing_ok=True)  # so that one that is half deleted counts as damaged
            shutil.rmtree(path)
    return not os.path.lexists(path)
