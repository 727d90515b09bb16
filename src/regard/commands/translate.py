"""Translators: `regard translate`, `score`, `align`."""

from __future__ import annotations

import math
from itertools import repeat
from pathlib import Path
from typing import TYPE_CHECKING, Annotated
from unicodedata import normalize

import typer

from ..messages import count_of
from .app import (
    BEAMS,
    Beams,
    CoveragePenalty,
    Device,
    EngineName,
    LengthPenalty,
    Model,
    PairColumns,
    Precision,
    Tokens,
    app,
    check_outputs,
    find_device,
    output_console,
    search_settings,
    warn_unknown_words,
)
from .inputs import TAG, TextWarnings, read_texts, refuse_file_names, warn_empty

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rich.table import Table

    from ..data.rows import Pair
    from ..decoding.translation import Translation
    from ..training.evaluation import ForcedAlignment


PairTexts = Annotated[
    list[str] | None,
    typer.Argument(metavar="[SOURCE TARGET]", help="A sentence and its translation, each in quotes."),
]
PairFile = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Pairs: TSV, CSV, JSONL, Parquet, …; instead of arguments.")
]
MAX_TOKENS = 4096  # a decoder allocates memory for all of them


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
    file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Translate the lines of this file; .gz and .xz too.")
    ] = None,
    beams: Beams = None,
    best: Annotated[
        int,
        typer.Option(metavar="N", min=1, max=BEAMS, help="Print up to N translations of each, with their scores."),
    ] = 1,
    length_penalty: LengthPenalty = None,
    coverage_penalty: CoveragePenalty = None,
    longest: Annotated[
        int | None, typer.Option(metavar="N", min=0, max=MAX_TOKENS, help="Maximum number of tokens of a translation.")
    ] = None,
    sample: Annotated[
        float | None,
        typer.Option(metavar="TEMPERATURE", help="Sample translations instead, at this temperature."),
    ] = None,
    top_k: Annotated[
        int, typer.Option(metavar="N", min=0, help="Sample from the N likeliest tokens only; 0: from all.")
    ] = 0,
    top_p: Annotated[
        float, typer.Option(metavar="P", help="Sample from the likeliest tokens that reach this probability.")
    ] = 1.0,
    seed: Annotated[int | None, typer.Option(metavar="N", help="Random seed of --sample.")] = None,
    prefix: Annotated[
        str, typer.Option(metavar="TEXT", help="Every translation begins with this; the model goes on from there.")
    ] = "",
    include: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TEXT", help="Every translation contains this word or phrase; may be given several times."
        ),
    ] = None,
    rescore: Annotated[
        str | None,
        typer.Option(metavar="MODEL", help="Rank the hypotheses by the mean of their score and that of this model."),
    ] = None,
    show: Annotated[bool, typer.Option("--show", help="Print the attention weights as a heatmap.")] = False,
    save_plot: Annotated[
        Path | None,
        typer.Option(metavar="FILE.png", help="Draw the weights into a file: .png, .svg or .pdf. One sentence."),
    ] = None,
    engine: EngineName = "torch",
    precision: Precision = "float32",
    device: Device = "auto",
    tokens: Tokens = None,
) -> None:
    """Translate arguments, the lines of a file or a pipe, or what you type.

    From a pipe, the lines that have arrived are translated and printed before more are read.

    \b
    Examples:
      regard translate "Where is the library?"
      regard translate --show --model tatoeba-bahdanau-en-fr "I like this red car."
      regard translate --model runs/a --model runs/b "Where is the library?"      (an ensemble)
      regard translate --prefix "Dis-moi" --include rouge "Where is the car?"
      regard translate --file letters.en > letters.fr
      tail -f chat | regard translate
      regard translate                      (asks for sentences)
    """
    sentences = sentences or []
    batches = read_texts(sentences, file)
    refuse_file_names(sentences, model[0] if model else "regard translate")
    if save_plot is not None:
        if len(sentences) != 1 or not sentences[0].strip():
            raise ValueError("--save-plot draws one sentence: give it as the only argument")
        check_outputs(save_plot)
    if any(not text.strip() for text in include or []):
        raise ValueError('--include "" is empty: give a word or phrase that the translation contains, or leave it out')
    from ..data.rows import RowProblem
    from ..decoding import load_model_and_tokenizers
    from ..decoding.beam import Sample
    from ..decoding.ensemble import rescore as rescore_translations
    from ..decoding.translation import no_text
    from ..decoding.translation import translate as translate_texts

    if show or save_plot is not None:
        from rich.console import Console

        from ..seeing.align import translation_word_weights
        from ..seeing.figures import save_heatmap
        from ..seeing.terminal import heatmap
    loaded = load_model_and_tokenizers.load_ensemble(
        model or [load_model_and_tokenizers.DEFAULT], find_device(device), engine, precision=precision
    )
    other = load_model_and_tokenizers.load(rescore, find_device(device), wanted=("translate",)) if rescore else None
    settings = search_settings(loaded, beams, length_penalty, coverage_penalty)
    if longest is not None:
        settings["longest"] = longest
    if sample is not None:
        settings["sample"] = Sample(sample, top_k, top_p, seed)
        settings["beams"] = best
    elif (top_k, top_p, seed) != (0, 1.0, None):
        raise ValueError("--top-k, --top-p and --seed are for --sample; add e.g. --sample 1.0")
    elif beams is not None and beams < best:
        raise ValueError(f"--best {best} needs as many beams: --beams is {beams}")
    settings["beams"] = max(settings["beams"], best)
    settings["weights"] = show or save_plot is not None
    settings["best"] = best if other is None else settings["beams"]  # a list of hypotheses to rank again
    several = len(sentences) != 1  # of several, one that cannot be translated does not stop the others
    where = "sentence " if sentences else "line " if file is None else f"{file}:"
    count, failures = 0, 0
    warnings = TextWarnings(tags=loaded.tags)

    def refused(number: int, reason: str) -> None:
        nonlocal failures
        failures += 1
        typer.echo(f"regard: {where}{count + number} {reason}", err=True)

    for batch in batches:
        for number, item in enumerate(batch, 1):
            if isinstance(item, RowProblem):
                refused(number, f"is no text: {item.reason}")
            else:
                warnings.check_tag(f"{where}{count + number}", item)
                if no_text(item) is None:
                    tag = TAG.match(item.lstrip()) if loaded.tags else None  # which is warned of already
                    untagged = item.lstrip()[tag.end() :] if tag else item
                    unknown = loaded.tokenizers.source.unknown_parts(untagged)
                    warn_unknown_words(unknown, "what it writes for that is a guess", f"{where}{count + number}")
        texts = ["" if isinstance(item, RowProblem) else item for item in batch]
        translations: Iterable[Translation] = translate_texts(
            loaded.model,
            loaded.tokenizers,
            texts,
            prefix=repeat(prefix) if prefix else None,
            include=repeat(include) if include else None,
            tokens=tokens,
            refused=refused if several else None,
            **settings,
        )
        if other is not None:
            penalty = settings["length_penalty"]
            translations = rescore_translations(
                list(translations), other.model, other.tokenizers, length_penalty=penalty
            )
        for translation in translations:
            print_translation(translation, best, sampled=sample is not None)
            if show and len(translation.source_tokens) > 1:  # not an empty line
                Console(highlight=False).print(heatmap(*translation_word_weights(translation)))
            if save_plot is not None:
                save_heatmap(save_plot, *translation_word_weights(translation))
                typer.echo(f"wrote {save_plot}", err=True)
        count += len(batch)
    if not count:
        warn_empty(file, "translate")
    if failures:
        raise typer.Exit(1)


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
    model: Model = None,
    file: PairFile = None,
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
    from ..decoding import load_model_and_tokenizers
    from ..decoding.ensemble import target_logprobs
    from ..training.evaluation import pairs_of_file, parse_columns

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


