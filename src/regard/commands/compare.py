"""`regard compare`."""

from __future__ import annotations

from pathlib import Path  # noqa: TC003  typer reads the annotations when it runs
from typing import Annotated

import typer

from .app import app
from .screen import screen


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
    headings = ("run", "data", "BLEU", "tokenised", "chrF", "perplexity", "AER", "tokens/s", "beams")
    table = Table(*headings, box=None, padding=(0, 2, 0, 0), header_style="dim")
    for column in table.columns[2:]:
        column.justify = "right"
    for row in rows:
        found = row.evaluation
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
        plot({row.run: row.evaluation for row in rows}, save_plot)
        typer.echo(f"wrote {save_plot}")
