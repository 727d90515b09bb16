"""Translators: `regard translate`, `score`, `align`."""

from __future__ import annotations

import math
from itertools import repeat
from pathlib import Path
from typing import TYPE_CHECKING, Annotated
from unicodedata import normalize

import typer

from ..wording import count_of
from . import inputs, options
from .options import app, check_outputs, find_device, output_console, remark, search_settings, warn_unknown_words

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rich.table import Table

    from ..data.rows import Pair
    from ..decoding.model_folders import Pretrained
    from ..decoding.translation import Translation
    from ..training.evaluation import ForcedAlignment


PairTexts = Annotated[
    list[str] | None,
    typer.Argument(metavar="[SOURCE TARGET]", help="A sentence and its translation, each in quotes."),
]
PairFile = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Pairs: TSV, CSV, JSONL, Parquet, …; instead of arguments.")
]


@app.command()
def translate(
    sentences: Annotated[
        list[str] | None, typer.Argument(metavar="SENTENCE", help="Each argument is one sentence.")
    ] = None,
    model: Annotated[
        list[str] | None,
        typer.Option(
            "--model",
            metavar="RUN",
            help="A run's folder, a model's folder, or one that ships. Several: an ensemble, the mean of their "
            "probabilities.",
        ),
    ] = None,
    file: options.Lines = None,
    beams: options.Beams = None,
    best: Annotated[
        int,
        typer.Option(
            metavar="N", min=1, max=options.BEAMS, help="Print up to N translations of each, with their scores."
        ),
    ] = 1,
    sample: Annotated[
        float | None,
        typer.Option(metavar="TEMPERATURE", help="Sample translations instead, at this temperature."),
    ] = None,
    top_k: options.TopK = 0,
    top_p: options.TopP = 1.0,
    seed: Annotated[int | None, typer.Option(metavar="N", help="Random seed of --sample.")] = None,
    prefix: Annotated[
        str, typer.Option(metavar="TEXT", help="Every translation begins with this; the model goes on from there.")
    ] = "",
    show: Annotated[bool, typer.Option("--show", help="Print the attention weights as a heatmap.")] = False,
    save_plot: options.SavePlot = None,
    engine: options.EngineName = "torch",
    precision: options.Precision = "float32",
    device: options.Device = "auto",
) -> None:
    """Translate arguments, the lines of a file or a pipe, or what you type.

    From a pipe, the lines that have arrived are translated and printed before more are read.

    \b
    Examples:
      regard translate "Where is the library?"
      regard translate --show --model tatoeba-bahdanau-en-fr "I like this red car."
      regard translate --model runs/a --model runs/b "Where is the library?"      (an ensemble)
      regard translate --prefix "Dis-moi" "Where is the car?"
      regard translate --file letters.en > letters.fr
      tail -f chat | regard translate
      regard translate                      (asks for sentences)
    """
    sentences = sentences or []
    batches = inputs.read_texts(sentences, file)
    inputs.require_texts(sentences, model[0] if model else "regard translate")
    if save_plot is not None and (len(sentences) != 1 or not sentences[0].strip()):
        raise ValueError("--save-plot draws one sentence: give it as the only argument")
    check_outputs(save_plot)
    if sample is None and (top_k, top_p, seed) != (0, 1.0, None):
        raise ValueError("--top-k, --top-p and --seed are for --sample; add e.g. --sample 1.0")
    if sample is None and beams is not None and beams < best:
        raise ValueError(f"--best {best} needs as many beams: --beams is {beams}")
    from ..data.rows import RowProblem
    from ..decoding import model_folders
    from ..decoding.beam import Sample
    from ..decoding.translation import translate as translate_texts

    loaded = model_folders.load_ensemble(
        model or [model_folders.DEFAULT], find_device(device), engine, precision=precision
    )
    settings = search_settings(loaded, beams)
    settings["beams"] = best if sample is not None else max(settings["beams"], best)
    if sample is not None:
        settings["sample"] = Sample(sample, top_k, top_p, seed)
    settings["weights"] = show or save_plot is not None
    settings["best"] = best
    where = "sentence " if sentences else "line " if file is None else f"{file}:"
    count = failures = 0

    def refused(number: int, reason: str) -> None:
        nonlocal failures
        failures += 1
        remark(f"{where}{count + number} {reason}")

    for batch in batches:
        for number, item in enumerate(batch, count + 1):
            if isinstance(item, RowProblem):
                refused(number - count, f"is no text: {item.reason}")
                continue
            _warn_unknown(loaded, item, f"{where}{number}")
        translations: Iterable[Translation] = translate_texts(
            loaded.model,
            loaded.tokenizers,
            ["" if isinstance(item, RowProblem) else item for item in batch],
            prefix=repeat(prefix) if prefix else None,
            # Of several, one that cannot be translated does not stop the others.
            refused=refused if len(sentences) != 1 else None,
            **settings,
        )
        for translation in translations:
            print_translation(translation, best, sampled=sample is not None)
            _draw(translation, show, save_plot)
        count += len(batch)
    if not count:
        inputs.warn_empty(file, "translate")
    if failures:
        raise typer.Exit(1)


