"""`regard compare`."""

from __future__ import annotations

from pathlib import Path  # noqa: TC003  typer reads the annotations when it runs
from typing import Annotated

import typer

from .console import output_console
from .typer_app import app


@app.command()
def compare(
    runs: Annotated[
        list[Path], typer.Argument(metavar="RUN", help="Folders of runs that were evaluated, or of models in them.")
    ],
    data: Annotated[str | None, typer.Option(metavar="NAME", help="Only scores on this data, e.g. test.")] = None,
    save_plot: Annotated[
        Path | None,
        typer.Option(metavar="FILE.png", help="Draw BLEU by sentence length, a line per run that translates."),
    ] = None,
) -> None:
    """Compare evaluated runs in a table.

    `regard evaluate` writes the scores of a run to its results.json; this prints them. Those of a model that the run
    had before it was extended are named RUN/model-UPDATES.

    \b
    Examples:
      regard compare runs/seq2seq-phrasebook-1 runs/bahdanau-phrasebook-1
      regard compare runs/*-multi30k-1 --save-plot lengths.svg
    """
    from ..seeing.drawing.matplotlib_figures import check_figure_path
    from ..training.run import results_file
    from ..training.score.score_tables import comparison_tables, save_length_curves
    from ..training.score.translation_evaluation import TranslationEvaluation

    if save_plot is not None:
        check_figure_path(save_plot)

    def remark(message: str) -> None:
        typer.echo(f"regard: {message}", err=True)

    evaluated = [run for run in runs if (results_file.results_folder(run) / results_file.NAME).is_file()] or runs[:1]
    for run in runs:
        if run not in evaluated:
            remark(f"{run} has no {results_file.NAME}; make it with: regard evaluate {run}")
    rows = [row for row in results_file.compare(evaluated, remark) if data in (None, row.data)]
    if not rows:
        raise ValueError(
            "there are no scores to compare" if data is None else f"none of these runs was evaluated on {data}"
        )
    if save_plot is not None:
        translations = [(row, row.evaluation) for row in rows if isinstance(row.evaluation, TranslationEvaluation)]
        if not translations:
            raise ValueError("--save-plot draws BLEU by sentence length, and none of these runs translates")
        if len({row.data for row, _ in translations}) > 1:
            raise ValueError("these runs were evaluated on several things; choose one to plot with --data")
        save_length_curves(save_plot, {row.run: scores for row, scores in translations})
    for table in comparison_tables(rows):
        output_console().print(table)
    if save_plot is not None:
        typer.echo(f"wrote {save_plot}")
