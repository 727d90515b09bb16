"""`regard samples`."""

from __future__ import annotations

from pathlib import Path  # noqa: TC003  typer reads the annotations when it runs
from typing import Annotated

import typer

from ..atomic_write import write_bytes
from .typer_app import app


@app.command()
def samples(
    save: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Write the files into this folder; their names are printed.")
    ] = None,
) -> None:
    """List the pictures and sounds that ship, to try `regard caption` and `regard classify` with.

    They are generated: scenes of coloured shapes, and spoken digits from a synthesizer.

    \b
    Examples:
      regard samples
      regard samples --save samples && regard classify samples/seven.wav
      regard samples --save samples && regard caption samples/scene-1.png
    """
    from ..viewer.data.sample_files import PICTURE, SOUND, sample_files

    if save is not None:
        save.mkdir(parents=True, exist_ok=True)
    for file in [*sample_files(SOUND), *sample_files(PICTURE)]:
        name = file.name.replace(" ", "-")
        if save is not None:
            write_bytes(save / name, file.read_bytes())
        typer.echo(name if save is None else str(save / name))
