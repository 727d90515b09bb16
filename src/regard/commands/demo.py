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
            help="Write the README's picture, the boxes and the self-attention, to this file instead of showing all.",
        ),
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Leave out the training: a few seconds instead of minutes.")
    ] = False,
) -> None:
    """From a phone book to the Transformer, in worked examples; then a translator learns while you watch.

    Every number is computed on the spot. Without colours (NO_COLOR set, or the output not a
    terminal) the heatmaps are shaded.

    \b
    Examples:
      regard demo
      regard demo --quick
      regard demo --save attention.svg
    """
    from .. import demo as page

    if save is not None:
        page.save(save)
        typer.echo(f"wrote {save}")
    else:
        page.show(quick=quick)
