"""results.json: what a model scored on which data.

That of a run's model is in the run's folder, that of a model which the run had before it was extended in its own. An
entry has the SHA-256 of the weights that it is of, but for those of a run that was not finished.
"""

from __future__ import annotations

import json
import tomllib
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from rich.table import Table
from rich.text import Text

from ..decoding.model_folders import enclosing_run, is_earlier
from ..files import read_object, write_text
from ..models.saved_weights import WEIGHTS, weights_sha256
from ..seeing.figures import save_curves
from ..wording import count_of
from .evaluation import TaskEvaluation, TranslationEvaluation
from .run_folder import METRICS, RECIPE, RESULTS, flat_settings, learning_curve, validation_column
from .scores import LabelScore, LengthBin, Score

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    from rich.console import RenderableType

NAME = RESULTS
LARGEST = 1 << 24  # bytes; regard writes no file that large
DIGEST = "weights_sha256"
"""A key of an entry, beside those of its evaluation."""


def save_result(
    folder: Path, data: str, evaluation: TranslationEvaluation | TaskEvaluation, digest: str | None = None
) -> Path:
    """Adds an evaluation to the results in a folder, in place of an earlier one on the same data.

    `digest` is the SHA-256 of the weights; None of a snapshot, or where it is not known.
    """
    file = folder / NAME
    entries = _read(file) if file.exists() else {}
    record = {} if digest is None else {DIGEST: digest}
    entries[data] = {**asdict(evaluation), **record}
    write_text(file, json.dumps(entries, indent=2, ensure_ascii=False) + "\n")
    return file


def load_results(folder: Path) -> dict[str, TranslationEvaluation | TaskEvaluation]:
    """What the model of a run, or an earlier one in it, scored, by data. Scores of other weights are left out."""
    file = folder / NAME
    if not file.is_file():
        raise ValueError(f"{folder} has no {NAME}; make it with: regard evaluate {folder}")
    weights = next((each for each in (folder / "model" / WEIGHTS, folder / WEIGHTS) if each.is_file()), None)
    known = (None, None if weights is None else weights_sha256(weights))
    entries = _read(file)
    try:
        return {data: _evaluation(values) for data, values in entries.items() if values.get(DIGEST) in known}
    except (AttributeError, KeyError, TypeError) as error:
        raise ValueError(f"{file} was not written by this version of regard ({error}); evaluate again") from error


def results_folder(folder: Path) -> Path:
    """Where the results of a model are: of that of a run, in the run."""
    return enclosing_run(folder) or folder if folder.resolve().name == "model" else folder


@dataclass(frozen=True)
class ComparisonRow:
    """One line of a comparison. `run` is the name of a run, or of an earlier model in it: NAME/model-300."""

    run: str
    data: str
    evaluation: TranslationEvaluation | TaskEvaluation


def compare(folders: Iterable[Path], remark: Callable[[str], None] = lambda message: None) -> list[ComparisonRow]:
    """Runs side by side, with the models that they had before, grouped by what they were evaluated on.

    Of the folder of a model in a run, that model. `remark` is told of those that have no scores.
    """
    given = [results_folder(folder) for folder in folders]
    places = []
    for folder in given:
        earlier = (each for each in sorted(folder.iterdir()) if is_earlier(each) and (each / NAME).is_file())
        places += [folder, *(each for each in earlier if each not in given)]
    runs = [(place.parent if is_earlier(place) else place) for place in places]
    whole = {run.resolve() for run in runs}
    alike = {run.name for run in whole if sum(run.name == other.name for other in whole) > 1}
    rows = []
    for place, run in zip(places, runs, strict=True):
        found = load_results(place) if (place / NAME).is_file() else {}
        if not found:
            remark(f"the model of {place} has not been evaluated; do it with: regard evaluate {place}")
        full = run.resolve()
        name = (str(run) if full.name in alike else full.name) + (f"/{place.name}" if run != place else "")
        rows += [ComparisonRow(name, data, evaluation) for data, evaluation in found.items()]
    order = {data: i for i, data in enumerate(dict.fromkeys(row.data for row in rows))}
    return sorted(rows, key=lambda row: order[row.data])


def _read(file: Path) -> dict[str, Any]:
    return read_object(file, "remove it and evaluate again", LARGEST)


