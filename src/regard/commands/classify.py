"""`regard classify`."""

from __future__ import annotations

from pathlib import Path  # noqa: TC003  typer reads the annotations when it runs
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .shared_options import Device, Model, Tokens, find_device
from .text_input import (
    LineWarnings,
    are_sounds,
    read_texts,
    refuse_file_names,
    refuse_table,
    require_sounds,
    standard_input,
    table_texts,
    warn_empty,
)
from .typer_app import app

if TYPE_CHECKING:
    import numpy as np

    from ..decoding.classification import Classification
    from ..decoding.load_model_and_tokenizers import Pretrained

TEXT_MODEL, SOUND_MODEL = "opinions-lstm", "digits-cnn"  # that ship
MAX_LABELS = 5  # printed for one text or sound


@app.command()
def classify(
    sources: Annotated[
        list[str] | None, typer.Argument(metavar="TEXT|SOUND", help="Each argument is one text, or a sound file.")
    ] = None,
    model: Model = None,
    file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Classify the lines of this file; .gz and .xz too.")
    ] = None,
    column: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="The column of a --file with the texts: its name in the header, or a number from 0."
        ),
    ] = None,
    compare: Annotated[
        bool, typer.Option("--compare", help="Print the weights of the words as numbers, beside those of TF-IDF.")
    ] = False,
    save_plot: Annotated[
        Path | None,
        typer.Option(metavar="FILE.png", help="Draw the weights into a file: .png, .svg or .pdf. One argument."),
    ] = None,
    device: Device = "auto",
    tokens: Tokens = None,
) -> None:
    """Classify texts or sounds: print the likeliest labels and the attention weights.

    Words are shaded by their weight; for a sound, its loudness and the weights over time are printed. For a file or a
    pipe, each line gives a label, its probability and the line, separated by tabs. A speller prints letters instead.

    \b
    Examples:
      regard classify "The soup was not bad, but the service was awful."
      regard classify --compare "Everyone said that the film was dull, but it was not."
      regard samples --save samples && regard classify samples/seven.wav
      regard classify --model runs/spell-digits-1 seven.flac --save-plot weights.png
      regard classify --model runs/cnn-sst2-1 --file reviews.txt > labels.tsv
      regard classify --model runs/cnn-sst2-1 --file reviews.csv --column text > labels.tsv
    """
    sources = sources or []
    if save_plot is not None:
        from ..seeing.drawing.matplotlib_figures import check_figure_path

        check_figure_path(save_plot)
        if len(sources) != 1:
            raise ValueError(f"--save-plot draws one text or sound, and {len(sources)} are given")
    if column is not None and (file is None or sources):
        raise ValueError("--column describes a --file" + (", and none is given" if file is None else ", not arguments"))
    if column is None and file is not None:
        refuse_table(file)
    from ..decoding import load_model_and_tokenizers

    model = model or (SOUND_MODEL if are_sounds(sources) else TEXT_MODEL)
    loaded = load_model_and_tokenizers.load(model, find_device(device), wanted=("classify", "spell"))
    if loaded.tokenizers.source.kind == "text":
        refuse_file_names(sources, model)
    else:
        require_sounds(sources, model)
    if compare and loaded.tokenizers.source.kind != "text":
        raise ValueError(f"--compare is for texts, whose words TF-IDF weighs; {model} reads sounds")
    if loaded.model.task == "spell":
        if file is not None:
            raise ValueError("--file holds texts, a line each; name the sound files to spell as arguments")
        failures = _spell(loaded, sources, save_plot, tokens)
    else:
        failures = _classify(loaded, model, sources, file, column, compare, save_plot, tokens)
    if failures:
        raise typer.Exit(1)


def _classify(
    loaded: Pretrained,
    model: str,
    arguments: list[str],
    file: Path | None,
    column: str | None,
    compare: bool,
    save_plot: Path | None,
    tokens: int | None,
) -> int:
    """Classify and print; returns the number of sources that could not be read."""
    from ..data.batch import UNKNOWN
    from ..data.pair import RowProblem
    from ..decoding import classification
    from ..decoding.words_not_in_vocabulary import TextWords

    interactive = bool(arguments) or (file is None and standard_input().isatty())
    if compare and not interactive:
        raise ValueError("--compare shows the words of texts that are arguments; of lines there are labels only")
    is_text = loaded.tokenizers.source.kind == "text"
    failures = count = unknown_lines = 0
    warnings = LineWarnings(model)
    batches = read_texts(arguments, file) if file is None or column is None else table_texts(file, column)
    for batch in batches:
        problems = {number: item.reason for number, item in enumerate(batch, 1) if isinstance(item, RowProblem)}

        def refused(number: int, reason: str, count: int = count, problems: dict[int, str] = problems) -> None:
            nonlocal failures
            failures += 1
            reason = f"is no text: {problems[number]}" if number in problems else reason
            where = (
                f"{'text' if arguments else 'line' if column is None else 'row'} {count + number} " if is_text else ""
            )
            typer.echo(f"regard: {where}{reason}", err=True)

        results = classification.classify(
            loaded.model,
            loaded.tokenizers,
            ["" if isinstance(item, RowProblem) else item for item in batch],
            tokens=tokens,
            weights=interactive,
            refused=None if len(arguments) == 1 else refused,
        )
        for number, result in enumerate(results, count + 1):
            if not is_text and result.label:
                _warn_silent(result.source, result.numbers, loaded)
            if interactive:
                if result.label:
                    _print_result(loaded, result, compare, save_plot, with_source=len(arguments) > 1)
                continue
            if is_text:
                warnings.check(number, result.source)
                if result.label and UNKNOWN in result.numbers:
                    unknown_lines += TextWords.of(result, loaded.tokenizers.source).all_unknown
            probability = f"{result.probabilities[result.label]:.4f}" if result.label else ""
            print(f"{result.label}\t{probability}\t{result.source}", flush=True)
        count += len(batch)
    if unknown_lines:
        message = f"regard: the model knows no word of {unknown_lines:,} of {count:,} lines"
        typer.echo(f"{message}, so its answers to these say nothing about them", err=True)
    if not count:
        warn_empty(file, "classify")
    return failures


