"""A split of a corpus, encoded by several processes, or taken from the cache that runs share.

The folder of the cache is $REGARD_CACHE, else $XDG_CACHE_HOME/regard, else ~/.cache/regard. An entry is a folder named
by a hash of all that it depends on. It is written whole or not at all, and has the checksums of its files. When the
cache is larger than $REGARD_CACHE_LIMIT gigabytes, the entries that were not used for the longest time are removed.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import shutil
import signal
import sys
import threading
from collections import Counter, deque
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import accumulate, chain, repeat
from multiprocessing import get_context, parent_process
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from ..files import CHECKSUMS, DamagedFileError, check_files, read_object, replacing_folder, sha256, write_checksums
from .blocks import Block, Split, held_out_rows
from .encoding import ARRAYS, CorpusInfo, EncodedCorpus, write_index
from .pair_reader import all_bad_error
from .tokenizer_pair import FILES, PLUGINS, TokenizerPair

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from concurrent.futures import Future

T = TypeVar("T")
R = TypeVar("R")

PAIRS, REPORT = "pairs.jsonl", "report.json"
SMALL = 4 << 20  # bytes of files that one process prepares sooner than several
PROCESSES = "REGARD_PROCESSES"
MOST_PROCESSES = 32  # unless the variable says more: each takes some hundred megabytes
CONTROL_GROUP = Path("/sys/fs/cgroup")
CACHE, CACHE_LIMIT = "REGARD_CACHE", "REGARD_CACHE_LIMIT"
LIMIT = 20.0  # gigabytes
FORMAT = 4  # of the entries; another number makes all of them anew
KINDS = {"corpora": "encoded corpora", "vocabularies": "vocabularies"}


@dataclass
class PartReport:
    """The rows of a part that are no pairs: how many of each kind, and the first message of each."""

    reasons: Counter[str]
    first: dict[str, str]


def prepare_split(
    split: Split,
    tokenizers: Path,
    folder: Path,
    cache: PreparationCache,
    say: Callable[[str], None],
    progress: Callable[[int], None],
) -> list[PartReport]:
    """Encode a split into `folder`, an EncodedCorpus, with `PAIRS` where pairs are kept.

    `tokenizers` is a folder that a TokenizerPair was saved in. `progress` is called with the pairs of each block.
    What plug-ins encode is not kept: a key has the content of files, and not the code of a plug-in. Only this process
    may be allowed to import it.
    """
    has_plugins = (tokenizers / PLUGINS).is_file()
    vocabulary = {name: sha256(tokenizers / name) for name in FILES if (tokenizers / name).is_file()}
    key = cache_key(content=split.content, vocabulary=vocabulary, longest=split.longest)
    if has_plugins or not cache.take("corpora", key, folder, say):
        processes = process_count() if split.bytes > SMALL and not has_plugins else 1
        folder.mkdir()
        _encode_split(split, tokenizers, folder, processes, progress)
        split.require_unchanged()
        if not has_plugins:
            cache.keep("corpora", key, partial(_link_files, folder), say)
    reports = read_object(folder / REPORT, f"remove {folder}")["parts"]
    (folder / REPORT).unlink()
    return [PartReport(Counter(part["reasons"]), part["first"]) for part in reports]


@dataclass
class EncodedBlock:
    arrays: dict[str, np.ndarray[Any, Any]]
    rows: int  # pairs of the block, also those that are not of this split
    dropped: int  # of the split, for their length
    unreadable: tuple[str, ...]
    report: PartReport
    pairs: list[tuple[int, str, str]]  # row of the block, source, target, where they are kept


def _encode_split(
    split: Split, tokenizers: Path, folder: Path, processes: int, progress: Callable[[int], None]
) -> None:
    """Write the arrays of all blocks, one after the other, the pairs that are kept, and the report."""

    def blocks() -> Iterator[Block]:
        return chain.from_iterable(part.blocks() for part in split.parts)

    starts: Iterable[int] = repeat(0)
    if split.hold_out:  # the number of a pair in the corpus decides whether it is held out
        starts = [0, *accumulate(in_order(_count_pairs, blocks(), processes))]
    settings = (split.longest, split.hold_out, split.valid, split.keeps_pairs)
    encode = partial(_encode_block, str(tokenizers), *settings)
    numbers: deque[int] = deque()  # of the part of each block

    def numbered() -> Iterator[tuple[Block, int]]:
        blocks = ((number, block) for number, part in enumerate(split.parts) for block in part.blocks())
        for (number, block), start in zip(blocks, starts, strict=False):
            numbers.append(number)
            yield block, start

    row = source = dropped = 0
    unreadable: list[str] = []
    reports, ends = [PartReport(Counter(), {}) for _ in split.parts], [0 for _ in split.parts]
    with ExitStack() as opened:
        files = {name: opened.enter_context((folder / f"{name}.bin").open("wb")) for name in ARRAYS}
        pairs = opened.enter_context((folder / PAIRS).open("w", encoding="utf-8"))
        for made in in_order(encode, numbered(), processes):
            shifts = {"rows": row, "source_starts": source}
            for name, array in made.arrays.items():
                moved = array + np.int64(shifts[name]) if name in shifts else array
                files[name].write(np.ascontiguousarray(moved).data)
            pairs.writelines(json.dumps([row + place, *texts]) + "\n" for place, *texts in made.pairs)
            row, source, dropped = row + made.rows, source + len(made.arrays["source"]), dropped + made.dropped
            unreadable += made.unreadable
            report = reports[number := numbers.popleft()]
            report.reasons.update(made.report.reasons)
            report.first = {**made.report.first, **report.first}
            ends[number] = row
            progress(made.rows)
    skipped = sum(report.reasons.total() for report in reports)
    if skipped and not row:
        raise all_bad_error(skipped, next(message for report in reports for message in report.first.values()))
    ends = list(accumulate(ends, max))  # of a file without rows, the end of the one before
    write_index(folder, CorpusInfo(dropped=dropped, unreadable=tuple(unreadable), ends=tuple(ends)))
    (folder / REPORT).write_text(json.dumps({"parts": [vars(report) for report in reports]}), encoding="utf-8")


def _count_pairs(block: Block) -> int:
    return len(block.check().chunk.rows)


def _encode_block(
    tokenizers: str,
    longest: int | None,
    hold_out: int,
    valid: bool,
    keeps_pairs: bool,
    numbered: tuple[Block, int],
) -> EncodedBlock:
    """The rows of a block that belong to the split; the number is that of its first pair in the corpus."""
    block, first = numbered
    checked = block.check()
    chunk, rows = checked.chunk, len(checked.chunk.rows)
    if hold_out:
        chunk = chunk.select(np.flatnonzero(held_out_rows(first, rows, hold_out) == valid).tolist())
    pair = _tokenizers(tokenizers)
    encoded = EncodedCorpus.build_chunks(chunk.pieces(), pair, longest=longest, on_bad=block.part.on_bad)
    kept = set(encoded.rows.tolist()) if keeps_pairs else set()
    texts = zip(np.asarray(chunk.rows).tolist(), chunk.sources, chunk.targets, strict=True)
    report = PartReport(checked.reasons, checked.first)
    about = encoded.about
    pairs = [row for row in texts if row[0] in kept]
    return EncodedBlock(encoded.arrays(), rows, about.dropped, about.unreadable, report, pairs)


@lru_cache(maxsize=1)
def _tokenizers(folder: str) -> TokenizerPair:
    """Kept for the blocks that follow, with the words that they have met."""
    return TokenizerPair.load(folder)


def process_count() -> int:
    """The environment variable REGARD_PROCESSES, or the number of cores that this process may use, at most 32."""
    setting = os.environ.get(PROCESSES, "")
    if not setting:
        affinity = getattr(os, "sched_getaffinity", None)
        cores = len(affinity(0)) if affinity else os.cpu_count() or 1
        return max(1, min(cores, _quota(), MOST_PROCESSES))
    if not setting.isdecimal() or int(setting) < 1:
        raise ValueError(f"{PROCESSES} is {setting!r:.40}; it should be the number of processes that prepare data")
    return int(setting)


def _quota() -> int:
    """The cores that the control group of a container allows (Linux), or MOST_PROCESSES where nothing limits them."""
    with suppress(OSError, ValueError):  # no such file, or "max"
        quota, period = map(int, (CONTROL_GROUP / "cpu.max").read_text().split())
        return math.ceil(quota / period)
    return MOST_PROCESSES


def in_order(function: Callable[[T], R], items: Iterable[T], processes: int) -> Iterator[R]:
    """`function` of each item, in order; an error is that of the earliest item, whatever the number of processes."""
    if processes == 1:
        yield from map(function, items)
        return
    pool = ProcessPoolExecutor(processes, get_context("spawn"), _begin_worker)
    waiting: deque[Future[R]] = deque()
    try:
        for item in items:
            with _without_main_module():  # `submit` starts the processes, one by one
                waiting.append(pool.submit(function, item))
            if len(waiting) > processes + 2:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)


def _begin_worker() -> None:
    """A worker leaves Ctrl-C to the first process, and ends with it even if that is killed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.environ["TOKENIZERS_PARALLELISM"] = "false"

    def end_with_parent() -> None:
        if (parent := parent_process()) is not None:
            parent.join()
            os._exit(1)

    threading.Thread(target=end_with_parent, daemon=True).start()


def _without_main_module() -> ExitStack:
    """Hide the file of the main module: a new process would import it, and in a script without a guard train again."""
    main, restored = sys.modules["__main__"], ExitStack()
    for name in ("__file__", "__spec__"):
        if name in vars(main):
            restored.callback(setattr, main, name, getattr(main, name))
    vars(main).pop("__file__", None)
    main.__spec__ = None
    return restored


def cache_key(**settings: Any) -> str:
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
        try:
            if not (path / CHECKSUMS).is_file():
                if not os.path.lexists(path):
                    return False
                raise DamagedFileError(f"{path / CHECKSUMS} is missing")
            check_files(path, "it is removed")
            os.utime(path)
            folder.mkdir()
            _link_files(path, folder)
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
        """Remove all entries, and what earlier versions left; how many were removed, and how many could not be."""
        removed = [_delete(entry.path) for entry in self.entries()]
        for former in ("shards", "locks"):
            shutil.rmtree(self.folder / former, ignore_errors=True)
        return sum(removed), len(removed) - sum(removed)


def _link_files(folder: Path, other: Path) -> None:
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
