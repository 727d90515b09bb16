"""`regard phrasebook`."""

from __future__ import annotations

from typing import Annotated, Literal

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
    language: Annotated[
        Literal["french", "spanish", "both"],
        typer.Option(help="Translate into French or Spanish; both: every sentence into each, after <2fr> and <2es>."),
    ] = "french",
    lectures: Annotated[
        bool,
        typer.Option("--lectures", help="Sentences like those of the lectures; Spanish has no others."),
    ] = False,
    invented: Annotated[
        bool,
        typer.Option("--invented", help="Sentences with invented names and numbers, which a translator has to copy."),
    ] = False,
    examples: Annotated[
        bool, typer.Option("--examples", help="Print the sentences that the lectures show, and nothing else.")
    ] = False,
) -> None:
    """Print generated English–French or English–Spanish sentence pairs, one pair per line, separated by a tab.

    \b
    Examples:
      regard phrasebook 5
      regard phrasebook 5 --language spanish
      regard phrasebook --examples --links
      regard phrasebook 20000 --links > train.tsv
      regard phrasebook 1000 --links --test > test.tsv
    """
    from ..data.corpora import phrasebook as corpus

    split: Literal["train", "test"] = "test" if test else "train"
    if examples and language == "both":
        raise ValueError("--examples prints the sentences of one language: --language french or spanish")
    if examples and (test or lectures or invented):
        raise ValueError("--examples prints a fixed list; leave out --test, --lectures and --invented")
    printed = (
        corpus.examples(language)
        if examples and language != "both"
        else corpus.pairs(count, seed=seed, split=split, language=language, lectures=lectures, invented=invented)
    )
    for pair in printed:
        columns = [pair.source, pair.target, pair.alignment or "", pair.possible or ""]
        typer.echo("\t".join(columns if links else columns[:2]))
