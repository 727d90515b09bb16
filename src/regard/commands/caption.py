"""`regard caption`."""

from __future__ import annotations

from pathlib import Path  # noqa: TC003  typer reads the annotations when it runs
from typing import TYPE_CHECKING, Annotated

import typer

from .options import Beams, Device, LengthPenalty, Model, find_device, settings
from .typer_app import app

if TYPE_CHECKING:
    from ..decoding import Translation

CAPTIONER = "scenes-soft"  # that ships
DRAWN = 256  # pixels a side of a picture in a figure


@app.command()
def caption(
    pictures: Annotated[
        list[str], typer.Argument(metavar="PICTURE…", help="Files, or the names of scenes, as `regard scenes` prints.")
    ],
    model: Model = None,
    beams: Beams = None,
    length_penalty: LengthPenalty = None,
    save_plot: Annotated[
        Path | None,
        typer.Option(metavar="FILE.png", help="Draw where it looked for each word: .png, .svg, .pdf. One picture."),
    ] = None,
    device: Device = "auto",
) -> None:
    """Say what a picture shows; of several, one line each, after the picture's name and a tab.

    The captioner that ships knows the coloured shapes of `regard scenes` and nothing else; `regard train soft-photos`
    makes one for photographs.

    \b
    Examples:
      regard scenes 3 --save examples && regard caption examples/scene-1.png
      regard caption scene:test:0:7 --save-plot looked.png
      regard caption --model runs/soft-photos-1 beach.jpg dog.jpg
    """
    if save_plot is not None:
        from ..seeing.drawing import check_figure_path

        check_figure_path(save_plot)
        if len(pictures) != 1:
            raise ValueError(f"--save-plot draws one picture, and {len(pictures)} are given")
    from ..decoding import pretrained, translate

    loaded = pretrained.load(model or CAPTIONER, find_device(device), wanted=("caption",))
    how = settings(loaded, beams, length_penalty, None)
    how["weights"] = save_plot is not None
    several, wrong = len(pictures) > 1, set[int]()  # of many, one that cannot be read does not stop the others

    def refused(number: int, why: str) -> None:
        wrong.add(number)
        typer.echo(f"regard: {why}", err=True)

    said = translate(loaded.model, loaded.tokenizers, pictures, refused=refused if several else None, **how)
    for number, (name, found) in enumerate(zip(pictures, said, strict=True), 1):
        for remark in [] if number in wrong else loaded.tokenizers.source.remarks(name):
            typer.echo(f"regard: {remark}", err=True)
        print(f"{name}\t{found.text}" if several else found.text, flush=True)
        if save_plot is not None:
            _plot(found, save_plot)
    if wrong:
        raise typer.Exit(1)


def _plot(found: Translation, file: Path) -> None:
    from ..data.picture_reader import PictureReader
    from ..seeing.alignment import caption_word_weights
    from ..seeing.drawing.picture_overlay import MAX_WORDS, save_caption_figure

    weights, words = caption_word_weights(found)
    save_caption_figure(file, PictureReader(DRAWN).encode(found.source), weights, words)
    only = f", the first {MAX_WORDS} of {len(words)} words" if len(words) > MAX_WORDS else ""
    typer.echo(f"wrote {file}{only}", err=True)
