"""A dozen prompts of the indirect-object task (Wang et al. 2023): "When Mary and John …, John gave … to" → Mary."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

PAIRS = [("Mary", "John"), ("Tom", "Anna"), ("Sarah", "David"), ("Alice", "Bob"), ("Emma", "Jack"), ("Lucy", "Peter")]
TEMPLATE = "When {a} and {b} went to the store, {b} gave a drink to"


class IndirectObjects(NamedTuple):
    """The prompts, the token that each asks for, and the token of the other name."""

    ids: Tensor
    answers: list[int]
    others: list[int]

    @property
    def difference(self) -> Callable[[Any], Tensor]:
        """The metric: the logit of the answer less that of the other name, at the last position."""

        def metric(output: Any) -> Tensor:
            logits, rows = output.logits[:, -1], range(len(self.answers))
            return logits[rows, self.answers] - logits[rows, self.others]

        return metric

    def first(self, count: int) -> IndirectObjects:
        return IndirectObjects(self.ids[:count], self.answers[:count], self.others[:count])


def indirect_objects(tokenizer: Any) -> IndirectObjects:
    """Each pair of names in both orders."""
    pairs = [order for a, b in PAIRS for order in ((a, b), (b, a))]
    ids = [tokenizer(TEMPLATE.format(a=a, b=b))["input_ids"] for a, b in pairs]
    answers, others = ([tokenizer(f" {pair[n]}")["input_ids"][0] for pair in pairs] for n in (0, 1))
    return IndirectObjects(torch.tensor(ids), answers, others)
