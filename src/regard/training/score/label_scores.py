"""Scores of a classifier by label: precision, recall, F1 and the confusion matrix."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ...data import Pair


@dataclass(frozen=True)
class LabelScore:
    """The scores of a label, in percent:

        precision = right / answered,   recall = right / count,   F1 = 2 right / (answered + count)

    None where the denominator is 0: a label that was never answered, or that no row has.
    """

    count: int  # rows whose label it is
    precision: float | None
    recall: float | None
    f1: float
    answers: dict[str, int]  # how often each answer was given to these rows: a row of the confusion matrix


def by_label(answers: Sequence[str], pairs: Sequence[Pair], names: Iterable[str]) -> dict[str, LabelScore]:
    """Of every label that some row has or some answer is, in the order of `names`."""
    taken: dict[str, Counter[str]] = {}
    for answer, pair in zip(answers, pairs, strict=True):
        taken.setdefault(pair.target, Counter())[answer] += 1
    answered = Counter(answers)
    order = [name for name in names if name in taken or name in answered]
    return {name: _label(name, taken.get(name, Counter()), answered[name], order) for name in order}


def _label(name: str, taken: Counter[str], answered: int, order: list[str]) -> LabelScore:
    count, right = taken.total(), taken[name]
    return LabelScore(
        count,
        100 * right / answered if answered else None,
        100 * right / count if count else None,
        200 * right / (answered + count),
        {other: taken[other] for other in order if taken[other]},
    )
