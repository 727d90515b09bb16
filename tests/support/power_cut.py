"""Power cuts: a recording of what a process writes below a folder, and the disks that a power cut could leave.

POSIX promises only what was flushed. `fsync` of a file keeps its content, `fsync` of a folder the names in it. All else
may be lost or kept, in any order: a file whose name is there can be empty, shorter, or old and new in parts. A rename
is one change: it is kept or lost as a whole.
"""

from __future__ import annotations

import os
import random
import time
from collections import defaultdict
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pytest

CHANGES = ("replace", "rename", "unlink", "remove", "mkdir", "rmdir", "open", "write", "fsync")
"""The functions of `os` that are recorded. What a library writes by itself is seen when the next of them is called."""
SECTOR = 512
RECENT = 50_000_000  # nanoseconds: a file changed since may have changed again with the same time


@dataclass
class Event:
    """One change: new content of a file, new names (None: removed), or a flush; or a mark of the test's own."""

    kind: str
    node: int = 0
    content: bytes = b""
    names: list[tuple[int, str, int | None]] = field(default_factory=list)


@dataclass
class _File:
    node: int
    stamp: tuple[int, int]
    content: bytes | None  # None: a folder


class Recording:
    """The events below `root`, in order. Nodes are numbered: file systems use an inode's number again."""

    def __init__(self, root: Path) -> None:
        self.root, self.events = root.resolve(), list[Event]()
        self._count = 0
        self._known: dict[tuple[int, str], _File] = {}  # by folder's node and name
        self._busy = False

    def scan(self) -> None:
        """Compare the folder with what it was, and append what changed."""
        before, self._known = self._known, {}
        by_inode = {file.stamp[0]: file for file in before.values()}
        changes: list[tuple[int, str, int | None]] = []
        writes: list[Event] = []
        self._folder(self.root, 0, by_inode, changes, writes, before)
        changes += [(*key, None) for key in before if key not in self._known]
        if changes:
            self.events.append(Event("names", names=changes))
        self.events += writes

    def _folder(
        self,
        folder: Path,
        node: int,
        by_inode: dict[int, _File],
        changes: list[tuple[int, str, int | None]],
        writes: list[Event],
        before: dict[tuple[int, str], _File],
    ) -> None:
        for entry in sorted(os.scandir(folder), key=lambda entry: entry.name):
            status = entry.stat(follow_symlinks=False)
            stamp = status.st_ino, status.st_mtime_ns
            old = by_inode.get(status.st_ino)
            if old is None:
                self._count += 1
            file = _File(self._count if old is None else old.node, stamp, None)
            self._known[node, entry.name] = file
            if before.get((node, entry.name)) is None or before[node, entry.name].node != file.node:
                changes.append((node, entry.name, file.node))
            if entry.is_dir(follow_symlinks=False):
                self._folder(Path(entry.path), file.node, by_inode, changes, writes, before)
                continue
            if old is not None and old.stamp == stamp and time.time_ns() - status.st_mtime_ns > RECENT:
                file.content = old.content
                continue
            file.content = Path(entry.path).read_bytes()
            if file.content != (b"" if old is None else old.content):
                writes.append(Event("write", file.node, file.content))

    def mark(self, name: str) -> None:
        self.events.append(Event(name))

    @contextmanager
    def recording(self, patch: pytest.MonkeyPatch) -> Iterator[None]:
        """Record what this process does until the block ends."""
        self.scan()
        with patch.context() as hooks:
            for name in CHANGES:
                hooks.setattr(os, name, self._hook(name, getattr(os, name)))
            yield
        self.scan()

    def _hook(self, name: str, function: Any) -> Any:
        def hook(*arguments: Any, **options: Any) -> Any:
            if self._busy or not self._inside(arguments[0], options):
                return function(*arguments, **options)
            self._busy = True
            try:
                self.scan()
                if name == "fsync":
                    self._flush(Path(os.readlink(f"/proc/self/fd/{arguments[0]}")))
                result = function(*arguments, **options)
                self.scan()
                return result
            finally:
                self._busy = False

        return hook

    def _inside(self, place: Any, options: dict[str, Any]) -> bool:
        folder = options.get("dir_fd") if options.get("dir_fd") is not None else options.get("src_dir_fd")
        if isinstance(place, int):
            path = os.readlink(f"/proc/self/fd/{place}")
        elif folder is not None:
            path = os.path.join(os.readlink(f"/proc/self/fd/{folder}"), os.fsdecode(place))
        else:
            path = os.path.abspath(os.fsdecode(place))
        return path.startswith(f"{self.root}{os.sep}") or path == str(self.root)

    def _flush(self, path: Path) -> None:
        node = 0
        if path != self.root:
            for part in path.relative_to(self.root).parts:
                node = self._known[node, part].node
        self.events.append(Event("sync", node))

    def cut(self, place: int, seed: int, folder: Path) -> None:
        """Write into a new folder what a power cut after `place` events could leave."""
        chance = random.Random(f"{place} {seed}")
        loss = chance.choice(["everything", "content", "some", "some", "nothing"])
        synced, versions = _summary(self.events[:place])
        children: dict[int, dict[str, int]] = defaultdict(dict)
        for at, event in enumerate(self.events[:place]):
            if event.kind != "names":
                continue
            flushed = all(synced.get(holder, -1) > at for holder, _, _ in event.names)
            kept = {"everything": False, "some": chance.random() < 0.5}.get(loss, True)
            if flushed or kept:
                for holder, name, node in event.names:
                    if node is None:
                        children[holder].pop(name, None)
                    else:
                        children[holder][name] = node
        folders = {holder for event in self.events for holder, _, _ in event.names} | self._folders()
        _write(folder, 0, children, folders, lambda node: _content(versions[node], synced.get(node, -1), loss, chance))

    def _folders(self) -> set[int]:
        return {file.node for file in self._known.values() if file.content is None}

    def names(self, node: int) -> list[str]:
        """Every name that a node ever had."""
        return sorted({name for event in self.events for _, name, other in event.names if other == node})


def _summary(events: list[Event]) -> tuple[dict[int, int], dict[int, list[tuple[int, bytes]]]]:
    """When each node was flushed last, and the versions of each file with their times."""
    synced: dict[int, int] = {}
    versions: dict[int, list[tuple[int, bytes]]] = defaultdict(list)
    for at, event in enumerate(events):
        if event.kind == "sync":
            synced[event.node] = at
        elif event.kind == "write":
            versions[event.node].append((at, event.content))
    return synced, versions


def _content(versions: list[tuple[int, bytes]], synced: int, loss: str, chance: random.Random) -> bytes:
    """What is left of a file: the version last flushed, a later one, or sectors of both."""
    flushed = next((content for at, content in reversed(versions) if at < synced), b"")
    later = [content for at, content in versions if at > synced]
    if not later or loss in ("everything", "content"):
        return flushed
    newest = chance.choice(later)
    if loss == "nothing":
        return later[-1]
    if chance.random() < 0.3:
        return newest[: max(len(flushed) if newest.startswith(flushed) else 0, chance.randrange(len(newest) + 1))]
    old = flushed.ljust(len(newest), b"\0")
    mixed = bytearray(newest)
    for start in range(0, len(newest), SECTOR):
        if chance.random() < 0.3:
            mixed[start : start + SECTOR] = old[start : start + SECTOR][: len(mixed) - start]
    return bytes(mixed)


def _write(folder: Path, node: int, children: dict[int, dict[str, int]], folders: set[int], content: Any) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, child in sorted(children[node].items()):
        if child in folders:
            _write(folder / name, child, children, folders, content)
        else:
            (folder / name).write_bytes(content(child))