def _evaluation(values: dict[str, Any]) -> TranslationEvaluation | TaskEvaluation:
    values = {name: value for name, value in values.items() if name not in (DIGEST, "data")}  # of earlier versions
    if "task" in values:
        labels = {name: LabelScore(**label) for name, label in values.get("labels", {}).items()}
        return TaskEvaluation(**{**values, "labels": labels})
    scored = {name: Score(**values[name]) for name in ("bleu", "tokenised_bleu", "chrf")}
    return TranslationEvaluation(
        **{**values, **scored, "by_length": [LengthBin(**each) for each in values["by_length"]]}
    )


MAX_LABELS, MAX_MATRIX = 30, 10  # labels that are listed, and labels that have a confusion matrix


def evaluation_tables(
    data: str, evaluation: TranslationEvaluation | TaskEvaluation, tokenised: bool
) -> Iterator[RenderableType]:
    """What `regard evaluate` prints; `data` is the name of what the model was evaluated on."""
    if isinstance(evaluation, TaskEvaluation):
        yield from _task_tables(data, evaluation)
    else:
        yield from _translation_tables(data, evaluation, tokenised)


def comparison_tables(rows: list[ComparisonRow]) -> Iterator[Table]:
    """One table of the runs that translate, and one of all others."""
    translations = [(row, row.evaluation) for row in rows if isinstance(row.evaluation, TranslationEvaluation)]
    others = [(row, row.evaluation) for row in rows if isinstance(row.evaluation, TaskEvaluation)]
    if translations:
        table = _comparison_table("BLEU", "tokenised", "chrF", "perplexity", "AER", "tokens/s", "beams")
        for row, scores in translations:
            table.add_row(
                row.run,
                row.data,
                f"{scores.bleu.value:.2f}",
                f"{scores.tokenised_bleu.value:.2f}",
                f"{scores.chrf.value:.2f}",
                "" if scores.perplexity is None else f"{scores.perplexity:.2f}",
                "" if scores.best_aer is None else f"{scores.best_aer:.3f}",
                f"{scores.tokens_per_second:,.0f}",
                f"{scores.search.get('beams', '')}",
            )
        yield table
    if others:
        cells = [(row, _task_cells(scores)) for row, scores in others]
        names = list(dict.fromkeys(name for _, values in cells for name in values))
        table = _comparison_table(*names)
        for row, values in cells:
            table.add_row(row.run, row.data, *(values.get(name, "") for name in names))
        yield table


CURVE = 12  # validations of a curve that are listed


def run_tables(folders: Iterable[Path]) -> Iterator[RenderableType]:
    """What differs between the recipes of several runs, and the curves of their validations."""
    given = [folder for folder in folders if (folder / RECIPE).is_file()]
    names = [folder.resolve().name for folder in given]
    runs = dict(zip(names if len(set(names)) == len(names) else map(str, given), given, strict=True))
    if len(runs) < 2:
        return
    recipes = [flat_settings(tomllib.loads((run / RECIPE).read_text(encoding="utf-8"))) for run in runs.values()]
    keys = dict.fromkeys(key for recipe in recipes for key in recipe if key not in ("name", "about"))
    settings = _number_table("setting", *runs)
    for key in keys:
        values = [recipe.get(key) for recipe in recipes]
        if any(value != values[0] for value in values):
            settings.add_row(key, *("" if value is None else f"{value}" for value in values))
    if settings.row_count:
        yield Text("\nsettings that differ", style="bold")
        yield settings
    measured = {name: file for name, run in runs.items() if (file := run / METRICS).is_file()}
    with suppress(ValueError, OSError):
        columns = {validation_column(file) for file in measured.values()}
        column = columns.pop() if len(columns) == 1 else "valid_nll"  # of different tasks or scores
        curves = [dict(learning_curve(file, column)) for file in measured.values()]
        updates = sorted({update for curve in curves for update in curve})
        chosen = [updates[round(n * (len(updates) - 1) / (CURVE - 1))] for n in range(CURVE)] if updates else []
        table = _number_table("update", *measured)
        for update in dict.fromkeys(chosen):
            table.add_row(f"{update:,.0f}", *(f"{curve[update]:.4g}" if update in curve else "" for curve in curves))
        if chosen:
            yield Text(f"\n{column} of the validations", style="bold")
            yield table


def save_length_curves(file: Path, evaluations: dict[str, TranslationEvaluation]) -> None:
    """Draw BLEU by sentence length, one curve per name."""
    curves = {name: [(bin.middle, bin.bleu) for bin in scores.by_length] for name, scores in evaluations.items()}
    save_curves(file, curves, "words of the source sentence", "BLEU")


