"""Validating a model while it is trained, and what the results so far mean for the training."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed

from ...decoding.search_graphs import release_graphs

if TYPE_CHECKING:
    from ..recipe.recipe_sections import TrainingSection
    from ..tasks.task import Task
    from .data_module import DataModule


@dataclass
class ValidationState:
    """The results of the validations so far."""

    best: float = -math.inf
    best_loss: float = math.nan  # not known in checkpoints of earlier versions: an equal score is then no better
    best_update: int = 0  # 0: there is none
    poor: int = 0  # validations since the best one
    cuts: int = 0  # how often schedule = "plateau" has cut the rate
    since_cut: int = 0  # validations without a better score since the last cut
    last: float = -math.inf  # score
    last_loss: float = math.nan
    last_update: int = 0

    def add(self, update: int, score: float, loss: float, settings: TrainingSection) -> bool:
        """Count a result; whether it is the best so far. Of equal scores, that with the lower loss is better."""
        self.last, self.last_loss, self.last_update = score, loss, update
        if is_better((score, loss), (self.best, self.best_loss)):
            self.best, self.best_loss, self.best_update, self.poor, self.since_cut = score, loss, update, 0, 0
            return True
        self.poor += 1
        self.since_cut += 1
        if self.since_cut >= settings.hold:
            self.cuts, self.since_cut = self.cuts + 1, 0
        return False

    def patience_is_over(self, settings: TrainingSection) -> bool:
        return 0 < settings.patience <= self.poor

    def forget_best(self) -> None:
        """Scores on other data cannot be compared with those so far."""
        self.best, self.best_loss, self.best_update = -math.inf, math.nan, 0


def is_better(result: tuple[float, float], other: tuple[float, float]) -> bool:
    """Whether a score and its loss are better than others: a higher score, or an equal one with a lower loss."""
    return result[0] > other[0] or (result[0] == other[0] and result[1] < other[1])


@torch.no_grad()
def validate(task: Task, corpora: DataModule, model: Any, rank: int = 0, world: int = 1) -> tuple[float, float]:
    """A model's loss and score on the validation set; each process evaluates a share, and has the result of all."""
    sums = task.loss_sums(model, corpora.valid, rank=rank, world=world)
    pairs = corpora.valid_pairs
    answers = task.answers(model, corpora.tokenizers, pairs[rank::world])
    release_graphs(model)  # the next update needs the memory
    if world > 1:
        torch.distributed.all_reduce(sums)
        shares: list[list[str]] = [[]] * world
        torch.distributed.all_gather_object(shares, answers)
        answers = [""] * len(pairs)
        for number, share in enumerate(shares):
            answers[number::world] = share
    nll, count = sums.tolist()
    return nll / count, task.score(answers, pairs, nll / count)
