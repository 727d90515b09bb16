"""`regard phrasebook`."""

from __future__ import annotations

from typing import Annotated

import typer

from .typer_app import app


@app.command()
def phrasebook(
    count: Annotated[int, typer.Argument(metavar="N", help="How many pairs.")] = 10,
    seed: Annotated[int, typer.Option(help="Random seed of the sentences.")] = 0,
    test: Annotated[bool, typer.Option("--test", help="Sentences that are never in the training split.")] = False,
    links: Annotated[
        bool, typer.Option("--links", help="Add two columns of gold alignment links: sure, and possible only.")
    ] = False,
) -> None:
    """Print generated English–French sentence pairs, one pair per line, separated by a tab.

    \b
    Examples:
      regard phrasebook 5
      regard phrasebook 20000 --links > train.tsv
      regard phrasebook 1000 --links --test > test.tsv
    """
    from ..data.corpora import phrasebook as corpus

    for pair in corpus.pairs(count, seed=seed, split="test" if test else "train"):
        columns = [pair.source, pair.target, pair.alignment or "", pair.possible or ""]
        typer.echo("\t".join(columns if links else columns[:2]))
