"""`regard score`."""

from __future__ import annotations

import math
from pathlib import Path  # noqa: TC003  typer reads the annotations when it runs
from typing import Annotated

import typer

from .shared_options import Device, Model, PairColumns, find_device
from .typer_app import app


@app.command()
def score(
    texts: Annotated[
        list[str] | None,
        typer.Argument(metavar="[SOURCE TARGET]", help="A sentence and its translation, each in quotes."),
    ] = None,
    model: Model = None,
    file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Pairs: TSV, CSV, JSONL, Parquet, …; instead of arguments.")
    ] = None,
    columns: PairColumns = None,
    device: Device = "auto",
) -> None:
    """Print log p(translation | source) of given translations, and the number of their tokens, one pair per line.

    The end of the sentence counts in both. The perplexity of all pairs is printed at the end, to stderr.

    \b
    Examples:
      regard score "Where is the library?" "Où est la bibliothèque ?"
      regard score --model runs/bahdanau-phrasebook-1 --file pairs.tsv
    """
    from ..decoding import load_model_and_tokenizers, target_logprobs
    from ..training.score.evaluation import pairs_of_file, parse_columns

    if (file is None) == (not texts) or (texts and len(texts) != 2):
        raise ValueError("regard score takes a SOURCE and its TARGET, each in quotes, or pairs with --file")
    if file is not None:
        pairs = [(pair.source, pair.target) for pair in pairs_of_file(file, "translate", parse_columns(columns))]
    else:
        assert texts is not None
        pairs = [(texts[0], texts[1])]
    name = model or load_model_and_tokenizers.DEFAULT
    loaded = load_model_and_tokenizers.load(name, find_device(device), wanted=("translate",))
    scores = target_logprobs(loaded.model, loaded.tokenizers, pairs)
    for each in scores:
        print(f"{each.logprob:.4f}\t{each.tokens}")
    total, tokens = sum(each.logprob for each in scores), sum(each.tokens for each in scores)
    typer.echo(f"perplexity {math.exp(min(-total / tokens, 700)):.3f} over {tokens:,} tokens", err=True)
