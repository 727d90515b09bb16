"""What a model of any task scores on pairs: a few named numbers."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch

from ...data import EncodedCorpus
from .label_scores import LabelScore, by_label

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ...data import Pair, TokenizerPair
    from ..tasks.task import Task


@dataclass
class TaskEvaluation:
    """What `regard evaluate` prints of a model that does not translate, and results.json keeps."""

    task: str
    items: int
    values: dict[str, float]
    amount: str = ""  # the items in the words of the task
    search: dict[str, Any] = field(default_factory=dict)  # empty of a model that searches nothing
    labels: dict[str, LabelScore] = field(default_factory=dict)  # of a classifier: how each of them fares

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@torch.no_grad()
def evaluate_task(
    task: Task, model: Any, tokenizers: TokenizerPair, pairs: Iterable[Pair]
) -> tuple[TaskEvaluation, list[str]]:
    """The scores of a model in evaluation mode, whatever its task measures; and what it said to each pair's source."""
    pairs = [replace(pair, row=row) for row, pair in enumerate(pairs)]
    if not pairs:
        raise ValueError("there is not one pair to evaluate on")
    device = next(model.parameters()).device
    encoded = EncodedCorpus.build(pairs, tokenizers)
    if (widest := int(encoded.widths.max())) > task.recipe.data.longest and task.recipe.task != "write":
        raise ValueError(f"a pair takes {widest} tokens, and the recipe was for {task.recipe.data.longest}: cut it")
    nll = count = 0.0
    for batch in task.checks(encoded):
        loss = model.loss(batch.to(device))
        nll, count = nll + float(loss.nll), count + float(loss.tokens)
    answers = task.answers(model, tokenizers, pairs)
    values = task.figures(answers, pairs, nll / count, model, tokenizers)
    search = task.recipe.search.model_dump() if task.searches else {}
    labels = by_label(answers, pairs, tokenizers.target.names) if task.recipe.task == "classify" else {}
    return TaskEvaluation(task.recipe.task, len(pairs), values, task.amount(encoded), search, labels), answers
