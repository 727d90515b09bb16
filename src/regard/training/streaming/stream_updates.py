"""The batches of each update of a run whose corpus is a stream."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Literal

from torch.utils.data import Dataset

from ...data import EncodedCorpus
from ...data.batch import Batch
from ...data.pair_reader import BadRowError
from ...data.preparation.row_chunk import CHUNK
from .stream_positions import StreamPosition

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ...data import TokenizerPair
    from ...data.preparation.corpus_part import CheckedRows
    from ...data.preparation.row_chunk import RowChunk
    from ...data.streaming.pair_stream import PairStream
    from ..batches import EpochBatches
    from ..recipe.data_section import StreamData
    from ..recipe.recipe import Recipe
    from ..tasks.task import Task
    from .buffer_shares import BufferShares
    from .stream_positions import StreamPositions


class StreamUpdates(Dataset[list[Batch]]):
    """Item n is the list of batches that one process accumulates in update n + 1, as of `UpdateBatches`.

    The corpus is cut into buffers of `data.buffer` pairs or more, whole blocks of it. Each buffer is encoded in memory
    and dealt out as an epoch of a small corpus is, so that the seed and the number of the buffer decide its batches.
    Items come in order; `positions` says where the buffer of the first one begins. Every process reads the whole stream
    and encodes all of it or, with `shares`, its part of each buffer.

    A run that resumes with other batches (`training.tokens`, `accumulate`, `devices`) or other buffers (`data.buffer`,
    `longest`, `on_bad`, `valid_pairs`) begins its buffer again. One whose files changed begins its epoch again; `files`
    is their hash, "" where it is not known.
    """

    def __init__(
        self,
        recipe: Recipe,
        task: Task,
        stream: PairStream,
        tokenizers: TokenizerPair,
        positions: StreamPositions,
        *,
        rank: int,
        world: int,
        fixed_shapes: bool,
        files: str = "",
        shares: BufferShares | None = None,
    ) -> None:
        data: StreamData = recipe.data  # type: ignore[assignment]
        count = world * recipe.training.accumulate
        shapes: bool | Literal["full"] = "full" if fixed_shapes else False  # the same for all buffers
        self._buffer, self._longest, self._on_bad = data.buffer, data.longest, data.on_bad
        self._stream, self._tokenizers, self._positions = stream, tokenizers, positions
        self._batches = partial(task.batches, seed=recipe.seed, world=count, fixed_shapes=shapes)
        self._ranks = range(rank, count, world)
        self._settings = _hash(
            tokens=recipe.training.tokens, batches=count, fixed=fixed_shapes, dropout=recipe.tokenizer.dropout
        )
        self._contents = _hash(buffer=data.buffer, longest=data.longest, on_bad=data.on_bad, held_out=stream.held_out)
        self._files, self._shares = files, shares
        self._position: StreamPosition | None = None
        self._epoch: list[EpochBatches] = []  # of the buffer
        self._blocks: Iterator[CheckedRows] = iter(())
        self._next = (0, 0, 0)  # number of the next buffer, its epoch and its block

    def __getitem__(self, n: int) -> list[Batch]:
        if self._position is None or n < self._position.update:
            self._seek(n)
        while n >= self._position.update + len(self._epoch[0]):  # type: ignore[union-attr]
            self._open(self._position.update + len(self._epoch[0]))  # type: ignore[union-attr]
        return [batches[n - self._position.update] for batches in self._epoch]  # type: ignore[union-attr]

    def epoch_of(self, update: int) -> int:
        """The epoch of the corpus that an update belongs to."""
        position = self._positions.find(update - 1)  # a worker process may have opened the buffer
        return 0 if position is None else position.epoch

    def former_files(self, n: int) -> str:
        """The hash of the files that update n + 1 would go on in, if they changed since; else ""."""
        begin = self._positions.find(n)
        return "" if begin is None or _agree(begin.files, self._files) else begin.files

    def _seek(self, n: int) -> None:
        begin = self._positions.find(n)
        if begin is None:
            self._next, update = (0, 0, 0), n
        elif not _agree(begin.files, self._files):
            self._next, update = (begin.number, begin.epoch, 0), n
        else:
            same = begin.settings == self._settings and _agree(begin.contents, self._contents)
            self._next, update = (begin.number, begin.epoch, begin.block), begin.update if same else n
        self._blocks = self._stream.blocks(*self._next[1:])
        self._open(update)

    def _open(self, update: int) -> None:
        """Read the next buffer, whose first batches are those of the update after `update`."""
        self._position, self._epoch = None, []  # so that the last buffer is not in memory while the next one is read
        number, epoch, block = self._next
        ends = 0  # of epochs, before a usable pair
        while True:
            checked, ended = self._read_blocks()
            encoded = self._encode(checked, f"{number}-{epoch}-{block}")
            after = (epoch + 1, 0) if ended else (epoch, block + len(checked))
            if ended:
                self._blocks = self._stream.blocks(epoch + 1)
            if len(encoded):
                break
            ends += ended
            if ends == 2:  # the second one was read whole
                raise ValueError(
                    f"the stream has no usable pair: every row is bad, or longer than data.longest = {self._longest}"
                )
            epoch, block = after
        skipped, dropped = sum(each.reasons.total() for each in checked), encoded.about.dropped
        self._position = StreamPosition(
            update,
            number,
            epoch,
            block,
            self._settings,
            len(encoded),
            skipped,
            dropped,
            contents=self._contents,
            files=self._files,
        )
        self._epoch = [self._batches(encoded, epoch=number, rank=rank) for rank in self._ranks]
        self._next = (number + 1, *after)
        self._positions.append(self._position)

    def _read_blocks(self) -> tuple[list[CheckedRows], bool]:
        """The blocks of a buffer, and whether the epoch ended with them."""
        checked: list[CheckedRows] = []
        try:
            while sum(len(each.chunk.rows) for each in checked) < self._buffer:
                if (block := next(self._blocks, None)) is None:
                    return checked, True
                checked.append(block)
        except BadRowError as error:
            raise ValueError(f"{error} (data.on_bad=skip leaves such rows out)") from None
        return checked, False

    def _encode(self, blocks: list[CheckedRows], name: str) -> EncodedCorpus:
        build = partial(
            EncodedCorpus.build_chunks, tokenizers=self._tokenizers, longest=self._longest, on_bad=self._on_bad
        )
        if self._shares is None:
            return build(buffer_chunks(blocks))
        return self._shares.build(name, list(buffer_chunks(blocks)), build)


def buffer_chunks(blocks: list[CheckedRows]) -> Iterator[RowChunk]:
    """The rows of blocks, numbered on from one to the next, so many at a time as are encoded together."""
    row = 0
    for block in blocks:
        chunk = block.chunk
        count = len(chunk.sources)
        for begin in range(0, count, CHUNK):
            piece = chunk.select(range(begin, min(begin + CHUNK, count)))
            yield replace(piece, rows=range(row, row + len(piece.sources)))
            row += len(piece.sources)


def _agree(former: str, present: str) -> bool:
    """Whether two hashes are the same; one that is not known agrees with any."""
    return not former or not present or former == present


def _hash(**settings: object) -> str:
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:16]
