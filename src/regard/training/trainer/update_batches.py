"""What each update learns from, as a function of its number alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from torch.utils.data import Dataset

from ...data import Batch

if TYPE_CHECKING:
    from ...data import EncodedCorpus
    from ..tasks.task import Task


class EpochBatches(Protocol):
    """The batches of one epoch for one process, as `Batches` and `Windows` have them."""

    def __len__(self) -> int: ...

    def __getitem__(self, i: int) -> Batch: ...


class UpdateBatches(Dataset[list[Batch]]):
    """Item n is what one process learns from in update n + 1, whatever happened before: the batches it accumulates.

    An update takes `processes × accumulate` batches that belong together; process r takes every r-th of them. So two
    processes do what one does that accumulates twice as much.
    """

    def __init__(
        self,
        task: Task,
        encoded: EncodedCorpus,
        *,
        accumulate: int,
        seed: int,
        rank: int,
        world: int,
        fixed_shapes: bool,
    ) -> None:
        self.task, self.encoded, self.seed, self.fixed_shapes = task, encoded, seed, fixed_shapes
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

    def _open(self, epoch: int) -> list[EpochBatches]:
        return [
            self.task.batches(
                self.encoded,
                seed=self.seed,
                epoch=epoch,
                rank=rank,
                world=self.world,
                fixed_shapes=self.fixed_shapes,
            )
            for rank in self.ranks
        ]
