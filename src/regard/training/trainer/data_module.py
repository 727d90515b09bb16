"""The data of a run: tokenised once into its folder; the number of an update alone decides its batches."""

from __future__ import annotations

import itertools
import json
import time
from functools import partial
from typing import TYPE_CHECKING, Protocol

import numpy as np
import pytorch_lightning as lightning
from torch.utils.data import DataLoader, Dataset

from ...atomic_write import replacing_folder
from ...checksums import check_files, write_checksums
from ...data import Batch, EncodedCorpus, Pair, TokenizerPair
from ...data.label_set import FIRST, UnknownLabelError, quoted
from ...data.pair_reader import BadRowError
from ...data.picture_reader import PictureReader
from ...data.source_reader import make_reader
from ...decoding.load_model_and_tokenizers import find
from ..recipe.data_section import FilesData
from ..run.provenance import Provenance
from .interrupt_signals import ignore_signals
from .prepared_settings import settings_changed, write_settings
from .recipe_corpus import Corpus, corpus_files, read
from .warm_start import WarmStart

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    import torch

    from ..run.run_folder import Run
    from ..tasks.task import Task

TYPICAL = 400  # training pictures whose statistics are kept, to notice others that are unlike them
REPORT = 10.0  # seconds between lines while a corpus is prepared
PAIRS = "valid.jsonl"  # of the validation set, as [row, source, target]: BLEU is of text


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

    def _open(self, epoch: int) -> list[EpochBatches]:
        return [self._batches(epoch=epoch, rank=rank) for rank in self._ranks]


class ReportedRows:
    """The rows of a corpus; while they are read, a line every `REPORT` seconds says how many there were."""

    def __init__(self, corpus: Corpus, activity: str, say: Callable[[str], None]) -> None:
        self.corpus, self.activity, self.say = corpus, activity, say

    def __iter__(self) -> Iterator[Pair]:
        last = time.monotonic()
        for count, pair in enumerate(self.corpus, 1):
            yield pair
            if (now := time.monotonic()) - last >= REPORT:
                self.say(f"{self.activity}: {count:,} rows so far")
                last = now


