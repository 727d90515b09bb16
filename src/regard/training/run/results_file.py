"""results.json of a run: what its model, and those it had before it was extended, scored on which data.

An entry has the SHA-256 of the weights that it is of. Those of snapshots name their update instead, and those of
earlier versions have nothing: they count as scores of the run's model, until `record_run_results`.
"""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from ...atomic_write import write_text
from ...decoding.load_model_and_tokenizers import enclosing_run, is_earlier
from ...json_file import read_object
from ...models.pretrained_model import WEIGHTS
from ...models.weights_header import weights_sha256
from ..score.bleu import LengthBin, Score
from ..score.evaluation import TaskEvaluation
from ..score.label_scores import LabelScore
from ..score.translation_evaluation import TranslationEvaluation

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

NAME = "results.json"
LARGEST = 1 << 24  # bytes; regard writes no file that large
DATA, DIGEST = "data", "weights_sha256"
"""Keys of an entry, beside those of its evaluation."""
SNAPSHOT = re.compile(r"\((?:.*, )?update [0-9]+\)$")
"""How the data of a run that was not finished ends: with the update of the weights."""


def save_result(
    run: Path, data: str, evaluation: TranslationEvaluation | TaskEvaluation, digest: str | None = None
) -> Path:
    """Adds an evaluation to a run's results, in place of an earlier one of the same weights on the same data.

    `digest` is the SHA-256 of the weights; None of a snapshot, or where it is not known.
    """
    file = run / NAME
    entries = list(_read(file).items()) if file.exists() else []
    record = {} if digest is None else {DATA: data, DIGEST: digest}
    return _write(run, [*entries, (data, {**asdict(evaluation), **record})])


def load_results(run: Path) -> dict[str, TranslationEvaluation | TaskEvaluation]:
    """What the model of a run scored, by data."""
    current = _model_digest(run / "model")
    return {data: evaluation for data, digest, evaluation in _results(run) if digest in (None, current)}


def record_run_results(run: Path) -> None:
    """Record the weights of the run's model, which is about to be replaced, in entries without a record of theirs."""
    current, file = _model_digest(run / "model"), run / NAME
    if current is None or not file.is_file():
        return
    entries = _read(file)
    for data, values in entries.items():
        if isinstance(values, dict) and DIGEST not in values and not SNAPSHOT.search(data):
            entries[data] = {**values, DATA: data, DIGEST: current}
    _write(run, list(entries.items()))


@dataclass(frozen=True)
class ComparisonRow:
    """One line of a comparison. `run` is the name of a run, or of an earlier model in it: NAME/model-300."""

    run: str
    data: str
    evaluation: TranslationEvaluation | TaskEvaluation


def compare(folders: Iterable[Path], remark: Callable[[str], None] = lambda message: None) -> list[ComparisonRow]:
    """Runs side by side, grouped by what they were evaluated on; of the folder of a model in a run, that model.

    `remark` is told of results that are left out, since their model is gone, and of models that have none.
    """
    folders = list(folders)
    runs = [results_folder(folder) for folder in folders]
    whole = [run.resolve() for run in runs]
    alike = {run.name for run in whole if len({other for other in whole if other.name == run.name}) > 1}
    names = [str(run) if full.name in alike else full.name for run, full in zip(runs, whole, strict=True)]
    models = [None if run == folder else folder.resolve().name for folder, run in zip(folders, runs, strict=True)]
    apart = set(zip(whole, models, strict=True))  # models that have rows of their own
    rows = [
        row
        for run, name, model, place in zip(runs, names, models, whole, strict=True)
        for row_model, row in _rows(run, name, model, remark)
        if row_model == model or (place, row_model) not in apart
    ]
    order = {data: i for i, data in enumerate(dict.fromkeys(row.data for row in rows))}
    return sorted(rows, key=lambda row: order[row.data])


def results_folder(folder: Path) -> Path:
    """The run that has the results of a folder: itself, or that of a model in it."""
    return folder if (folder / NAME).is_file() else enclosing_run(folder) or folder


def _rows(
    run: Path, name: str, wanted: str | None, remark: Callable[[str], None]
) -> Iterator[tuple[str, ComparisonRow]]:
    """The rows of a run, each with the folder of its model: of all its models, or of the `wanted` one."""
    models: dict[str | None, str] = {_model_digest(each): each.name for each in run.iterdir() if is_earlier(each)}
    models[_model_digest(run / "model")] = models[None] = "model"
    gone, found = [], False
    for data, digest, evaluation in _results(run):
        model = models.get(digest)
        if model is None:
            gone.append(data)
        elif wanted in (None, model):
            found |= model == (wanted or "model")
            yield model, ComparisonRow(name if model == "model" else f"{name}/{model}", data, evaluation)
    if gone:
        remark(f"{run / NAME} has scores of a model that is no longer there ({', '.join(gone)}): they are left out")
    if not found:
        folder = run if wanted is None else run / wanted
        remark(f"the model of {folder} has not been evaluated; do it with: regard evaluate {folder}")


def _results(run: Path) -> list[tuple[str, str | None, TranslationEvaluation | TaskEvaluation]]:
    """(data, digest of the weights, evaluation) of all entries."""
    file = run / NAME
    if not file.is_file():
        raise ValueError(f"{run} has no {NAME}; make it with: regard evaluate {run}")
    entries = _read(file)
    try:
        return [(values.get(DATA, key), values.get(DIGEST), _evaluation(values)) for key, values in entries.items()]
    except (AttributeError, KeyError, TypeError) as error:
        raise ValueError(f"{file} was not written by this version of regard ({error}); evaluate again") from error


def _model_digest(model: Path) -> str | None:
    """What tells the weights of a model from others; None where there is no model."""
    file = model / WEIGHTS
    return weights_sha256(file) if file.is_file() else None


def _write(run: Path, entries: list[tuple[str, Any]]) -> Path:
    """By data, the last of equal ones. Those of other models than the run's have a part of their digest in the key."""
    file, current = run / NAME, _model_digest(run / "model")
    content = {}
    for key, values in entries:
        digest = values.get(DIGEST) if isinstance(values, dict) else None
        if digest is not None:
            data = values.get(DATA, key)
            key = data if digest == current else f"{data} [{digest!s:.12}]"
        content[key] = values
    write_text(file, json.dumps(content, indent=2, ensure_ascii=False) + "\n")
    return file


def _read(file: Path) -> dict[str, Any]:
    return read_object(file, "remove it and evaluate again", LARGEST)


def _evaluation(values: dict[str, Any]) -> TranslationEvaluation | TaskEvaluation:
    values = {name: value for name, value in values.items() if name not in (DATA, DIGEST)}
    if "task" in values:
        labels = {name: LabelScore(**label) for name, label in values.get("labels", {}).items()}
        return TaskEvaluation(**{**values, "labels": labels})
    scored = {name: Score(**values[name]) for name in ("bleu", "tokenised_bleu", "chrf")}
    return TranslationEvaluation(
        **{**values, **scored, "by_length": [LengthBin(**each) for each in values["by_length"]]}
    )
