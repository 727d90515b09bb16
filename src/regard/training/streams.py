"""Training on a stream of pairs: the batches of each update, and the positions from which a run resumes."""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import asdict, dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from torch.utils.data import Dataset

from ..data.batches import Batch
from ..data.encoding import EncodedCorpus
from ..data.rows import BadRowError, Pair
from ..files import DamagedFileError, append_text
from .corpora import corpus_parts, dataset_split
from .recipe_files import folder
from .recipe_sections import StreamData

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ..data.blocks import CheckedRows, PairStream
    from ..data.tokenizer_pair import TokenizerPair
    from .batches import EpochBatches
    from .recipe import Recipe
    from .tasks import Task

POSITIONS = "stream.jsonl"
"""In data/ of a run: at which update each buffer of the stream began, and where in the corpus."""


class StreamUpdates(Dataset[list[Batch]]):
    """Item n is the list of batches that one process accumulates in update n + 1, as of `UpdateBatches`.

    The corpus is cut into buffers of `data.buffer` pairs or more, whole blocks of it. Each buffer is encoded in memory
    and dealt out as an epoch of a small corpus is, so that the seed and the number of the buffer decide its batches.
    Items come in order; `positions` says where the buffer of the first one begins. Every process reads and
    encodes the whole stream, and takes its own batches.

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
        self._files = files
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

    def changed(self, n: int) -> bool:
        """Whether the files that update n + 1 would go on in have changed since."""
        begin = self._positions.find(n)
        return begin is not None and not _agree(begin.files, self._files)

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
            encoded = self._encode(checked)
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
            while sum(len(each.pairs) for each in checked) < self._buffer:
                if (block := next(self._blocks, None)) is None:
                    return checked, True
                checked.append(block)
        except BadRowError as error:
            raise ValueError(f"{error} (data.on_bad=skip leaves such rows out)") from None
        return checked, False

    def _encode(self, blocks: list[CheckedRows]) -> EncodedCorpus:
        pairs = enumerate(chain.from_iterable(block.pairs for block in blocks))  # numbered on from block to block
        numbered = (Pair(pair.source, pair.target, row, pair.where) for row, pair in pairs)
        return EncodedCorpus.build(numbered, self._tokenizers, longest=self._longest, on_bad=self._on_bad)


def _agree(former: str, present: str) -> bool:
    """Whether two hashes are the same; one that is not known agrees with any."""
    return not former or not present or former == present


def _hash(**settings: object) -> str:
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:16]


@dataclass(frozen=True)
class StreamPosition:
    """The beginning of a buffer, and what was in it.

    `contents` and `files` are "" in lines of earlier versions, where they are not compared.
    """

    update: int  # how many updates were before it
    number: int  # of the buffer
    epoch: int  # of the corpus
    block: int  # of the epoch, the first that is in the buffer
    settings: str  # a hash of what decides how a buffer becomes batches
    pairs: int = 0
    skipped: int = 0  # bad rows
    dropped: int = 0  # pairs that are too long
    contents: str = ""  # a hash of what decides which pairs a buffer has
    files: str = ""  # a hash of the files (`stream_files`)


class StreamPositions:
    """A line for each buffer, written by the first process before any batch of the buffer is used.

    So a checkpoint of update n always has a line for the buffer that update n + 1 is in. After a kill, lines of later
    buffers are left over. They are written again, and the last line that fits counts.
    """

    def __init__(self, file: Path, *, writes: bool) -> None:
        self.file, self.writes = file, writes

    def read(self) -> list[StreamPosition]:
        """All lines; the last one is left out where a kill or a power cut damaged it."""
        return self._parse(self._content())[0]

    def find(self, update: int) -> StreamPosition | None:
        """The buffer from which the batches after so many updates come."""
        return next((each for each in reversed(self.read()) if each.update <= update), None)

    def append(self, position: StreamPosition) -> None:
        """Add a line, in place of a damaged last one."""
        if not self.writes:
            return
        content = self._content()
        _, size = self._parse(content)
        if size < len(content):
            os.truncate(self.file, size)
        line_end = "\n" if size and content[size - 1 : size] != b"\n" else ""
        append_text(self.file, line_end + json.dumps(asdict(position)) + "\n")

    def _content(self) -> bytes:
        return self.file.read_bytes() if self.file.is_file() else b""

    def _parse(self, content: bytes) -> tuple[list[StreamPosition], int]:
        """The positions, and how many bytes their lines have."""
        positions: list[StreamPosition] = []
        lines, size = content.splitlines(keepends=True), 0
        for number, line in enumerate(lines, 1):
            try:
                positions.append(StreamPosition(**json.loads(line)))
            except (ValueError, TypeError) as error:
                if number < len(lines):
                    raise DamagedFileError(
                        f"{self.file}:{number} is no position in a stream ({error}): restore the file from a copy, or "
                        "remove it, and the stream begins again"
                    ) from None
                break
            size += len(line)
        return positions, size


def stream_files(data: StreamData) -> str:
    """A hash of the size and the time of every file of a stream, or of the commit of its dataset.

    "" where the Hub did not say the commit: nothing is then compared. Names are relative to the root, so that a corpus
    can move to another folder.
    """
    root = folder(data.root)
    if data.dataset:
        split = dataset_split(data, "train")
        if not Path(split.name).is_dir():
            commit = split.commit()
            return _hash(**{data.dataset: commit}) if commit else ""
        files = [file for file in Path(split.name).rglob("*") if file.is_file()]
    else:
        paths = (Path(file) for part in corpus_parts(data, "train") for file in part.files)
        files = [file for path in paths for file in ([path] if path.is_file() else path.rglob("*")) if file.is_file()]
    stats = {(file.relative_to(root) if file.is_relative_to(root) else file).as_posix(): file.stat() for file in files}
    return _hash(**{name: f"{stat.st_size} bytes, {stat.st_mtime_ns}" for name, stat in stats.items()})


def pin_revision(recipe: Recipe, begun: Recipe | None = None, *, restart: bool = False) -> Recipe:
    """The recipe with a commit in `data.revision`: the run has the same rows when it resumes, whatever is pushed later.

    `begun` is the recipe of the run that resumes: its commit stays, unless `recipe` has another commit. With `restart`
    the same command runs again, and a branch in its recipe stands for the commit that it stood for before. Where the
    Hub does not answer, the revision stays as it is.
    """
    data = recipe.data
    if not isinstance(data, StreamData) or not data.dataset:
        return recipe
    split = dataset_split(data, "train")
    if Path(split.name).is_dir():
        return recipe
    former = begun.data if begun is not None else None
    if not isinstance(former, StreamData) or former.dataset != data.dataset:
        return _with_revision(recipe, split.commit() or data.revision)
    if restart or data.revision in ("", former.revision):
        return _with_revision(recipe, former.revision)
    commit = split.commit()
    if commit and commit != former.revision and commit != data.revision:
        raise ValueError(
            f"data.revision = {data.revision!r} is commit {commit} of {data.dataset} now, and the run has read "
            f"{former.revision or 'a revision that it did not record'}: leave data.revision as it is to continue with "
            f"the same rows, or set it to {commit} for the new ones"
        )
    return _with_revision(recipe, commit or former.revision)


def _with_revision(recipe: Recipe, revision: str) -> Recipe:
    return recipe.with_settings("data", revision=revision)
