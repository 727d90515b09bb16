"""Tables of scores for the terminal, of one evaluation or of several runs, and a figure of BLEU by length."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.table import Table
from rich.text import Text

from ...noun_count import count_of
from ...seeing.drawing.matplotlib_figures import save_curves
from .evaluation import TaskEvaluation
from .translation_evaluation import TranslationEvaluation

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from rich.console import RenderableType

    from ..run.results_file import ComparisonRow
    from .label_scores import LabelScore

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
