"""`regard demo`."""

from __future__ import annotations

from pathlib import Path  # noqa: TC003  typer reads the annotations when it runs
from typing import Annotated

import typer

from .typer_app import app


@app.command()
def demo(
    save: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.svg",
            help="Draw the sections on boxes and self-attention into this file instead of printing the demo.",
        ),
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Leave out the training: a few seconds instead of minutes.")
    ] = False,
) -> None:
    """Worked examples of attention, from a phone book to the Transformer; then a translator is trained.

    Every number is computed when it is printed. Without colours (NO_COLOR, or output that is not a terminal) heatmaps
    use shades.

    \b
    Examples:
      regard demo
      regard demo --quick
      regard demo --save attention.svg
    """
    from .. import demo as examples

    if save is not None:
        examples.save(save)
        typer.echo(f"wrote {save}")
    else:
        if not quick:
            typer.echo(
                "Two small translators are trained at the end, which takes some minutes; --quick leaves them out.\n"
            )
        examples.show(quick=quick)
        typer.echo("\nNext: regard view (opens a page on which you see where a model looks)")
