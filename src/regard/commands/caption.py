"""`regard caption`."""

from __future__ import annotations

from pathlib import Path  # noqa: TC003  typer reads the annotations when it runs
from typing import TYPE_CHECKING, Annotated

import typer

from .shared_options import Beams, Device, LengthPenalty, Model, find_device, search_settings
from .typer_app import app

if TYPE_CHECKING:
    from ..decoding import Translation

CAPTIONER = "scenes-soft"  # that ships
FIGURE_PIXELS = 256  # width and height of the picture in a figure


@app.command()
def caption(
    pictures: Annotated[
        list[str], typer.Argument(metavar="PICTURE…", help="Files, or names of scenes, as `regard scenes` prints.")
    ],
    model: Model = None,
    beams: Beams = None,
    length_penalty: LengthPenalty = None,
    save_plot: Annotated[
        Path | None,
        typer.Option(metavar="FILE.png", help="Draw the weights of each word: .png, .svg, .pdf. One picture."),
    ] = None,
    device: Device = "auto",
) -> None:
    """Write captions for pictures; for several, one line each: the picture's name, a tab, the caption.

    The captioner that ships knows only the coloured shapes of `regard scenes`; `regard train soft-photos` trains one
    for photographs.

    \b
    Examples:
      regard scenes 3 --save examples && regard caption examples/scene-1.png
      regard caption scene:test:0:7 --save-plot weights.png
      regard caption --model runs/soft-photos-1 beach.jpg dog.jpg
    """
    if save_plot is not None:
        from ..seeing.drawing.matplotlib_figures import check_figure_path

        check_figure_path(save_plot)
        if len(pictures) != 1:
            raise ValueError(f"--save-plot draws one picture, and {len(pictures)} are given")
    from ..decoding import load_model_and_tokenizers, translate

    loaded = load_model_and_tokenizers.load(model or CAPTIONER, find_device(device), wanted=("caption",))
    settings = search_settings(loaded, beams, length_penalty, None)
    settings["weights"] = save_plot is not None
    several, failures = len(pictures) > 1, set[int]()  # of several, one that cannot be read does not stop the others

    def refused(number: int, reason: str) -> None:
        failures.add(number)
        typer.echo(f"regard: {reason}", err=True)

    captions = translate(loaded.model, loaded.tokenizers, pictures, refused=refused if several else None, **settings)
    for number, (name, result) in enumerate(zip(pictures, captions, strict=True), 1):
        for remark in [] if number in failures else loaded.tokenizers.source.remarks(name):
            typer.echo(f"regard: {remark}", err=True)
        print(f"{name}\t{result.text}" if several else result.text, flush=True)
        if save_plot is not None:
            _save_figure(result, save_plot)
    if failures:
        raise typer.Exit(1)


def _save_figure(caption: Translation, file: Path) -> None:
    from ..data.picture_reader import PictureReader
    from ..seeing.alignment.word_level_weights import caption_word_weights
    from ..seeing.drawing.picture_overlay import MAX_WORDS, save_caption_figure

    weights, words = caption_word_weights(caption)
    save_caption_figure(file, PictureReader(FIGURE_PIXELS).encode(caption.source), weights, words)
    only = f", the first {MAX_WORDS} of {len(words)} words" if len(words) > MAX_WORDS else ""
    typer.echo(f"wrote {file}{only}", err=True)
