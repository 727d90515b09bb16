"""Snapshots of the weights: which are kept, and their average."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from regard.training import Run
from regard.training.checkpoint import Checkpoints

if TYPE_CHECKING:
    from pathlib import Path


class TestSnapshots:
    def test_average_the_window_and_forget_the_future(self, tmp_path: Path) -> None:
        recipe: Any = None
        run = Run(tmp_path, recipe)
        run.checkpoints.mkdir()
        snapshots = Checkpoints(run, window=3)
        shared = torch.zeros(2)
        for update in (1, 2, 3, 4):
            shared.fill_(update)
            snapshots.take(update, {"a": shared, "tied": shared, "count": torch.tensor(update)})
        assert snapshots.updates == [2, 3, 4]
        average = snapshots.average(snapshots.updates)
        assert average["a"].tolist() == average["tied"].tolist() == [3.0, 3.0]
        assert average["a"].dtype == torch.float32
        assert average["count"].item() == 4, "a number that is not learned is the last one's"
        for update in (2, 4):
            snapshots.take_best(update, {"a": torch.tensor(float(update))})
        snapshots.forget(3, best=2)
        assert snapshots.average(snapshots.updates)["a"].tolist() == [2.0, 2.0], "the last three up to update 3"
        assert snapshots.best()["a"].item() == 2.0