def _warn_silent(name: str, samples: np.ndarray[Any, Any], loaded: Pretrained) -> None:
    from ..data.sound_reader import unheard

    if reason := unheard(name, samples, loaded.tokenizers.source.rate):
        typer.echo(f"regard: {reason}, so what the model makes of it means nothing", err=True)


def _print_result(
    loaded: Pretrained, result: Classification, compare: bool, save_plot: Path | None, with_source: bool
) -> None:
    """Print the labels and the weights; `with_source` prints the source above, unless its shaded words follow."""
    from ..seeing.drawing.terminal_heatmap import printable
    from .console import output_console

    labels = list(result.probabilities.items())
    more = f"  and {len(labels) - MAX_LABELS} more" if len(labels) > MAX_LABELS else ""
    is_text = loaded.tokenizers.source.kind == "text"
    if with_source and not (is_text and (compare or result.weights is not None)):
        print(printable(result.source))
    output_console().print("  ".join(f"{label} {p:.3f}" for label, p in labels[:MAX_LABELS]) + more)
    if is_text:
        _print_words(loaded, result, compare, save_plot)
    else:
        _print_sound(loaded, result, save_plot)


def _print_words(loaded: Pretrained, result: Classification, compare: bool, save_plot: Path | None) -> None:
    import torch

    from ..decoding.words_not_in_vocabulary import TextWords
    from ..seeing.alignment.word_level_weights import sum_by_word
    from ..seeing.drawing.matplotlib_figures import save_heatmap
    from ..seeing.drawing.shaded_text import ShadedText
    from ..seeing.drawing.terminal_heatmap import heatmap
    from .console import output_console

    text_words = TextWords.of(result, loaded.tokenizers.source)
    if warning := text_words.warning():
        typer.echo(f"regard: {warning}", err=True)
    words = [*text_words.marked(), "</s>"]
    word_of_token = [*text_words.word_of_token, len(text_words.words)]  # </s> is a word of its own
    by_method = {"weights": result.weights, "TF-IDF": result.static}
    rows = {name: sum_by_word(w, word_of_token) for name, w in by_method.items() if w is not None}
    if "weights" in rows:
        output_console().print(ShadedText(words, rows["weights"].tolist()))
    elif not compare:
        typer.echo("this model's pooling gives words no weights", err=True)
    if compare:
        output_console().print(heatmap(torch.stack(list(rows.values())), list(rows), words))
    if save_plot is not None:
        save_heatmap(save_plot, torch.stack(list(rows.values())), list(rows), words)
        typer.echo(f"wrote {save_plot}", err=True)


def _print_sound(loaded: Pretrained, result: Classification, save_plot: Path | None) -> None:
    import torch

    from ..seeing.drawing.matplotlib_figures import save_sound_figure
    from ..seeing.drawing.shaded_text import sparkline

    loudness = torch.from_numpy(result.numbers.astype("float32")).abs()
    print(f"sound    {sparkline(loudness)}")
    if result.weights is None:
        if save_plot is not None:
            raise ValueError("this model's pooling gives moments no weights, so there is nothing to draw")
        typer.echo("this model's pooling gives moments no weights", err=True)
        return
    print(f"weights  {sparkline(result.weights)}")
    if save_plot is not None:
        save_sound_figure(save_plot, result.numbers, loaded.tokenizers.source.rate, result.weights[None], ["weights"])
        typer.echo(f"wrote {save_plot}", err=True)


def _spell(loaded: Pretrained, sounds: list[str], save_plot: Path | None, tokens: int | None) -> int:
    """Print the letters of each sound; returns the number of sounds that could not be read."""
    from ..decoding import translate
    from ..seeing.drawing.matplotlib_figures import save_sound_figure
    from .shared_options import search_settings

    if not sounds:
        raise ValueError("name the sound files to spell as arguments")
    settings, failures = search_settings(loaded, None, None, None), set[int]()
    settings["weights"] = save_plot is not None

    def refused(number: int, reason: str) -> None:
        failures.add(number)
        typer.echo(f"regard: {reason}", err=True)

    several = len(sounds) > 1
    spellings = translate(
        loaded.model, loaded.tokenizers, sounds, tokens=tokens, refused=refused if several else None, **settings
    )
    reader = loaded.tokenizers.source
    for number, (name, spelling) in enumerate(zip(sounds, spellings, strict=True), 1):
        print(f"{name}\t{spelling.text}" if several else spelling.text, flush=True)
        if number in failures:
            continue
        samples = reader.encode(name)
        _warn_silent(name, samples, loaded)
        if save_plot is not None:
            if spelling.weights is None:
                raise ValueError("this model has no attention, so there is nothing to show")
            letters = [piece.replace("▁", "") or "▁" for piece in spelling.pieces]
            save_sound_figure(save_plot, samples, reader.rate, spelling.weights.mean(0), letters)
            typer.echo(f"wrote {save_plot}", err=True)
    return len(failures)
