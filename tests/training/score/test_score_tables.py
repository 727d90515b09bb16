"""Tables of scores: what is printed of a classifier."""

from __future__ import annotations

import io

from rich.console import Console

from regard.training.score.evaluation import TaskEvaluation
from regard.training.score.label_scores import LabelScore
from regard.training.score.score_tables import MAX_LABELS, evaluation_tables


def printed(labels: int) -> str:
    scores = {f"l{n}": LabelScore(5, None, 40.0, 50.0, {f"l{n}": 2, "l0": 3}) for n in range(labels)}
    evaluation = TaskEvaluation("classify", 5, {"loss": 0.5, "accuracy": 40.0}, "5 texts", {}, scores)
    console = Console(file=io.StringIO(), width=200)
    for table in evaluation_tables("test", evaluation, tokenised=False):
        console.print(table)
    return console.file.getvalue()  # type: ignore[attr-defined, no-any-return]


def test_few_labels_have_a_confusion_matrix_and_many_are_cut() -> None:
    few, many = printed(2), printed(MAX_LABELS + 1)
    assert few.startswith("test: 5 texts\n")
    assert "0.5000" in few
    assert "–" in few
    assert "by what the model answered" in few
    assert "by what the model answered" not in many
    assert f"all {MAX_LABELS + 1} are in results.json" in many
