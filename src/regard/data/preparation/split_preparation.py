"""A split of a corpus, encoded: from the cache, or by processes that share its blocks."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ...atomic_write import make_folder, replacing_folder
from ...checksums import CHECKSUMS, sha256, write_checksums
from ...json_file import read_object
from ..encoded_corpus import ARRAYS, CorpusInfo, write_index
from ..pair_reader import all_bad_error
from ..tokenizer_pair import FILES, PLUGINS
from .encode_shards import ShardTask, shard_path
from .line_blocks import BLOCK_LINES
from .preparation_cache import PreparationCache, cache_key
from .shard import read_shard
from .shard_worker import process_count, run_tasks

if TYPE_CHECKING:
    from collections.abc import Callable

    from .corpus_part import CorpusPart
    from .line_blocks import FileScan

PAIRS, REPORT = "pairs.jsonl", "report.json"
SMALL = 4 << 20  # bytes of files that one process prepares sooner than several


@dataclass(frozen=True)
class Split:
    """What is to be encoded: all rows of the parts, or with `hold_out` one row of so many (`valid`) or the others.

    `scans` has a FileScan for each file of each part. With `keeps_pairs` the text of the pairs is kept beside the ids.
    """

    parts: tuple[CorpusPart, ...]
    scans: tuple[tuple[FileScan, ...], ...]
    longest: int | None = None
    hold_out: int = 0
    valid: bool = False
    keeps_pairs: bool = False

    @property
    def rows(self) -> int:
        """Of the files, bad ones and those of other splits included; of CSV, at most."""
        return sum(part.count_rows(scans) for part, scans in zip(self.parts, self.scans, strict=True))

    @property
    def content(self) -> dict[str, Any]:
        """What decides its pairs: the hashes of the files and how they are read, not their names.

        Messages about bad rows name files: where such rows are skipped, the names count too.
        """
        parts = []
        for part, scans in zip(self.parts, self.scans, strict=True):
            settings = part.to_dict()
            del settings["files"]
            names = part.files if part.on_bad == "skip" else [Path(file).suffixes[-2:] for file in part.files]
            parts.append([[scan.sha256 for scan in scans], list(names), settings])
        return {"parts": parts, "hold_out": self.hold_out, "valid": self.valid, "keeps_pairs": self.keeps_pairs}

    @property
    def bytes(self) -> int:
        return sum(Path(file).stat().st_size for part in self.parts for file in part.files)


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
    What plug-ins encode is not kept: a key has the content of files, and not the code of a plug-in.
    """
    if not _has_plugins(tokenizers):
        return _prepare_split(split, tokenizers, folder, cache, say, progress)
    with tempfile.TemporaryDirectory(prefix="cache-", suffix=".unfinished", dir=folder.parent) as own:
        return _prepare_split(split, tokenizers, folder, PreparationCache(Path(own)), say, progress)


def _prepare_split(
    split: Split,
    tokenizers: Path,
    folder: Path,
    cache: PreparationCache,
    say: Callable[[str], None],
    progress: Callable[[int], None],
) -> list[PartReport]:
    key = _key(split, tokenizers)
    with cache.lock(key, say):
        entry = cache.find("corpora", key, say)
        if entry is None:
            shards = cache.path("shards", key)
            paths = _make_shards(split, tokenizers, shards, progress)
            entry = cache.path("corpora", key)
            with replacing_folder(entry) as unfinished:
                _merge(paths, unfinished)
                _require_pairs(unfinished)
                write_checksums(unfinished, [file.name for file in unfinished.iterdir()])
            shutil.rmtree(shards)
        _link_files(entry, folder)
    cache.prune()
    reports = read_object(folder / REPORT, f"remove {folder}")["parts"]
    (folder / REPORT).unlink()
    return [PartReport(Counter(part["reasons"]), part["first"]) for part in reports]


def _key(split: Split, tokenizers: Path) -> str:
    """Of the encoded split: what decides its pairs, the vocabulary, and the settings."""
    vocabulary = {name: sha256(tokenizers / name) for name in FILES if (tokenizers / name).is_file()}
    return cache_key(lines=BLOCK_LINES, content=split.content, vocabulary=vocabulary, longest=split.longest)


