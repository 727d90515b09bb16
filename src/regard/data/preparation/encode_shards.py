"""Encodes blocks of a corpus into shards; a shard that is there is not encoded again."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..encoded_corpus import EncodedCorpus
from ..tokenizer_pair import TokenizerPair
from .corpus_part import CorpusPart
from .hold_out import held_out_rows
from .row_chunk import CHUNK
from .shard import DamagedShardError, ShardInfo, read_shard_info, write_shard

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .corpus_part import CheckedRows, LineBlock, RowBlock


@dataclass(frozen=True)
class ShardTask:
    """Blocks of one corpus, for one process: one block of a file that can be read anywhere, or all blocks of a file.

    With `hold_out`, a split has the rows that are held out (`valid`), or the others; `first_row` is the number of pairs
    before the first block. Without `tokenizers` the pairs are only counted.
    """

    part: dict[str, Any]
    stamps: tuple[str, ...]  # of the files of the part (`FileScan.stamp`)
    folder: str  # of the shards
    number: int  # of the part in its split
    block: int | None = None
    cuts: tuple[int, ...] = ()
    line: int = 1  # the number of the first line of the block
    tokenizers: str = ""  # a folder
    longest: int | None = None
    hold_out: int = 0
    valid: bool = False
    first_row: int = 0
    keeps_pairs: bool = False

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def shard_path(folder: str | Path, part: int, block: int) -> Path:
    return Path(folder) / f"{part}-{block:06d}.shard"


def run_task(task: ShardTask) -> Iterator[int]:
    """Write the shards of a task, or with no tokenizers count; the number of pairs of each block, as it is done."""
    part = CorpusPart.from_dict(task.part)
    row = task.first_row
    for index, block in _task_blocks(task, part):
        info = _encode_block(task, index, block, row) if task.tokenizers else ShardInfo(len(block.rows().chunk.rows))
        row += info.rows
        yield info.rows


def _task_blocks(task: ShardTask, part: CorpusPart) -> Iterator[tuple[int, LineBlock | RowBlock]]:
    """Blocks whose bytes are those of the files that were scanned: the name of a shard states their hash."""
    blocks = enumerate(part.blocks()) if task.block is None else [(task.block, part.block(task.cuts, task.line))]
    for index, block in blocks:
        part.require_unchanged(task.stamps)
        yield index, block


def _encode_block(task: ShardTask, index: int, block: LineBlock | RowBlock, row: int) -> ShardInfo:
    path = shard_path(task.folder, task.number, index)
    if path.is_file():
        try:
            return read_shard_info(path)
        except DamagedShardError:
            path.unlink()
    checked = block.rows()
    encoded, info = encode_rows(task, checked, row)
    write_shard(path, encoded, info)
    return info


def encode_rows(task: ShardTask, checked: CheckedRows, row: int) -> tuple[EncodedCorpus, ShardInfo]:
    """The rows of a block that belong to the split; `row` is the number of the first one in the corpus."""
    chunk = checked.chunk
    rows = len(chunk.rows)
    if task.hold_out:
        of_split = held_out_rows(row, rows, task.hold_out) == task.valid
        chunk = chunk.select(np.flatnonzero(of_split).tolist())
    pieces = (chunk.select(range(i, min(i + CHUNK, len(chunk.rows)))) for i in range(0, len(chunk.rows), CHUNK))
    on_bad = task.part["on_bad"]
    encoded = EncodedCorpus.build_chunks(pieces, _tokenizers(task.tokenizers), longest=task.longest, on_bad=on_bad)
    kept = dict.fromkeys(encoded.rows.tolist()) if task.keeps_pairs else {}
    pairs = [
        [int(row), source, target]
        for row, source, target in zip(chunk.rows, chunk.sources, chunk.targets, strict=True)
        if int(row) in kept
    ]
    about = encoded.about
    info = ShardInfo(rows, about.dropped, list(about.unreadable), dict(checked.reasons), checked.first, pairs)
    return encoded, info


@lru_cache(maxsize=1)
def _tokenizers(folder: str) -> TokenizerPair:
    """Kept for the tasks that follow, with the words that they have met."""
    return TokenizerPair.load(folder)