def _warn_unknown(loaded: Pretrained, text: str, where: str) -> None:
    from ..decoding.translation import no_text

    if no_text(text) is None:
        warn_unknown_words(loaded.tokenizers.source.unknown_parts(text), "what it writes for that is a guess", where)


def _draw(translation: Translation, show: bool, save_plot: Path | None) -> None:
    if len(translation.source_tokens) == 1 or not (show or save_plot):  # an empty line
        return
    from rich.console import Console

    from ..seeing.align import translation_word_weights
    from ..seeing.figures import save_heatmap
    from ..seeing.terminal import heatmap

    drawn = translation_word_weights(translation)
    if show:
        Console(highlight=False).print(heatmap(*drawn))
    if save_plot is not None:
        save_heatmap(save_plot, *drawn)
        typer.echo(f"wrote {save_plot}", err=True)


def print_translation(translation: Translation, best: int, *, sampled: bool) -> None:
    # Flushed at once: the reader of a pipe may wait for it.
    if best == 1:
        print(translation.text, flush=True)
        return
    printed: set[str] = set()
    for text, hypothesis in zip(translation.texts[:best], translation.hypotheses[:best], strict=True):
        # Of translations that look the same (other spaces, other pieces) only the best is printed; samples may repeat.
        plain = " ".join(normalize("NFC", text).split())
        if sampled or plain not in printed:
            print(f"{hypothesis.score:.4f}\t{text}", flush=True)
        printed.add(plain)
    print(flush=True)  # an empty line between sentences


@app.command()
def score(
    texts: PairTexts = None,
    model: options.Model = None,
    file: PairFile = None,
    columns: options.PairColumns = None,
    device: options.Device = "auto",
) -> None:
    """Print log p(translation | source) of given translations, and the number of their tokens, one pair per line.

    The end of the sentence counts in both. The perplexity of all pairs is printed at the end, to stderr.

    \b
    Examples:
      regard score "Where is the library?" "Où est la bibliothèque ?"
      regard score --model runs/bahdanau-phrasebook-1 --file pairs.tsv
    """
    pairs = _pairs("score", texts or [], file, columns)
    from ..decoding import model_folders
    from ..decoding.ensemble import target_logprobs

    name = model or model_folders.DEFAULT
    loaded = model_folders.load(name, find_device(device), wanted=("translate",))
    scores = target_logprobs(loaded.model, loaded.tokenizers, [(pair.source, pair.target) for pair in pairs])
    for each in scores:
        print(f"{each.logprob:.4f}\t{each.tokens}")
    total, tokens = sum(each.logprob for each in scores), sum(each.tokens for each in scores)
    typer.echo(f"perplexity {math.exp(min(-total / tokens, 700)):.3f} over {tokens:,} tokens", err=True)


