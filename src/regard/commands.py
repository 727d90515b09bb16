"""The commands of `regard`, one thin function per verb. What is slow to import is imported inside them."""

from __future__ import annotations

from pathlib import Path  # noqa: TC003  typer reads the annotations when it runs
from typing import Annotated

import typer

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(wanted: bool) -> None:
    if wanted:
        from . import __version__

        typer.echo(f"regard {__version__}")
        raise typer.Exit


@app.callback()
def regard(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and leave.")
    ] = False,
) -> None:
    """Attention you can build with, train with and look at."""


@app.command()
def demo(
    save: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.svg",
            help="Write the README's picture, the boxes and the self-attention, to this file instead of showing all.",
        ),
    ] = None,
) -> None:
    """From a phone book to the Transformer, in worked examples.

    Takes a few seconds; every number is computed on the spot. Without colours (NO_COLOR set, or the output not a
    terminal) the heatmaps are shaded.

    \b
    Examples:
      regard demo
      regard demo --save attention.svg
    """
    from . import demo as page

    if save is not None:
        page.save(save)
        typer.echo(f"wrote {save}")
    else:
        page.show()
