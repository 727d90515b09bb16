"""`regard align`."""

from __future__ import annotations

from pathlib import Path  # noqa: TC003  typer reads the annotations when it runs
from typing import TYPE_CHECKING, Annotated

import typer

from ..noun_count import count_of
from .console import output_console
from .shared_options import Device, Model, PairColumns, find_device
from .typer_app import app
from .unknown_words_warning import warn_unknown_words

if TYPE_CHECKING:
    from rich.table import Table

    from ..data import Pair
    from ..training.score.forced_alignment import ForcedAlignment

DEFAULT = "tatoeba-bahdanau-en-fr"


@app.command()
def align(
    texts: Annotated[
        list[str] | None,
        typer.Argument(metavar="[SOURCE TARGET]", help="A sentence and its translation, each in quotes."),
    ] = None,
    model: Model = None,
    links: Annotated[
        str | None, typer.Option(metavar="LINKS", help='Gold links of the pair, source-target from 0: "0-0 1-2".')
    ] = None,
    possible: Annotated[
        str | None, typer.Option(metavar="LINKS", help="Links that may also be right, beside --links.")
    ] = None,
    file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Pairs: TSV, CSV, JSONL, Parquet, …; instead of arguments.")
    ] = None,
    columns: PairColumns = None,
    layer: Annotated[
        int | None, typer.Option(metavar="N", min=0, help="One layer of attention. [default: the mean of all]")
    ] = None,
    save_plot: Annotated[
        Path | None,
        typer.Option(metavar="FILE.png", help="Draw the weights into a file: .png, .svg or .pdf. One pair."),
    ] = None,
    device: Device = "auto",
) -> None:
    """Align a sentence with a given translation: the attention weights of a model that is made to write it.

    Each target word is linked to the source word with the largest weight. With gold links, the alignment error rate
    (Och and Ney 2003) is printed: 0 is perfect.

    \b
    Examples:
      regard align "Where is the library?" "Où est la bibliothèque ?"
      regard align --model phrasebook-bahdanau-en-fr "he hit me with a pie" "il m' a entarté" --links "0-0 1-2 1-3 2-1"
      regard align "I like this red car." "J'aime cette voiture rouge." --save-plot alignment.png
      regard phrasebook 100 --test --links > pairs.tsv && regard align --file pairs.tsv --columns 0,1,2,3
    """
    if save_plot is not None:
        from ..seeing.drawing.matplotlib_figures import check_figure_path

        check_figure_path(save_plot)
    pairs = _pairs(texts or [], links, possible, file, columns)
    if save_plot is not None and len(pairs) != 1:
        raise ValueError(f"--save-plot draws one pair, and {file} holds {len(pairs)}")
    from ..decoding import load_model_and_tokenizers
    from ..training.score.forced_alignment import error_rate, force_align

    loaded = load_model_and_tokenizers.load(model or DEFAULT, find_device(device), wanted=("translate",))
    made = force_align(loaded.model, loaded.tokenizers, pairs, layer)
    if save_plot is not None:
        from ..seeing.drawing.matplotlib_figures import save_heatmap

        save_heatmap(save_plot, made[0].weights, made[0].target, made[0].source)
    console = output_console()
    for alignment in made:
        if len(pairs) == 1:
            from ..seeing.drawing.terminal_heatmap import heatmap

            console.print(heatmap(alignment.weights, alignment.target, alignment.source))
        console.print(_table(alignment))
        warn_unknown_words(alignment.unknown, "what it links there is a guess")
    rate = error_rate(made)
    if rate is not None:
        linked = count_of(sum(x.sure is not None for x in made), "pair")
        console.print(f"alignment error rate {rate:.3f}, of {linked}")
    if save_plot is not None:
        typer.echo(f"wrote {save_plot}", err=True)


def _pairs(
    texts: list[str], links: str | None, possible: str | None, file: Path | None, columns: str | None
) -> list[Pair]:
    from ..data import Pair

    if file is not None:
        if texts or links is not None or possible is not None:
            raise ValueError("give a pair (and its --links), or a --file of pairs, not both")
        from ..data.row_readers import header_remark
        from ..training.score.evaluation import pairs_of_file, parse_columns

        chosen = parse_columns(columns)
        pairs = pairs_of_file(file, "translate", chosen)
        if remark := header_remark(pairs[0], chosen, "--columns {},{}"):
            typer.echo(f"regard: {remark}", err=True)
        return pairs
    if columns is not None:
        raise ValueError("--columns describes a --file, and none is given")
    if possible is not None and links is None:
        raise ValueError("--possible are links beside the sure ones: give --links too")
    if len(texts) != 2:
        raise ValueError(
            f"an alignment is of a sentence and its translation, and {count_of(len(texts), 'text')} "
            f"{'is' if len(texts) == 1 else 'are'} given: "
            'regard align "Where is the library?" "Où est la bibliothèque ?", or --file FILE'
        )
    return [Pair(texts[0], texts[1], 0, "the pair", links, possible)]


def _table(alignment: ForcedAlignment) -> Table:
    """One row per target word: the source word of its largest weight, and the gold links where they are known."""
    from rich.table import Table

    table = Table("target", "source", "weight", box=None, pad_edge=False)
    if alignment.sure is not None:
        table.add_column("gold")
        table.add_column("")
    linked = {j: i for i, j in alignment.links}
    for j, word in enumerate(alignment.target):
        i = linked.get(j)
        row = [word, "–", ""] if i is None else [word, alignment.source[i], f"{float(alignment.weights[j, i]):.2f}"]
        if alignment.sure is not None:
            gold = [alignment.source[a] for a, b in sorted(alignment.sure) if b == j]
            maybe = [f"({alignment.source[a]})" for a, b in sorted(alignment.possible - alignment.sure) if b == j]
            right = (i, j) in alignment.sure | alignment.possible
            row += [" ".join([*gold, *maybe]), "" if right or (i is None and not gold) else "wrong"]
        table.add_row(*row)
    return table
