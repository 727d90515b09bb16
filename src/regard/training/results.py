"""results.json of a run: what its model, and those it had before it was extended, scored on which data.

An entry has the SHA-256 of the weights that it is of. Those of snapshots name their update instead, and those of
earlier versions have nothing: they count as scores of the run's model, until `record_run_results`.
"""

from __future__ import annotations

import json
import re
import tomllib
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from rich.table import Table
from rich.text import Text

from ..decoding.load_model_and_tokenizers import enclosing_run, is_earlier
from ..files import read_object, write_text
from ..messages import count_of
from ..models.pretrained import WEIGHTS, weights_sha256
from ..seeing.figures import save_curves
from .evaluation import TaskEvaluation, TranslationEvaluation
from .run import METRICS, RECIPE, flat_settings, learning_curve, validation_column
from .scores import LabelScore, LengthBin, Score

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    from rich.console import RenderableType

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
