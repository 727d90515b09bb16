"""`regard compare`."""

from __future__ import annotations

from pathlib import Path  # noqa: TC003  typer reads the annotations when it runs
from typing import TYPE_CHECKING, Annotated

import typer

from .console import screen
from .typer_app import app

if TYPE_CHECKING:
    from rich.table import Table

    from ..training.run.results_file import ComparisonRow
    from ..training.score.task_evaluation import TaskEvaluation
    from ..training.score.translation_evaluation import TranslationEvaluation


@app.command()
def compare(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN", help="Folders of runs that were evaluated.")],
    data: Annotated[str | None, typer.Option(metavar="NAME", help="Only what was scored on this, e.g. test.")] = None,
    save_plot: Annotated[
        Path | None,
        typer.Option(metavar="FILE.png", help="Draw BLEU by sentence length, a line per run that translates."),
    ] = None,
) -> None:
    """Put evaluated runs side by side.

    `regard evaluate` writes down what a run scored; this shows it.

    \b
    Examples:
      regard compare runs/seq2seq-phrasebook-1 runs/bahdanau-phrasebook-1
      regard compare runs/*-multi30k-1 --save-plot lengths.svg
    """
    from ..seeing.drawing import check_figure_path
    from ..training.run import results_file
    from ..training.score.task_evaluation import TaskEvaluation
    from ..training.score.translation_evaluation import TranslationEvaluation
    from .evaluate import plot

    if save_plot is not None:
        check_figure_path(save_plot)
    scored = [run for run in runs if (run / results_file.NAME).is_file()] or runs[:1]
    for run in runs:
        if run not in scored:
            typer.echo(f"regard: {run} has no {results_file.NAME}; make it with: regard evaluate {run}", err=True)
    rows = [row for row in results_file.compare(scored) if data in (None, row.data)]
    if not rows:
        raise ValueError(f"none of these runs was evaluated on {data}")
    translators = [(row, row.evaluation) for row in rows if isinstance(row.evaluation, TranslationEvaluation)]
    others = [(row, row.evaluation) for row in rows if isinstance(row.evaluation, TaskEvaluation)]
    if save_plot is not None:
        if not translators:
            raise ValueError("--save-plot draws BLEU by sentence length, and none of these runs translates")
        if len({row.data for row, _ in translators}) > 1:
            raise ValueError("these runs were evaluated on several things; choose one to plot with --data")
        plot({row.run: found for row, found in translators}, save_plot)
    if translators:
        screen().print(_translators(translators))
    if others:
        screen().print(_others(others))
    if save_plot is not None:
        typer.echo(f"wrote {save_plot}")


def _translators(rows: list[tuple[ComparisonRow, TranslationEvaluation]]) -> Table:
    table = _table("BLEU", "tokenised", "chrF", "perplexity", "AER", "tokens/s", "beams")
    for row, found in rows:
        table.add_row(
            row.run,
            row.data,
            f"{found.bleu.value:.2f}",
            f"{found.tokenised_bleu.value:.2f}",
            f"{found.chrf.value:.2f}",
            "" if found.perplexity is None else f"{found.perplexity:.2f}",
            "" if found.best_aer is None else f"{found.best_aer:.3f}",
            f"{found.tokens_per_second:,.0f}",
            f"{found.search.get('beams', '')}",
        )
    return table


def _others(rows: list[tuple[ComparisonRow, TaskEvaluation]]) -> Table:
    """Runs of other tasks: a column for each figure that one of them has."""
    lines = [(row, _cells(found)) for row, found in rows]
    names = list(dict.fromkeys(name for _, cells in lines for name in cells))
    table = _table(*names)
    for row, cells in lines:
        table.add_row(row.run, row.data, *(cells.get(name, "") for name in names))
    return table


def _cells(found: TaskEvaluation) -> dict[str, str]:
    cells = {name: f"{value:.4f}" if name == "loss" else f"{value:.2f}" for name, value in found.values.items()}
    return cells | {name: f"{value}" for name, value in found.search.items() if name == "beams"}


def _table(*numbers: str) -> Table:
    """Columns of numbers, after those of the run and of what it was evaluated on."""
    from rich.table import Table

    table = Table("run", "data", *numbers, box=None, padding=(0, 2, 0, 0), header_style="dim")
    table.columns[0].overflow = table.columns[1].overflow = "fold"  # a path is whole or useless
    for column in table.columns[2:]:
        column.justify = "right"
    return table
