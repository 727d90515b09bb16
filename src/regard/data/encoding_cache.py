"""A split of a corpus, encoded by several processes, or taken from the cache of what was prepared, which runs share.

The cache's folder is $REGARD_CACHE, else $XDG_CACHE_HOME/regard, else ~/.cache/regard. An entry is a folder named by a
hash of all that it depends on. It is written whole or not at all, and has the checksums of its files. When the cache is
larger than $REGARD_CACHE_LIMIT gigabytes, the entries that were not used for the longest time are removed.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import shutil
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from ..files import (
    CHECKSUMS,
    DamagedFileError,
    cache_folder,
    check_files,
    read_object,
    replacing_folder,
    sha256,
    write_checksums,
)
from .encoding import CorpusInfo, EncodedCorpus, write_folder
from .rows import all_bad_error
from .tokenizer_pair import FILES, PLUGINS, TokenizerPair

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from .corpus_stream import CheckedRows, Split
    from .encoding import Arrays

PAIRS, REPORT = "pairs.jsonl", "report.json"
SMALL = 4 << 20  # bytes of files that one process prepares sooner than several
PROCESSES = "REGARD_PROCESSES"
MOST_PROCESSES = 32  # unless the variable says more: each takes some hundred megabytes
CONTROL_GROUP = Path("/sys/fs/cgroup")


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
            cache.keep("corpora", key, partial(link_files, folder), say)
    reports = read_object(folder / REPORT, f"remove {folder}")["parts"]
    (folder / REPORT).unlink()
    return [PartReport(Counter(part["reasons"]), part["first"]) for part in reports]


@dataclass
class EncodedBlock:
    part: int
    pairs: int  # of the block, also those that are not of this split
    report: PartReport
    arrays: Arrays
    about: CorpusInfo
    texts: list[tuple[int, str, str]]  # row of the block, source, target, where they are kept


class EncodedBlocks(IterableDataset[EncodedBlock | Exception]):
    """The blocks of a split; of n workers of a DataLoader each gives every n-th, so that together they are in order.

    An error comes as an item: a DataLoader would put the trace of its worker into the message.
    """

    def __init__(self, split: Split, tokenizers: Path) -> None:
        self.split, self.tokenizers = split, tokenizers

    def __iter__(self) -> Iterator[EncodedBlock | Exception]:
        worker = get_worker_info()
        try:
            tokenizers = TokenizerPair.load(self.tokenizers)
            for block in self.split.blocks(*((worker.id, worker.num_workers) if worker else (0, 1))):
                yield self._encoded(*block, tokenizers)
        except Exception as error:
            yield error

    def _encoded(self, part: int, pairs: int, checked: CheckedRows, tokenizers: TokenizerPair) -> EncodedBlock:
        split = self.split
        on_bad = split.parts[part].on_bad
        encoded = EncodedCorpus.build(checked.pairs, tokenizers, longest=split.longest, on_bad=on_bad)
        kept = set(encoded.rows.tolist()) if split.keeps_pairs else set()
        texts = [(pair.row, pair.source, pair.target) for pair in checked.pairs if pair.row in kept]
        report = PartReport(checked.reasons, checked.first)
        return EncodedBlock(part, pairs, report, encoded.arrays(), encoded.about, texts)


def _encode_split(
    split: Split, tokenizers: Path, folder: Path, processes: int, progress: Callable[[int], None]
) -> None:
    """Write the arrays of all blocks, one after the other, the pairs that are kept, and the report."""
    blocks: Any = DataLoader(
        EncodedBlocks(split, tokenizers),
        batch_size=None,
        num_workers=processes if processes > 1 else 0,
        worker_init_fn=_begin_worker,
        generator=torch.Generator(),  # without one, it draws from the generator that models are initialised from
    )
    about = CorpusInfo(ends=[0 for _ in split.parts])
    reports = [PartReport(Counter(), {}) for _ in split.parts]

    def arrays() -> Iterator[Arrays]:
        row = source = 0
        with (folder / PAIRS).open("w", encoding="utf-8") as pairs:
            for block in blocks:
                if isinstance(block, Exception):
                    raise block
                block.arrays["rows"] += row
                block.arrays["source_starts"] += source
                yield block.arrays
                pairs.writelines(json.dumps([row + place, *texts]) + "\n" for place, *texts in block.texts)
                row, source = row + block.pairs, source + len(block.arrays["source"])
                about.dropped += block.about.dropped
                about.unreadable += block.about.unreadable
                about.ends = [*about.ends[: block.part], *[row] * (len(split.parts) - block.part)]
                report = reports[block.part]
                report.reasons.update(block.report.reasons)
                report.first = {**block.report.first, **report.first}
                progress(block.pairs)
        skipped = sum(report.reasons.total() for report in reports)
        if skipped and not row:
            raise all_bad_error(skipped, next(message for report in reports for message in report.first.values()))

    write_folder(folder, arrays(), about)
    (folder / REPORT).write_text(json.dumps({"parts": [vars(report) for report in reports]}), encoding="utf-8")


def _begin_worker(worker: int) -> None:
    os.environ["TOKENIZERS_PARALLELISM"] = "false"


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


CACHE_LIMIT = "REGARD_CACHE_LIMIT"
LIMIT = 20.0  # gigabytes
FORMAT = 4  # of the entries; another number makes all of them anew
KINDS = {"corpora": "encoded corpora", "vocabularies": "vocabularies", "models": "converted models"}
"""The folders of the cache. The last one is filled by `load_text_model`."""


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
        self.folder = cache_folder() if folder is None else folder

    def path(self, kind: str, key: str) -> Path:
        return self.folder / kind / key

    def take(self, kind: str, key: str, folder: Path, say: Callable[[str], None]) -> bool:
        """Make `folder` with the files of an entry, if the cache has it whole. A damaged one is removed."""
        path = self.path(kind, key)
        if not path.is_dir():
            return False
        try:
            if not (path / CHECKSUMS).is_file():
                raise DamagedFileError(f"{path / CHECKSUMS} is missing")
            check_files(path, "it is removed")
            os.utime(path)
            folder.mkdir()
            link_files(path, folder)
        except (DamagedFileError, FileNotFoundError) as error:  # or another process is just removing it
            say(f"the cache has a damaged entry, which is made again: {error}")
            _delete(path)
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
                size = sum(file.stat().st_size for file in path.iterdir())
                entries.append(CacheEntry(path, size, path.stat().st_mtime))
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
    """Delete an entry; whether it is gone."""
    (path / CHECKSUMS).unlink(missing_ok=True)  # so that one that is half deleted counts as damaged
    shutil.rmtree(path, ignore_errors=True)
    return not path.exists()
