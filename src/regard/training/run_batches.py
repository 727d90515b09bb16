"""The batches of a run: the number of an update alone decides them, of data that is prepared and of a stream."""

from __future__ import annotations

import hashlib
import itertools
import json
from dataclasses import asdict, dataclass, fields
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

from torch.utils.data import DataLoader, Dataset

from ..data.batches import Batch
from ..data.encoding import EncodedCorpus
from ..data.rows import BadRowError, Pair
from ..data.tokenizer_pair import TokenizerPair
from ..files import check_files, write_text
from ..wording import count_of
from .corpora import VALID_PAIRS, CorpusPreparation, pair_stream
from .devices import ignore_signals
from .recipe_files import folder
from .recipe_sections import StreamData

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ..data.corpus_stream import CheckedRows, PairStream
    from .devices import Processes
    from .recipe import Recipe
    from .run_folder import Run
    from .tasks import Task


POSITIONS = "stream.jsonl"
"""In data/ of a run: at which update each buffer of the stream began, and where in the corpus."""


class EpochBatches(Protocol):
    """The batches of one epoch for one process, as `Batches` and `RandomWindows` are."""

    def __len__(self) -> int: ...

    def __getitem__(self, i: int) -> Batch: ...


class UpdateBatches(Dataset[list[Batch]]):
    """Item n is the list of batches that one process accumulates in update n + 1.

    An update takes `processes × accumulate` batches, dealt out to the processes in turn. So two processes do the same
    as one that accumulates twice as much.
    """

    def __init__(
        self, task: Task, encoded: EncodedCorpus, accumulate: int, seed: int, rank: int, world: int, fixed_shapes: bool
    ) -> None:
        count = world * accumulate
        self._batches = partial(task.batches, encoded, seed=seed, world=count, fixed_shapes=fixed_shapes)
        self._ranks = range(rank, count, world)
        self._epoch, self._number = self._open(0), 0
        self.epoch_length = len(self._epoch[0])  # in updates; the same for all epochs, since only the order changes

    def __getitem__(self, n: int) -> list[Batch]:
        epoch, step = divmod(n, self.epoch_length)
        if epoch != self._number:
            self._epoch, self._number = self._open(epoch), epoch
        return [batches[step] for batches in self._epoch]

    def epoch_of(self, update: int) -> int:
        return (update - 1) // self.epoch_length

    def _open(self, epoch: int) -> list[EpochBatches]:
        return [self._batches(epoch=epoch, rank=rank) for rank in self._ranks]


class Corpora:
    """Reads, tokenises and encodes the corpora of the recipe into the run's folder, and loads them from there."""

    tokenizers: TokenizerPair
    train: EncodedCorpus
    valid: EncodedCorpus
    valid_pairs: list[Pair]
    updates: UpdateBatches | StreamUpdates
    validates: bool = True  # otherwise there is no validation set, and nothing is compared

    def __init__(self, run: Run, task: Task, say: Callable[[str], None], *, fixed_shapes: bool = False) -> None:
        self.run, self.task, self.say = run, task, say
        self.fixed_shapes = fixed_shapes  # what CUDA graphs need

    def prepare(self) -> None:
        """Called by the first process; data/ is written atomically."""
        if self.run.data.exists():
            check_files(self.run.data, f"restore it from a copy, or remove {self.run.data} to prepare the data again")
            return
        self.say(f"preparing the data, into {self.run.data}")
        try:
            CorpusPreparation(self.run, self.task, self.say).prepare()
        except BadRowError as error:
            raise ValueError(f"{error} (data.on_bad=skip leaves such rows out)") from None

    def load(self, processes: Processes) -> None:
        """Called by every process, once the data is prepared."""
        recipe, rank, world = self.run.recipe, processes.rank, processes.world
        self.tokenizers = TokenizerPair.load(self.run.data)
        self.valid = EncodedCorpus.load(self.run.data / "valid")
        with (self.run.data / VALID_PAIRS).open(encoding="utf-8") as file:
            self.valid_pairs = [Pair(source, target, row) for row, source, target in map(json.loads, file)]
        places: dict[str, Any] = {"rank": rank, "world": world, "fixed_shapes": self.fixed_shapes}
        if isinstance(recipe.data, StreamData):
            self.train = EncodedCorpus.build([], self.tokenizers)  # a stream has no statistics that are counted
            positions = StreamPositions(self.run.data / POSITIONS, writes=processes.is_first)
            stream, files = pair_stream(recipe.data, seed=recipe.seed), files_hash(recipe.data)
            self.updates = StreamUpdates(recipe, self.task, stream, self.tokenizers, positions, files=files, **places)
            return
        self.train = EncodedCorpus.load(self.run.data / "train")
        accumulate = recipe.training.accumulate
        self.updates = UpdateBatches(self.task, self.train, accumulate=accumulate, seed=recipe.seed, **places)
        if recipe.base_task != "write" and self.updates.epoch_length == 1:
            self.say(
                f"every update is an epoch: training.tokens = {recipe.training.tokens:,} has room for the whole "
                f"corpus, {count_of(len(self.train), 'pair')}"
            )

    def loader(self, update: int) -> Iterator[list[Batch]]:
        """Endless: what this process accumulates in each update after `update`."""
        workers = self.run.recipe.training.workers
        if isinstance(self.updates, StreamUpdates):
            workers = min(workers, 1)  # each would read the whole stream
            if self.updates.changed(update):
                self.say(
                    f"the files of data.train changed since update {update:,}: the rows that follow are not those of "
                    "a run without a break"
                )
        return iter(
            DataLoader(self.updates, sampler=itertools.count(update), batch_size=None, **self.worker_settings(workers))
        )

    def worker_settings(self, workers: int) -> dict[str, Any]:
        """The arguments of a DataLoader that has so many processes."""
        return {"num_workers": workers, "worker_init_fn": ignore_signals}


