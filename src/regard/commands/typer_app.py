"""The Typer application that all commands register with, and `--version`."""

from __future__ import annotations

from typing import Annotated

import typer

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(requested: bool) -> None:
    if requested:
        from .. import __version__

        typer.echo(f"regard {__version__}")
        raise typer.Exit


@app.callback()
def regard(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
    plugins: Annotated[
        str, typer.Option(metavar="PACKAGE,...", help="Packages whose code recipes and models may name.")
    ] = "",
) -> None:
    """Attention you can build with, train with and look at."""
    from ..plugins import allow_plugins

    allow_plugins(plugins)
