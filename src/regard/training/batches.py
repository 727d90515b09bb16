"""The data of a run: tokenised once into its folder; the number of an update alone decides its batches."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from torch.utils.data import DataLoader, Dataset

from ..data.batches import Batch
from ..data.encoding import BpeDropout, EncodedCorpus
from ..data.rows import BadRowError, Pair
from ..data.tokenizer_pair import TokenizerPair
from ..files import check_files
from ..messages import count_of
from .corpora import pair_stream
from .distributed import ignore_signals
from .preparation import VALID_PAIRS, CorpusPreparation, settings_changed
from .recipe_sections import StreamData
from .streams import POSITIONS as STREAM
from .streams import StreamPositions, StreamUpdates, stream_files

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from .distributed import Processes
    from .run import Run
    from .tasks import Task


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
            if not settings_changed(self.run):
                return
            self.say("the data changed: it is prepared again, with the vocabulary of the run")
        else:
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
        if recipe.tokenizer.dropout:
            self.task.dropout = BpeDropout(self.tokenizers, recipe.tokenizer.dropout, recipe.data.longest)
        places: dict[str, Any] = {"rank": rank, "world": world, "fixed_shapes": self.fixed_shapes}
        if isinstance(recipe.data, StreamData):
            self.train = EncodedCorpus.build([], self.tokenizers)  # a stream has no statistics that are counted
            positions = StreamPositions(self.run.data / STREAM, writes=processes.is_first)
            # The first process writes the recipe, so its commit of a dataset counts for all.
            data = replace(recipe.data, revision=processes.broadcast(recipe.data.revision))
            stream = pair_stream(data, seed=recipe.seed)
            self.files = stream_files(data)
            made = {"files": self.files, **places}
            self.updates = StreamUpdates(recipe, self.task, stream, self.tokenizers, positions, **made)
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
                epoch = self.updates.epoch_of(update + 1)
                self.say(f"data.train changed since update {update:,}: epoch {epoch} begins again")
            if not self.files:
                self.say("the commit of data.dataset is not known: resuming will not notice that the dataset changed")
        return iter(
            DataLoader(self.updates, sampler=itertools.count(update), batch_size=None, **self.worker_settings(workers))
        )

    def worker_settings(self, workers: int) -> dict[str, Any]:
        """The arguments of a DataLoader that has so many processes."""
        return {"num_workers": workers, "worker_init_fn": ignore_signals}
