"""The corpora of a run: tokenised once into its folder, then dealt out update by update."""

from __future__ import annotations

import itertools
import json
import shutil
from typing import TYPE_CHECKING

import pytorch_lightning as lightning
from torch.utils.data import DataLoader, Dataset

from ..data import Batch, Batches, Encoded, Pair, Tokenizers
from .corpus import Corpus, read

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import torch

    from .run import Run

PAIRS = "valid.jsonl"  # of the validation set, as [row, source, target]: BLEU is of text


class Updates(Dataset[list[Batch]]):
    """Item n is what one process learns from in update n + 1, whatever happened before: the batches it accumulates.

    An update takes `processes × accumulate` batches that belong together; process r takes every r-th of them. So two
    processes do what one does that accumulates twice as much.
    """

    def __init__(
        self, encoded: Encoded, *, tokens: int, accumulate: int, seed: int, rank: int, world: int, fixed_shapes: bool
    ) -> None:
        self.encoded, self.seed = encoded, seed
        self.tokens, self.fixed_shapes = tokens, fixed_shapes
        self.ranks, self.world = range(rank, world * accumulate, world), world * accumulate
        self._epoch = self._open(0)
        self._number = 0

    @property
    def epoch_length(self) -> int:
        """Updates in an epoch: the same number in each, since only the order changes."""
        return len(self._epoch[0])

    def __getitem__(self, n: int) -> list[Batch]:
        epoch, step = divmod(n, self.epoch_length)
        if epoch != self._number:
            self._epoch, self._number = self._open(epoch), epoch
        return [batches[step] for batches in self._epoch]

    def _open(self, epoch: int) -> list[Batches]:
        return [
            Batches(
                self.encoded,
                tokens=self.tokens,
                seed=self.seed,
                epoch=epoch,
                rank=rank,
                world=self.world,
                fixed_shapes=self.fixed_shapes,
            )
            for rank in self.ranks
        ]


class Corpora(lightning.LightningDataModule):
    """Reads, tokenises and encodes what the recipe names; afterwards everything comes from the run's folder."""

    tokenizers: Tokenizers
    train: Encoded
    valid: Encoded
    valid_pairs: list[Pair]
    updates: Updates

    def __init__(self, run: Run, say: Callable[[str], None], *, fixed_shapes: bool = False) -> None:
        super().__init__()
        self.run, self.say = run, say
        self.prepare_data_per_node = False  # the run's folder is one folder, also for several nodes
        self.fixed_shapes = fixed_shapes  # what CUDA graphs need

    def prepare_data(self) -> None:
        """On one process, once: data/ appears whole or not at all."""
        if self.run.data.exists():
            return
        recipe = self.run.recipe
        unfinished = self.run.data.with_name("data.unfinished")
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir()
        train, valid = read(recipe.data, "train"), read(recipe.data, "valid")
        if recipe.tokenizer.load:
            tokenizers = Tokenizers.load(recipe.tokenizer.load)
        else:
            self.say("learning the vocabulary")
            how = recipe.tokenizer
            tokenizers = Tokenizers.train(how.kind, how.size, train, joint=how.joint, lowercase=how.lowercase)
        tokenizers.save(unfinished)
        self._encode("train", train, tokenizers, unfinished / "train")
        kept = set(self._encode("valid", valid, tokenizers, unfinished / "valid").rows.tolist())
        with (unfinished / PAIRS).open("w", encoding="utf-8") as file:
            for pair in valid:
                if pair.row in kept:
                    file.write(json.dumps([pair.row, pair.source, pair.target]) + "\n")
        unfinished.rename(self.run.data)

    def _encode(self, split: str, corpus: Corpus, tokenizers: Tokenizers, folder: Path) -> Encoded:
        longest = self.run.recipe.data.longest
        encoded = Encoded.build(corpus, tokenizers, longest=longest, folder=folder)
        self.say(
            f"{split}: {len(encoded):,} pairs, {len(encoded.target):,} target tokens; {corpus.skipped:,} bad rows "
            f"skipped, {encoded.dropped:,} pairs longer than {longest} tokens left out"
        )
        for part in corpus.parts:
            if part.skipped:
                self.say(f"  {part.report()}; the first of each kind:")
                for place in part.first.values():
                    self.say(f"  {place}")
        if not len(encoded):
            raise ValueError(f"data.{split} holds no pair that can be used")
        return encoded

    def setup(self, stage: str) -> None:
        assert self.trainer is not None
        recipe = self.run.recipe
        self.tokenizers = Tokenizers.load(self.run.data)
        self.train = Encoded.load(self.run.data / "train")
        self.valid = Encoded.load(self.run.data / "valid")
        with (self.run.data / PAIRS).open(encoding="utf-8") as file:
            self.valid_pairs = [Pair(source, target, row) for row, source, target in map(json.loads, file)]
        self.updates = Updates(
            self.train,
            tokens=recipe.training.tokens,
            accumulate=recipe.training.accumulate,
            seed=recipe.seed,
            rank=self.trainer.global_rank,
            world=self.trainer.world_size,
            fixed_shapes=self.fixed_shapes,
        )

    def train_dataloader(self) -> DataLoader[list[Batch]]:
        """Without an end, from the update that comes next; `max_steps` ends it."""
        assert self.trainer is not None
        workers = self.run.recipe.training.workers
        return DataLoader(
            self.updates,
            sampler=itertools.count(self.trainer.global_step),
            batch_size=None,
            num_workers=workers,
            persistent_workers=workers > 0,
        )

    def transfer_batch_to_device(self, batch: list[Batch], device: torch.device, dataloader_idx: int) -> list[Batch]:
        return [part.to(device) for part in batch]