DEFAULT = "tatoeba-bahdanau-en-fr"


@app.command()
def align(
    texts: PairTexts = None,
    model: Model = None,
    links: Annotated[
        str | None, typer.Option(metavar="LINKS", help='Gold links of the pair, source-target from 0: "0-0 1-2".')
    ] = None,
    possible: Annotated[
        str | None, typer.Option(metavar="LINKS", help="Links that may also be right, beside --links.")
    ] = None,
    file: PairFile = None,
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
      regard data phrasebook 100 --test --links > pairs.tsv && regard align --file pairs.tsv --columns 0,1,2,3
    """
    check_outputs(save_plot)
    pairs = _pairs(texts or [], links, possible, file, columns)
    if save_plot is not None and len(pairs) != 1:
        raise ValueError(f"--save-plot draws one pair, and {file} holds {len(pairs)}")
    from ..decoding import load_model_and_tokenizers
    from ..training.evaluation import error_rate, force_align

    loaded = load_model_and_tokenizers.load(model or DEFAULT, find_device(device), wanted=("translate",))
    made = force_align(loaded.model, loaded.tokenizers, pairs, layer)
    if save_plot is not None:
        from ..seeing.figures import save_heatmap

        save_heatmap(save_plot, made[0].weights, made[0].target, made[0].source)
    console = output_console()
    for alignment in made:
        if len(pairs) == 1:
            from ..seeing.terminal import heatmap

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
    from ..data.rows import Pair

    if file is not None:
        if texts or links is not None or possible is not None:
            raise ValueError("give a pair (and its --links), or a --file of pairs, not both")
        from ..data.rows import header_remark
        from ..training.evaluation import pairs_of_file, parse_columns

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
