"""`regard scenes`."""

from __future__ import annotations

from pathlib import Path  # noqa: TC003  typer reads the annotations when it runs
from typing import Annotated

import typer

from ..atomic_write import replacing_file
from .typer_app import app


@app.command()
def scenes(
    count: Annotated[int, typer.Argument(metavar="N", min=0, help="How many pictures.")] = 10,
    seed: Annotated[int, typer.Option(min=0, help="Random seed of the pictures.")] = 0,
    test: Annotated[
        bool, typer.Option("--test", help="Pictures whose captions are never in the training split.")
    ] = False,
    save: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Write the pictures to scene-1.png, scene-2.png, … in this folder."),
    ] = None,
    size: Annotated[int, typer.Option(metavar="PIXELS", min=16, max=1024, help="Width and height of the files.")] = 256,
) -> None:
    """Print generated pictures of coloured shapes, one per line: name, tab, caption.

    A name determines its picture, so that `regard caption` can draw it. With --save, the names are those of the files.

    \b
    Examples:
      regard scenes 5
      regard scenes 3 --test --save examples
    """
    from ..data.corpora import scenes as corpus

    if save is not None:
        from PIL import Image

        save.mkdir(parents=True, exist_ok=True)
    for number, pair in enumerate(corpus.pairs(count, seed=seed, split="test" if test else "train"), 1):
        name = pair.source
        if save is not None:
            file = save / f"scene-{number}.png"
            with replacing_file(file) as unfinished:
                Image.fromarray(corpus.picture(pair.source, size)).save(unfinished, "PNG")
            name = str(file)
        typer.echo(f"{name}\t{pair.target}")