def _make_shards(split: Split, tokenizers: Path, folder: Path, progress: Callable[[int], None]) -> list[list[Path]]:
    """The shards of each part. Those that an interrupted process left are kept."""
    make_folder(folder)
    processes = process_count() if split.bytes > SMALL and not _has_plugins(tokenizers) else 1
    tasks = _tasks(split, folder)
    if split.hold_out:  # the number of a pair in the corpus decides whether it is held out
        pairs = [0] * len(tasks)
        for index, rows in run_tasks(tasks, processes):
            pairs[index] += rows
        starts = [0, *accumulate(pairs)]
        tasks = [replace(task, first_row=start) for task, start in zip(tasks, starts, strict=False)]
    settings: dict[str, Any] = {name: getattr(split, name) for name in ("longest", "hold_out", "valid", "keeps_pairs")}
    tasks = [replace(task, tokenizers=str(tokenizers), **settings) for task in tasks]
    blocks = Counter[int]()
    for index, rows in run_tasks(tasks, processes):
        blocks[tasks[index].number] += 1
        progress(rows)
    numbers = range(len(split.parts))
    return [[shard_path(folder, number, block) for block in range(blocks[number])] for number in numbers]


def _tasks(split: Split, folder: Path) -> list[ShardTask]:
    """A task for each block that can be read at once, and for each other file."""
    tasks: list[ShardTask] = []
    for number, (part, scans) in enumerate(zip(split.parts, split.scans, strict=True)):
        task = ShardTask(part.to_dict(), tuple(scan.stamp for scan in scans), str(folder), number)
        ranges = part.ranges(scans)
        if ranges is None:
            tasks.append(task)
        else:
            tasks += [
                replace(task, block=block, cuts=tuple(cuts), line=block * BLOCK_LINES + 1)
                for block, cuts in enumerate(ranges)
            ]
    return tasks


def _has_plugins(tokenizers: Path) -> bool:
    """Whether a tokenizer is a plug-in, which only this process may be allowed to import."""
    return (tokenizers / PLUGINS).is_file()


def _merge(parts: list[list[Path]], folder: Path) -> None:
    """Write the shards into a folder, one after the other."""
    row = source = dropped = 0
    unreadable: list[str] = []
    reports, ends = [], []
    with ExitStack() as opened:
        files = {name: opened.enter_context((folder / f"{name}.bin").open("wb")) for name in ARRAYS}
        pairs = opened.enter_context((folder / PAIRS).open("w", encoding="utf-8"))
        for paths in parts:
            report = PartReport(Counter(), {})
            for path in paths:
                arrays, info = read_shard(path)
                shifts = {"rows": row, "source_starts": source}
                for name, array in arrays.items():
                    moved = array + np.int64(shifts[name]) if name in shifts else array
                    files[name].write(np.ascontiguousarray(moved).data)
                pairs.writelines(json.dumps([row + place, *texts]) + "\n" for place, *texts in info.pairs)
                row, source, dropped = row + info.rows, source + len(arrays["source"]), dropped + info.dropped
                unreadable += info.unreadable
                report.reasons.update(info.reasons)
                report.first = {**info.first, **report.first}
            ends.append(row)
            reports.append({"reasons": report.reasons, "first": report.first})
    write_index(folder, CorpusInfo(dropped=dropped, unreadable=tuple(unreadable), ends=tuple(ends)))
    (folder / REPORT).write_text(json.dumps({"parts": reports, "rows": row}), encoding="utf-8")


def _require_pairs(folder: Path) -> None:
    """Raise an error where every row is bad."""
    reports = read_object(folder / REPORT)
    skipped = sum(sum(part["reasons"].values()) for part in reports["parts"])
    if skipped and not reports["rows"]:
        raise all_bad_error(skipped, next(message for part in reports["parts"] for message in part["first"].values()))


def _link_files(entry: Path, folder: Path) -> None:
    """The files of an entry in another folder: as hard links where possible, so that they take no more room."""
    folder.mkdir()
    for file in entry.iterdir():
        if file.name == CHECKSUMS:
            continue
        try:
            os.link(file, folder / file.name)
        except OSError:  # another disk, or a file system without links
            shutil.copyfile(file, folder / file.name)