ALIGNER = "tatoeba-bahdanau-en-fr"  # that ships


@app.command()
def align(
    texts: PairTexts = None,
    model: options.Model = None,
    links: Annotated[
        str | None, typer.Option(metavar="LINKS", help='Gold links of the pair, source-target from 0: "0-0 1-2".')
    ] = None,
    possible: Annotated[
        str | None, typer.Option(metavar="LINKS", help="Links that may also be right, beside --links.")
    ] = None,
    file: PairFile = None,
    columns: options.PairColumns = None,
    layer: Annotated[
        int | None, typer.Option(metavar="N", min=0, help="One layer of attention. [default: the mean of all]")
    ] = None,
    save_plot: options.SavePlot = None,
    device: options.Device = "auto",
) -> None:
    """Align a sentence with a given translation: the attention weights of a model that is made to write it.

    Each target word is linked to the source word with the largest weight. With gold links, the alignment error rate
    (Och and Ney 2003) is printed: 0 is perfect.

    \b
    Examples:
      regard align "Where is the library?" "Où est la bibliothèque ?"
      regard align --model phrasebook-bahdanau-en-fr "he hit me with a pie" "il m' a entarté" --links "0-0 1-2 1-3 2-1"
      regard align "I like this red car." "J'aime cette voiture rouge." --save-plot alignment.png
      regard data phrasebook 100 --test --links > pairs.tsv && regard align --file pairs.tsv --columns 0,1,2,3
    """
    check_outputs(save_plot)
    if possible is not None and links is None:
        raise ValueError("--possible are links beside the sure ones: give --links too")
    if links is not None and file is not None:
        raise ValueError("give a pair and its --links, or a --file of pairs, not both")
    pairs = _pairs("align", texts or [], file, columns, links, possible)
    if save_plot is not None and len(pairs) != 1:
        raise ValueError(f"--save-plot draws one pair, and {file} holds {len(pairs)}")
    from ..decoding import model_folders
    from ..seeing.figures import save_heatmap
    from ..seeing.terminal import heatmap
    from ..training.evaluation import error_rate, force_align

    loaded = model_folders.load(model or ALIGNER, find_device(device), wanted=("translate",))
    made = force_align(loaded.model, loaded.tokenizers, pairs, layer)
    if save_plot is not None:
        save_heatmap(save_plot, made[0].weights, made[0].target, made[0].source)
    console = output_console()
    for alignment in made:
        if len(pairs) == 1:
            console.print(heatmap(alignment.weights, alignment.target, alignment.source))
        console.print(_table(alignment))
        warn_unknown_words(alignment.unknown, "what it links there is a guess")
    if (rate := error_rate(made)) is not None:
        linked = count_of(sum(x.sure is not None for x in made), "pair")
        console.print(f"alignment error rate {rate:.3f}, of {linked}")
    if save_plot is not None:
        typer.echo(f"wrote {save_plot}", err=True)


def _pairs(
    command: str,
    texts: list[str],
    file: Path | None,
    columns: str | None,
    links: str | None = None,
    possible: str | None = None,
) -> list[Pair]:
    """The pair of the arguments, with its gold links, or those of a file."""
    if columns is not None and file is None:
        raise ValueError("--columns describes a --file, and none is given")
    if bool(texts) == (file is not None) or len(texts) not in (0, 2):
        raise ValueError(
            f"regard {command} takes a SOURCE and its TARGET, each in quotes, or pairs with --file; "
            f"{count_of(len(texts), 'text')} {'is' if len(texts) == 1 else 'are'} given"
        )
    inputs.require_there(file)
    from ..data.rows import Pair, header_remark

    if file is None:
        return [Pair(texts[0], texts[1], 0, "the pair", links, possible)]
    from ..training.evaluation import pairs_of_file, parse_columns

    chosen = parse_columns(columns)
    pairs = pairs_of_file(file, "translate", chosen)
    if header := header_remark(pairs[0], chosen, "--columns {},{}"):
        remark(header)
    return pairs


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
