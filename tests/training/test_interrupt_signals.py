"""Signals that reach the workers of a DataLoader too, as Ctrl-C in a terminal does."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from regard.training import Run
from regard.training.distributed import SIGNALS, Processes, Signals
from regard.training.own_model import ModelData, ModelRecipe, ModelTask
from regard.training.recipe_sections import TrainingSection

if TYPE_CHECKING:
    from pathlib import Path


class WorkerProcess:
    """Batches that hold the number of the process which made them."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, i: int) -> torch.Tensor:
        return torch.tensor(os.getpid())


class Model(nn.Module):
    def loss(self, batch: torch.Tensor) -> torch.Tensor:
        return batch.sum()


def test_a_worker_makes_batches_after_a_signal_to_the_process_group(tmp_path: Path) -> None:
    recipe: Any = ModelRecipe(name="signals", training=TrainingSection(workers=1, accelerator="cpu"))
    batches: Any = WorkerProcess()
    data = ModelData(Run(tmp_path, recipe), ModelTask(recipe, Model()), print, batches, batches)
    processes = Processes(recipe.training, "")
    data.load(processes)
    signals = Signals()
    signals.install()
    signals.at_once = False
    try:
        loader = data.loader(0)
        worker: Any = int(next(loader)[0])  # type: ignore[call-overload]
        assert worker != os.getpid()
        for number in SIGNALS:
            os.kill(worker, number)
        for _ in range(6):  # more than were made in advance
            assert int(next(loader)[0]) == worker  # type: ignore[call-overload]
    finally:
        signals.restore()
