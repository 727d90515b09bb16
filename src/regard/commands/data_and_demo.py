"""What regard generates or keeps on the disk: `regard data …`; and `regard demo`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from .options import Sorted, app

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ..data.rows import Pair

MOVED = ("idf", "phrasebook", "samples", "scenes")
"""Commands that were `regard NAME` and are `regard data NAME`."""
data = typer.Typer(cls=Sorted, no_args_is_help=True, help="What regard generates or counts: corpora, samples, words.")
app.add_typer(data, name="data")


def _moved(context: typer.Context) -> None:
    typer.echo(f"regard: `regard {context.command.name}` is now `regard data {context.command.name}`", err=True)
    raise typer.Exit(2)


for name in MOVED:
    anything = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}
    app.command(name, hidden=True, context_settings=anything)(_moved)

ROWS = 30  # printed at most, unless words are named
Seed = Annotated[int, typer.Option(min=0, help="Random seed.")]
Test = Annotated[bool, typer.Option("--test", help="What is never in the training split.")]


@data.command()
def idf(
    files: Annotated[
        list[Path], typer.Argument(metavar="FILE…", help="Documents, one per file; of a single file, one per line.")
    ],
    word: Annotated[
        list[str] | None, typer.Option("--word", metavar="WORD", help="Print this word; may be given several times.")
    ] = None,
) -> None:
    """Print how rare each word of your documents is: inverse document frequencies, by both formulas.

    n_j is the number of documents with the word, N the number of documents. The rarest words come first. TF-IDF weighs
    a word of a text by the number of times it occurs there, times its inverse document frequency.

    \b
    Examples:
      regard data idf letter-1.txt letter-2.txt letter-3.txt
      regard data idf reviews.txt --word David --word Beckham
    """
    import numpy as np

    from ..data.rows import text
    from ..data.tokenizer_pair import document_counts, inverse_document_frequency
    from ..wording import count_of

    contents = [text(file) for file in files]
    documents = [each for each in (contents if len(files) > 1 else contents[0].split("\n")) if each.strip()]
    if not documents:
        raise ValueError(f"{', '.join(map(str, files))}: there is no document with words in it")
    counts = document_counts(documents)
    chosen = dict.fromkeys(name.lower() for name in word or counts)
    if missing := [name for name in chosen if name not in counts]:
        raise ValueError(f"no document has the word {missing[0]!r}; a word is letters and digits without spaces")
    words = sorted(chosen, key=lambda name: (counts[name], word is None and name))
    shown = words if word else words[:ROWS]
    width = max(len(name) for name in [*shown, "word"])
    numbers = np.array([counts[name] for name in shown])
    plain, smoothed = (inverse_document_frequency(numbers, len(documents), kind) for kind in ("plain", "smoothed"))
    typer.echo(count_of(len(documents), "document"))
    typer.echo(f"{'word':<{width}}  n_j  log(N/n_j)  log((1+N)/(1+n_j))+1")
    for name, count, first, second in zip(shown, numbers, plain, smoothed, strict=True):
        typer.echo(f"{name:<{width}}  {count:>3}  {first:>10.3f}  {second:>20.3f}")
    if len(shown) < len(words):
        typer.echo(f"and {len(words) - len(shown):,} more; --word prints one of them")


@data.command()
def samples(
    save: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Write the files into this folder; their names are printed.")
    ] = None,
) -> None:
    """List the pictures and sounds that ship, to try `regard caption` and `regard classify` with.

    They are generated: scenes of coloured shapes, and spoken digits from a synthesizer.

    \b
    Examples:
      regard data samples
      regard data samples --save samples && regard classify samples/seven.wav
      regard data samples --save samples && regard caption samples/scene-1.png
    """
    from ..files import make_folder, write_bytes

    folder = Path(__file__).parent.parent / "viewer" / "data" / "samples"  # the page offers them, too
    for file in [*sorted(folder.glob("*.wav")), *sorted(folder.glob("*.png"))]:
        name = file.name.replace(" ", "-")
        if save is not None:
            write_bytes(make_folder(save) / name, file.read_bytes())
        typer.echo(name if save is None else str(save / name))


@data.command()
def scenes(
    count: Annotated[int, typer.Argument(metavar="N", min=0, help="How many pictures.")] = 10,
    seed: Seed = 0,
    test: Test = False,
    save: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Write the pictures to scene-1.png, scene-2.png, … in this folder."),
    ] = None,
) -> None:
    """Print generated pictures of coloured shapes, one per line: name, tab, caption.

    A name determines its picture, so that `regard caption` can draw it. With --save, the names are those of the files.

    \b
    Examples:
      regard data scenes 5
      regard data scenes 3 --test --save examples
    """
    from ..data.corpora import scenes as corpus
    from ..files import make_folder, replacing_file

    for number, pair in enumerate(corpus.pairs(count, seed=seed, split="test" if test else "train"), 1):
        name = pair.source
        if save is not None:
            from PIL import Image

            file = make_folder(save) / f"scene-{number}.png"
            with replacing_file(file) as unfinished:
                Image.fromarray(corpus.picture(pair.source, PIXELS)).save(unfinished, "PNG")
            name = str(file)
        typer.echo(f"{name}\t{pair.target}")


PIXELS = 256
"""Width and height of the pictures that `scenes` writes."""


@data.command()
def phrasebook(
    count: Annotated[int, typer.Argument(metavar="N", help="How many pairs.")] = 10,
    seed: Seed = 0,
    test: Test = False,
    links: Annotated[
        bool, typer.Option("--links", help="Add two columns of gold alignment links: sure, and possible only.")
    ] = False,
    language: Annotated[
        Literal["french", "spanish", "both"],
        typer.Option(help="Translate into French or Spanish; both: every sentence into each, after <2fr> and <2es>."),
    ] = "french",
    lectures: Annotated[
        bool, typer.Option("--lectures", help="Sentences like those of the lectures; Spanish has no others.")
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
      regard data phrasebook 5
      regard data phrasebook 5 --language spanish
      regard data phrasebook --examples --links
      regard data phrasebook 20000 --links > train.tsv
      regard data phrasebook 1000 --links --test > test.tsv
    """
    from ..data.corpora import phrasebook as corpus

    pairs: Iterable[Pair]
    if not examples:
        split: Literal["train", "test"] = "test" if test else "train"
        pairs = corpus.pairs(count, seed=seed, split=split, language=language, lectures=lectures, invented=invented)
    elif language == "both" or test or lectures or invented:
        raise ValueError("--examples prints a fixed list of one language; --language french or spanish, and --links")
    else:
        pairs = corpus.examples(language)
    for pair in pairs:
        columns = [pair.source, pair.target, pair.alignment or "", pair.possible or ""]
        typer.echo("\t".join(columns if links else columns[:2]))


@app.command()
def demo(
    save: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.svg",
            help="Draw the sections on boxes and self-attention into this file instead of printing the demo.",
        ),
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Leave out the training: a few seconds instead of minutes.")
    ] = False,
) -> None:
    """Worked examples of attention, from a phone book to the Transformer; then a translator is trained.

    Every number is computed when it is printed. Without colours (NO_COLOR, or output that is not a terminal) heatmaps
    use shades.

    \b
    Examples:
      regard demo
      regard demo --quick
      regard demo --save attention.svg
    """
    from .. import demo as examples

    if save is not None:
        examples.save(save)
        typer.echo(f"wrote {save}")
        return
    if not quick:
        typer.echo("Two small translators are trained at the end, which takes some minutes; --quick leaves them out.\n")
    examples.show(quick=quick)
    typer.echo("\nNext: regard view (opens a page on which you see where a model looks)")