class DataModule(lightning.LightningDataModule):
    """Reads, tokenises and encodes the corpora of the recipe into the run's folder, and loads them from there."""

    tokenizers: TokenizerPair
    train: EncodedCorpus
    valid: EncodedCorpus
    valid_pairs: list[Pair]
    updates: UpdateBatches

    def __init__(self, run: Run, task: Task, say: Callable[[str], None], *, fixed_shapes: bool = False) -> None:
        super().__init__()
        self.run, self.task, self.say = run, task, say
        self.prepare_data_per_node = False  # all nodes share the run's folder
        self.fixed_shapes = fixed_shapes  # what CUDA graphs need

    def prepare_data(self) -> None:
        """Called once, on one process; data/ is written atomically."""
        if self.run.data.exists():
            check_files(self.run.data, f"restore it from a copy, or remove {self.run.data} to prepare the data again")
            if not settings_changed(self.run):
                return
            self.say("the data changed: it is prepared again, with the vocabulary of the run")
        try:
            self._prepare()
        except BadRowError as error:
            raise ValueError(f"{error} (data.on_bad=skip leaves such rows out)") from None

    def _prepare(self) -> None:
        recipe = self.run.recipe
        train, valid = (read(recipe.data, split, recipe.source.kind) for split in ("train", "valid"))
        if next(iter(train), None) is None:
            raise ValueError(f"{self._named('train')} holds no usable rows")
        first = not self.run.data.exists()
        if not first:  # a run that goes on with other data
            tokenizers = TokenizerPair.load(self.run.data)
        elif recipe.tokenizer.load:
            tokenizers = TokenizerPair.load(recipe.tokenizer.load)
        elif recipe.training.init:
            tokenizers = WarmStart(recipe).tokenizers(train)
        else:
            self.say("learning the vocabulary")
            how = recipe.tokenizer
            source = None if recipe.source.kind == "text" else make_reader(**recipe.source.model_dump())
            if isinstance(source, PictureReader):
                pictures = dict.fromkeys(pair.source for pair in train)  # several captions may name one picture
                source.learn_typical(itertools.islice(pictures, TYPICAL))
            labels = recipe.base_task == "classify"
            tokenizers = TokenizerPair.train(
                how.kind,
                how.size,
                ReportedRows(train, "learning the vocabulary", self.say),
                joint=how.joint,
                lowercase=how.lowercase,
                punctuation=how.punctuation,
                source=source,
                labels=labels,
                slots=how.slots,
            )
        with replacing_folder(self.run.data) as unfinished:
            tokenizers.save(unfinished)
            encoded = self._encode("train", train, tokenizers, unfinished / "train")
            if recipe.base_task == "classify":
                self._remark_rare(tokenizers.target.names, encoded)
            kept = set(self._encode("valid", valid, tokenizers, unfinished / "valid").rows.tolist())
            with (unfinished / PAIRS).open("w", encoding="utf-8") as file:
                for pair in valid:
                    if pair.row in kept:
                        file.write(json.dumps([pair.row, pair.source, pair.target]) + "\n")
            write_settings(self.run, unfinished)
            files = [path.relative_to(unfinished).as_posix() for path in unfinished.rglob("*") if path.is_file()]
            write_checksums(unfinished, files)
        self._record_files(first=first)

    def _record_files(self, *, first: bool) -> None:
        """The checksums of the corpora, or of what was prepared where they are generated; and of `training.init`.

        The latter only at the first preparation: a run that has begun no longer needs that model.
        """
        recipe, provenance = self.run.recipe, Provenance(self.run.folder)
        root, files = corpus_files(recipe.data)
        prepared = [path for path in sorted(self.run.data.rglob("*")) if path.is_file()]
        provenance.record_files("data", files or prepared, root if files else self.run.folder)
        if first and recipe.training.init:
            folder, _ = find(recipe.training.init)
            provenance.record_files("init", [folder / "model.safetensors"], folder)

    def _encode(self, split: str, corpus: Corpus, tokenizers: TokenizerPair, folder: Path) -> EncodedCorpus:
        data = self.run.recipe.data
        longest = None if data.kind in ("text", "phrases") else data.longest  # running text is cut into windows later
        every = data.hold_out if split == "valid" and isinstance(data, FilesData) else 0
        try:
            rows = ReportedRows(corpus, f"encoding {split}", self.say)
            encoded = EncodedCorpus.build(rows, tokenizers, longest=longest, folder=folder, on_bad=data.on_bad)
        except UnknownLabelError as error:
            if not every:
                raise
            raise ValueError(
                f"{error}; data.hold_out = {every} keeps this row to validate with, and no row that is left to "
                "train on has that label: give it more rows, or name a file in data.valid"
            ) from None
        unreadable = encoded.about.unreadable
        # Bad rows of a file that rows are held out of were reported with its training part.
        parts = [] if every else [part for part in corpus.parts if part.reasons]
        skipped = sum(part.skipped for part in parts) + len(unreadable)
        left_out = f"; {skipped:,} bad rows skipped, {encoded.about.dropped:,} longer than {longest} tokens left out"
        self.say(f"{split}: {self.task.amount(encoded)}{'' if longest is None else left_out}")
        for problem in unreadable[:5]:
            self.say(f"  {problem}")
        for part in parts:
            self.say(f"  {part.report()}; the first of each kind:")
            for place in part.first.values():
                self.say(f"  {place}")
        if not len(encoded):
            if every and not encoded.about.dropped + len(unreadable):
                raise ValueError(
                    f"data.hold_out = {every} holds out one row of each {every} to validate on, and there are too few "
                    "rows for one: lower it, or name a file in data.valid"
                )
            raise ValueError(
                f"{self._named(split)} holds no usable rows: {skipped:,} bad rows were skipped, "
                f"and {encoded.about.dropped:,} rows are longer than data.longest = {longest}"
                + (f"; the first: {unreadable[0]}" if unreadable else "")
            )
        return encoded

    def _remark_rare(self, names: list[str], encoded: EncodedCorpus) -> None:
        """Name labels with a single row: often an error, perhaps the header of the file."""
        rows = np.bincount(encoded.target, minlength=FIRST + len(names))[FIRST:]
        rare = [quoted(names[n]) for n in np.flatnonzero(rows == 1)]
        if not rare:
            return
        named = ", ".join(rare[:5]) + (f" and {len(rare) - 5:,} more" if len(rare) > 5 else "")
        message = f"label {named} has one row" if len(rare) == 1 else f"labels {named} have one row each"
        data = self.run.recipe.data
        if isinstance(data, FilesData) and isinstance(data.columns[0], int):
            message += '; if the first line is a header, name the columns: data.columns = ["text", "label"], say'
        self.say(f"  {message}")

    def _named(self, split: str) -> str:
        """A split and its files, as the recipe names them."""
        data = self.run.recipe.data
        if split == "valid" and isinstance(data, FilesData) and data.hold_out:
            return f"what data.hold_out = {data.hold_out} holds out of data.train"
        files = getattr(data, split, None)
        if not isinstance(files, list):
            return f"data.{split}"
        names = [" and ".join([file] if isinstance(file, str) else file) for file in files]
        return f"data.{split} ({', '.join(names)})"

    def setup(self, stage: str) -> None:
        assert self.trainer is not None
        recipe = self.run.recipe
        self.tokenizers = TokenizerPair.load(self.run.data)
        self.train = EncodedCorpus.load(self.run.data / "train")
        self.valid = EncodedCorpus.load(self.run.data / "valid")
        with (self.run.data / PAIRS).open(encoding="utf-8") as file:
            self.valid_pairs = [Pair(source, target, row) for row, source, target in map(json.loads, file)]
        self.updates = UpdateBatches(
            self.task,
            self.train,
            accumulate=recipe.training.accumulate,
            seed=recipe.seed,
            rank=self.trainer.global_rank,
            world=self.trainer.world_size,
            fixed_shapes=self.fixed_shapes,
        )

    def train_dataloader(self) -> DataLoader[list[Batch]]:
        """Endless, from the next update on; `max_steps` ends the training."""
        assert self.trainer is not None
        workers = self.run.recipe.training.workers
        return DataLoader(
            self.updates,
            sampler=itertools.count(self.trainer.global_step),
            batch_size=None,
            num_workers=workers,
            persistent_workers=workers > 0,
            worker_init_fn=ignore_signals,
        )

    def transfer_batch_to_device(self, batch: list[Batch], device: torch.device, dataloader_idx: int) -> list[Batch]:
        return [part.to(device) for part in batch]
