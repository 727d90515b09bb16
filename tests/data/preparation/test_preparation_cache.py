"""Entries of the cache are whole or not there, and what is reported as removed is gone."""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING, Any

import pytest

from regard.checksums import CHECKSUMS, write_checksums
from regard.data.preparation import preparation_cache
from regard.data.preparation.preparation_cache import LOCKS, PreparationCache, cache_key

if TYPE_CHECKING:
    from pathlib import Path

KEYS = [letter * 40 for letter in "abc"]


@pytest.fixture
def cache(tmp_path: Path) -> PreparationCache:
    return PreparationCache(tmp_path / "cache")


def add_entry(cache: PreparationCache, key: str, *, used: int = 1000) -> Path:
    path = cache.path("corpora", key)
    path.mkdir(parents=True)
    for name in ("report.json", "target.bin"):
        (path / name).write_bytes(bytes(100))
    write_checksums(path, ["report.json", "target.bin"])
    os.utime(path, (used, used))
    return path


def test_an_entry_without_checksums_is_made_again(cache: PreparationCache) -> None:
    path, lines = add_entry(cache, KEYS[0]), list[str]()
    assert cache.find("corpora", KEYS[0], lines.append) == path
    (path / CHECKSUMS).unlink()
    (path / "report.json").unlink()
    assert cache.find("corpora", KEYS[0], lines.append) is None
    assert not path.exists()
    assert len(lines) == 1
    assert "checksums.json is missing" in lines[0]
    path.write_text("no folder")
    assert cache.find("corpora", KEYS[0], lines.append) is None
    assert not path.exists()


def test_an_entry_whose_removal_is_killed_is_no_entry(cache: PreparationCache, monkeypatch: pytest.MonkeyPatch) -> None:
    path = add_entry(cache, KEYS[0])

    def killed(folder: Path, **_: Any) -> None:
        (folder / "report.json").unlink()
        raise KeyboardInterrupt

    with monkeypatch.context() as changed:
        changed.setattr(shutil, "rmtree", killed)
        with pytest.raises(KeyboardInterrupt):
            cache.clear()
    assert not path.exists()
    (left,) = cache.entries()
    assert left.path.name.endswith(".unfinished")
    with cache.lock(KEYS[0]):
        assert cache.clear() == (0, 1), "it has the lock of its entry"
    assert cache.clear() == (1, 0)
    assert cache.entries() == []


def test_clear_removes_files_and_links_and_counts_what_is_gone(
    cache: PreparationCache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_entry(cache, KEYS[0])
    cache.path("corpora", "a file").write_text("no folder")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "kept").write_bytes(bytes(10))
    cache.path("corpora", "a link").symlink_to(tmp_path / "elsewhere")
    cache.path("corpora", "a broken link").symlink_to(tmp_path / "nowhere")
    with monkeypatch.context() as changed:
        changed.setattr(shutil, "rmtree", lambda *_, **__: None)  # a file system that refuses
        assert cache.clear() == (3, 1)
    assert cache.clear() == (1, 0)
    assert not any(cache.path("corpora", "").iterdir())
    assert (tmp_path / "elsewhere" / "kept").exists()


def test_prune_goes_on_where_an_entry_cannot_be_removed(
    cache: PreparationCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = [add_entry(cache, key, used=1000 + number) for number, key in enumerate(KEYS)]
    rmtree = shutil.rmtree
    size = cache.entries()[0].bytes
    monkeypatch.setenv("REGARD_CACHE_LIMIT", str(2 * size / 1e9))
    monkeypatch.setattr(shutil, "rmtree", lambda path, **_: None if KEYS[0] in path.name else rmtree(path))
    cache.prune()
    assert [path.exists() for path in paths] == [False, False, True]
    assert sum(entry.bytes for entry in cache.entries()) == 2 * size


def test_locks_are_removed_and_still_lock(cache: PreparationCache) -> None:
    add_entry(cache, KEYS[0])
    with cache.lock(KEYS[0]), cache.lock(KEYS[1]):
        assert cache.clear() == (0, 1)
        assert {path.name for path in (cache.folder / LOCKS).iterdir()} == set(KEYS[:2]), "both are in use"
    assert cache.clear() == (1, 0)
    assert list((cache.folder / LOCKS).iterdir()) == []
    with cache.lock(KEYS[0]):
        add_entry(cache, KEYS[0])
        assert cache.clear() == (0, 1)


def test_a_lock_file_that_was_removed_while_a_process_waited_for_it_is_no_lock(
    cache: PreparationCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process that had the lock removes the file after this one has opened it."""
    try_lock, handles = preparation_cache._try_lock, list[int]()

    def removed_before(handle: int) -> bool:
        if not handles:
            (cache.folder / LOCKS / KEYS[0]).unlink()
        handles.append(handle)
        return try_lock(handle)

    monkeypatch.setattr(preparation_cache, "_try_lock", removed_before)
    with cache.lock(KEYS[0]):
        assert len(handles) == 2
        assert (cache.folder / LOCKS / KEYS[0]).exists()
        add_entry(cache, KEYS[0])
        assert cache.clear() == (0, 1)


def test_every_key_has_the_format_of_the_entries(monkeypatch: pytest.MonkeyPatch) -> None:
    former = cache_key(task="translate")
    assert cache_key(task="translate") == former
    monkeypatch.setattr(preparation_cache, "FORMAT", preparation_cache.FORMAT + 1)
    assert cache_key(task="translate") != former
