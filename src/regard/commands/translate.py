"""`regard translate`."""

from __future__ import annotations

from itertools import repeat
from pathlib import Path  # noqa: TC003  typer reads the annotations when it runs
from typing import TYPE_CHECKING, Annotated
from unicodedata import normalize

import typer

from .shared_options import (
    BEAMS,
    Beams,
    CoveragePenalty,
    Device,
    EngineName,
    LengthPenalty,
    Precision,
    Tokens,
    find_device,
    search_settings,
)
from .text_input import TAG, TagWarnings, read_texts, refuse_file_names, warn_empty
from .typer_app import app
from .unknown_words_warning import warn_unknown_words

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ..decoding import Translation

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
        from ..seeing.drawing.matplotlib_figures import check_figure_path

        check_figure_path(save_plot)
    if any(not text.strip() for text in include or []):
        raise ValueError('--include "" is empty: give a word or phrase that the translation contains, or leave it out')
    from ..data.pair import RowProblem
    from ..decoding import Sample, load_model_and_tokenizers
    from ..decoding import rescore as rescore_translations
    from ..decoding import translate as translate_texts
    from ..decoding.source_batches import no_text

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
    tag_warnings = TagWarnings(loaded.tags)

    def refused(number: int, reason: str) -> None:
        nonlocal failures
        failures += 1
        typer.echo(f"regard: {where}{count + number} {reason}", err=True)

    for batch in batches:
        for number, item in enumerate(batch, 1):
            if isinstance(item, RowProblem):
                refused(number, f"is no text: {item.reason}")
            else:
                tag_warnings.check(f"{where}{count + number}", item)
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
                _print_heatmap(translation)
            if save_plot is not None:
                _save_heatmap(translation, save_plot)
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


def _print_heatmap(translation: Translation) -> None:
    from rich.console import Console

    from ..seeing.alignment.word_level_weights import translation_word_weights
    from ..seeing.drawing.terminal_heatmap import heatmap

    Console(highlight=False).print(heatmap(*translation_word_weights(translation)))


def _save_heatmap(translation: Translation, file: Path) -> None:
    from ..seeing.alignment.word_level_weights import translation_word_weights
    from ..seeing.drawing.matplotlib_figures import save_heatmap

    save_heatmap(file, *translation_word_weights(translation))
    typer.echo(f"wrote {file}", err=True)
