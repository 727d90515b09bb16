"""results.json of a run: what it scored, by the name of what it was evaluated on."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from ...atomic_write import write_text
from ...json_file import read_object
from ..score.bleu import LengthBin, Score
from ..score.evaluation import TaskEvaluation
from ..score.label_scores import LabelScore
from ..score.translation_evaluation import TranslationEvaluation

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

NAME = "results.json"
LARGEST = 1 << 24  # bytes; regard writes no file that large


def save_result(run: Path, data: str, evaluation: TranslationEvaluation | TaskEvaluation) -> Path:
    """Adds an evaluation to a run's results, in place of an earlier one on the same data."""
    file = run / NAME
    known = _read(file) if file.exists() else {}
    known[data] = asdict(evaluation)
    write_text(file, json.dumps(known, indent=2, ensure_ascii=False) + "\n")
    return file


def load_results(run: Path) -> dict[str, TranslationEvaluation | TaskEvaluation]:
    """What a run scored, by data."""
    file = run / NAME
    if not file.is_file():
        raise ValueError(f"{run} has no {NAME}; make it with: regard evaluate {run}")
    try:
        return {data: _evaluation(values) for data, values in _read(file).items()}
    except (AttributeError, KeyError, TypeError) as error:
        raise ValueError(f"{file} was not written by this version of regard ({error}); evaluate again") from error


@dataclass(frozen=True)
class ComparisonRow:
    """One line of a comparison."""

    run: str
    data: str
    evaluation: TranslationEvaluation | TaskEvaluation


def compare(runs: Iterable[Path]) -> list[ComparisonRow]:
    """Runs side by side, grouped by what they were evaluated on."""
    runs = list(runs)
    whole = [run.resolve() for run in runs]
    alike = {run.name for run in whole if len({other for other in whole if other.name == run.name}) > 1}
    names = [str(run) if full.name in alike else full.name for run, full in zip(runs, whole, strict=True)]
    rows = [
        ComparisonRow(name, data, evaluation)
        for run, name in zip(runs, names, strict=True)
        for data, evaluation in load_results(run).items()
    ]
    order = {data: i for i, data in enumerate(dict.fromkeys(row.data for row in rows))}
    return sorted(rows, key=lambda row: order[row.data])


def _read(file: Path) -> dict[str, Any]:
    return read_object(file, "remove it and evaluate again", LARGEST)


def _evaluation(values: dict[str, Any]) -> TranslationEvaluation | TaskEvaluation:
    if "task" in values:
        labels = {name: LabelScore(**label) for name, label in values.get("labels", {}).items()}
        return TaskEvaluation(**{**values, "labels": labels})
    scored = {name: Score(**values[name]) for name in ("bleu", "tokenised_bleu", "chrf")}
    return TranslationEvaluation(
        **{**values, **scored, "by_length": [LengthBin(**each) for each in values["by_length"]]}
    )
