"""`regard export`."""

from __future__ import annotations

from pathlib import Path  # noqa: TC003  typer reads the annotations when it runs
from typing import Annotated, Literal

import typer

from .typer_app import app


@app.command()
def export(
    run: Annotated[str, typer.Argument(metavar="RUN", help="A run's folder, a model's folder, or one that ships.")],
    to: Annotated[Literal["ctranslate2"], typer.Option(help="The engine to write for.")] = "ctranslate2",
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER", help="Where to write. [default: RUN/ctranslate2; one that ships: ./RUN-ctranslate2]"
        ),
    ] = None,
) -> None:
    """Convert a Transformer to CTranslate2, a fast C++ library for CPUs and GPUs.

    Greedy translations are the same, token for token. `regard translate --engine ctranslate2` runs the result.

    \b
    Examples:
      regard export runs/transformer-multi30k-1
      regard export tatoeba-transformer-en-fr --out fast
    """
    from ..data import TokenizerPair
    from ..decoding import export_ctranslate2, load_model_and_tokenizers
    from ..models import EncoderDecoder

    model, run_folder = load_model_and_tokenizers.find(run)
    folder = out or load_model_and_tokenizers.export_folder(model, run_folder, to)
    export_ctranslate2(EncoderDecoder.from_pretrained(model), TokenizerPair.load(model), folder)
    size = sum(file.stat().st_size for file in folder.iterdir())
    typer.echo(f"wrote {folder} ({size / 1e6:.1f} MB)")