def _translation_tables(data: str, scores: TranslationEvaluation, tokenised: bool) -> Iterator[RenderableType]:
    rows = [
        ("BLEU", f"{scores.bleu.value:.2f}", scores.bleu.signature),
        ("tokenised BLEU", f"{scores.tokenised_bleu.value:.2f}", scores.tokenised_bleu.signature),
        ("chrF", f"{scores.chrf.value:.2f}", scores.chrf.signature),
    ]
    if scores.perplexity is not None:
        rows.append(("perplexity", f"{scores.perplexity:.2f}", "per token of the model's vocabulary"))
    rows += [
        ("AER" if layer == "attention" else f"AER, {layer}", f"{value:.3f}", "best" if value == scores.best_aer else "")
        for layer, value in scores.aer.items()
    ]
    if scores.copied is not None:
        about = "of the words that source and reference have and the vocabulary lacks"
        rows.append(("copied", f"{100 * scores.copied:.1f} %", about))
    speed = f"{scores.tokens_per_second:,.0f}"
    rows.append(("speed", speed, f"tokens per second, {_settings(scores.search)}"))
    table = _plain_table()
    table.add_column()
    table.add_column(justify="right")
    table.add_column(overflow="fold")  # a signature must not be truncated
    for row in rows:
        table.add_row(*row)
    lengths = _number_table("words", "sentences", "BLEU")
    lengths.columns[0].justify = "right"
    for bin in scores.by_length:
        lengths.add_row(bin.name, f"{bin.sentences:,}", f"{bin.bleu:.2f}")
    yield Text(f"{data}: {count_of(scores.sentences, 'sentence')} in {scores.seconds:.1f} s", style="bold")
    yield table
    yield Text(f"\n{'tokenised BLEU' if tokenised else 'BLEU'} by length of the source", style="bold")
    yield lengths


def _task_tables(data: str, scores: TaskEvaluation) -> Iterator[RenderableType]:
    table = _plain_table()
    for name, value in scores.values.items():
        table.add_row(name, _number(name, value))
    settings = f", {_settings(scores.search)}" if scores.search else ""
    yield Text(f"{data}: {scores.amount}{settings}", style="bold")
    yield table
    if scores.labels:
        yield from _label_tables(scores.labels)


def _label_tables(labels: dict[str, LabelScore]) -> Iterator[RenderableType]:
    """Precision, recall and F1 of each label; for few labels also the confusion matrix."""
    table = _number_table("label", "rows", "precision", "recall", "F1")
    most_frequent = sorted(labels, key=lambda name: -labels[name].count)[:MAX_LABELS]
    for name, score in labels.items():
        if name in most_frequent:
            values = (score.precision, score.recall, score.f1)
            table.add_row(name, f"{score.count:,}", *("–" if value is None else f"{value:.2f}" for value in values))
    yield ""
    yield table
    if len(labels) > MAX_LABELS:
        yield f"the {MAX_LABELS} labels with most rows; all {len(labels):,} are in results.json"
    if len(labels) <= MAX_MATRIX:
        matrix = _number_table("label", *labels)
        for name, score in labels.items():
            matrix.add_row(name, *(f"{score.answers.get(other, 0):,}" for other in labels))
        yield Text("\nrows of each label, by what the model answered", style="bold")
        yield matrix


def _task_cells(scores: TaskEvaluation) -> dict[str, str]:
    cells = {name: _number(name, value) for name, value in scores.values.items()}
    return cells | {name: f"{value}" for name, value in scores.search.items() if name == "beams"}


def _number(name: str, value: float) -> str:
    return f"{value:.4f}" if name == "loss" else f"{value:.2f}"


def _settings(search: dict[str, Any]) -> str:
    return ", ".join(f"{name.replace('_', ' ')} {value:g}" for name, value in search.items())


def _plain_table() -> Table:
    return Table(box=None, show_header=False, padding=(0, 2, 0, 0))


def _number_table(*columns: str, labels: int = 1) -> Table:
    """A table whose columns are numbers, right-aligned, after `labels` columns of text."""
    table = Table(*columns, box=None, padding=(0, 2, 0, 0), header_style="dim")
    for column in table.columns[labels:]:
        column.justify = "right"
    return table


def _comparison_table(*numbers: str) -> Table:
    table = _number_table("run", "data", *numbers, labels=2)
    table.columns[0].overflow = table.columns[1].overflow = "fold"  # a path must not be truncated
    return table
