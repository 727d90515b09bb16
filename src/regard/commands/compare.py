"""`regard compare`."""

from __future__ import annotations

from pathlib import Path  # noqa: TC003  typer reads the annotations when it runs
from typing import TYPE_CHECKING, Annotated

import typer

from .app import app
from .screen import screen

if TYPE_CHECKING:
    from rich.table import Table

    from ..training.results import Row


@app.command()
def compare(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN", help="Folders of runs that were evaluated.")],
    data: Annotated[str | None, typer.Option(metavar="NAME", help="Only what was scored on this, e.g. test.")] = None,
    save_plot: Annotated[
        Path | None, typer.Option(metavar="FILE.png", help="Draw BLEU by sentence length, a line per run.")
    ] = None,
) -> None:
    """Put evaluated runs side by side.

    `regard evaluate` writes down what a run scored; this shows it.

    \b
    Examples:
      regard compare runs/seq2seq-phrasebook-1 runs/bahdanau-phrasebook-1
      regard compare runs/*-multi30k-1 --save-plot lengths.svg
    """
    from rich.table import Table

    from ..seeing.figure import check
    from ..training import results
    from ..training.figures import Figures
    from .evaluate import plot

    if save_plot is not None:
        check(save_plot)
    scored = [run for run in runs if (run / results.NAME).is_file()] or runs[:1]
    for run in runs:
        if run not in scored:
            typer.echo(f"regard: {run} has no {results.NAME}; make it with: regard evaluate {run}", err=True)
    rows = [row for row in results.compare(scored) if data in (None, row.data)]
    if not rows:
        raise ValueError(f"none of these runs was evaluated on {data}")
    if any(isinstance(row.evaluation, Figures) for row in rows):
        screen().print(_figures(rows))
        return
    headings = ("run", "data", "BLEU", "tokenised", "chrF", "perplexity", "AER", "tokens/s", "beams")
    table = Table(*headings, box=None, padding=(0, 2, 0, 0), header_style="dim")
    for column in table.columns[2:]:
        column.justify = "right"
    for row in rows:
        found = row.evaluation
        assert not isinstance(found, Figures)
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
    screen().print(table)
    if save_plot is not None:
        if len({row.data for row in rows}) > 1:
            raise ValueError("these runs were evaluated on several things; choose one to plot with --data")
        plot({row.run: row.evaluation for row in rows if not isinstance(row.evaluation, Figures)}, save_plot)
        typer.echo(f"wrote {save_plot}")


def _figures(rows: list[Row]) -> Table:
    """Runs of other tasks: a column for each figure that one of them has."""
    from rich.table import Table

    from ..training.figures import Figures

    found = [(row, row.evaluation.values) for row in rows if isinstance(row.evaluation, Figures)]
    names = list(dict.fromkeys(name for _, values in found for name in values))
    table = Table("run", "data", *names, box=None, padding=(0, 2, 0, 0), header_style="dim")
    for column in table.columns[2:]:
        column.justify = "right"
    for row, values in found:
        cells = (f"{values[name]:.4f}" if name == "loss" else f"{values[name]:.2f}" for name in names if name in values)
        filled = iter(cells)
        table.add_row(row.run, row.data, *(next(filled) if name in values else "" for name in names))
    return table