class StreamUpdates(Dataset[list[Batch]]):
    """Item n is the list of batches that one process accumulates in update n + 1, as of `UpdateBatches`.

    The corpus is cut into buffers of `data.buffer` pairs or more, whole blocks of it. Each buffer is encoded in memory
    and dealt out as an epoch of a small corpus is, so that the seed and the number of the buffer decide its batches.
    Items come in order; `positions` says where the buffer of the first one begins. Every process reads and
    encodes the whole stream, and takes its own batches.

    A run that resumes with other batches (`training.tokens`, `accumulate`, `devices`) begins its buffer again.
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
        """`files` is a hash of the files of the stream, to notice when another run of the program reads others."""
        data: StreamData = recipe.data  # type: ignore[assignment]
        count = world * recipe.training.accumulate
        shapes: bool | Literal["full"] = "full" if fixed_shapes else False  # the same for all buffers
        self._buffer, self._longest, self._on_bad = data.buffer, data.longest, data.on_bad
        self._stream, self._tokenizers, self._positions = stream, tokenizers, positions
        self._batches = partial(task.batches, seed=recipe.seed, world=count, fixed_shapes=shapes)
        self._ranks = range(rank, count, world)
        decisive: dict[str, object] = {"tokens": recipe.training.tokens, "batches": count, "fixed": fixed_shapes}
        decisive["dropout"] = 0.0  # of merges of BPE, which earlier versions had: their runs go on in their buffer
        self._settings = hashlib.sha256(json.dumps(decisive, sort_keys=True).encode()).hexdigest()[:16]
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

    def changed(self, update: int) -> bool:
        """Whether the files are others than those that the batches up to `update` came from."""
        begin = self._positions.find(update)
        return begin is not None and "" not in (begin.files, self._files) and begin.files != self._files

    def _seek(self, n: int) -> None:
        begin = self._positions.find(n)
        if begin is None:
            self._next, update = (0, 0, 0), n
        else:
            same = begin.settings == self._settings
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
            update, number, epoch, block, self._settings, len(encoded), skipped, dropped, self._files
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


@dataclass(frozen=True)
class StreamPosition:
    """The beginning of a buffer, and what was in it."""

    update: int  # how many updates were before it
    number: int  # of the buffer
    epoch: int  # of the corpus
    block: int  # of the epoch, the first that is in the buffer
    settings: str  # a hash of what decides how a buffer becomes batches
    pairs: int
    skipped: int  # bad rows
    dropped: int  # pairs that are too long
    files: str = ""  # a hash of the files (`files_hash`); "" where it is not known


class StreamPositions:
    """A line for each buffer, written by the first process before any batch of the buffer is used.

    So a checkpoint of update n always has a line for the buffer that update n + 1 is in. After a kill, lines of later
    buffers are left over. They are written again, and the last line that fits counts.
    """

    def __init__(self, file: Path, *, writes: bool) -> None:
        self.file, self.writes = file, writes

    def read(self) -> list[StreamPosition]:
        """The lines before the first one that a kill or a power cut damaged."""
        positions: list[StreamPosition] = []
        known = [each.name for each in fields(StreamPosition)]
        for line in self.file.read_bytes().splitlines() if self.file.is_file() else ():
            try:
                values = json.loads(line)
                positions.append(StreamPosition(**{name: values[name] for name in known if name in values}))
            except (ValueError, TypeError, KeyError):
                break
        return positions

    def find(self, update: int) -> StreamPosition | None:
        """The buffer from which the batches after so many updates come."""
        return next((each for each in reversed(self.read()) if each.update <= update), None)

    def append(self, position: StreamPosition) -> None:
        if self.writes:
            lines = [json.dumps(asdict(each)) + "\n" for each in [*self.read(), position]]
            write_text(self.file, "".join(lines))


def files_hash(data: StreamData) -> str:
    """A hash of the size and the time of every file of a stream."""
    root = folder(data.root)
    files = sorted({Path(file) for part in pair_stream(data).parts for file in part.files})
    names = ((file.relative_to(root) if file.is_relative_to(root) else file).as_posix() for file in files)
    stats = [(name, file.stat().st_size, file.stat().st_mtime_ns) for name, file in zip(names, files, strict=True)]
    return hashlib.sha256(json.dumps(stats).encode()).hexdigest()[:16]
