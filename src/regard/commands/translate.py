"""`regard translate`."""

from __future__ import annotations

from pathlib import Path  # noqa: TC003  typer reads the annotations when it runs
from typing import TYPE_CHECKING, Annotated
from unicodedata import normalize

import typer

from .options import (
    BEAMS,
    Beams,
    CoveragePenalty,
    Device,
    EngineName,
    LengthPenalty,
    Model,
    Tokens,
    find_device,
    settings,
)
from .text_input import given, no_names, told_empty
from .typer_app import app

if TYPE_CHECKING:
    from ..decoding import Translation

LONGEST = 4096  # tokens; a decoder sets aside room for all of them


@app.command()
def translate(
    sentences: Annotated[
        list[str] | None, typer.Argument(metavar="SENTENCE", help="Each argument is one sentence.")
    ] = None,
    model: Model = None,
    file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Translate this file's lines; .gz and .xz too.")
    ] = None,
    beams: Beams = None,
    best: Annotated[
        int,
        typer.Option(
            metavar="N", min=1, max=BEAMS, help="Print up to so many translations of each, with their scores."
        ),
    ] = 1,
    length_penalty: LengthPenalty = None,
    coverage_penalty: CoveragePenalty = None,
    longest: Annotated[
        int | None, typer.Option(metavar="N", min=0, max=LONGEST, help="Tokens a translation may have.")
    ] = None,
    sample: Annotated[
        float | None,
        typer.Option(metavar="TEMPERATURE", help="Draw translations at random instead; 1.0 is the model's own."),
    ] = None,
    top_k: Annotated[
        int, typer.Option(metavar="N", min=0, help="Draw from so many likeliest tokens only; 0: from all.")
    ] = 0,
    top_p: Annotated[
        float, typer.Option(metavar="P", help="Draw from the likeliest tokens that reach this probability.")
    ] = 1.0,
    seed: Annotated[int | None, typer.Option(metavar="N", help="Of what is drawn.")] = None,
    show: Annotated[bool, typer.Option("--show", help="Draw where the model looked, in the terminal.")] = False,
    save_plot: Annotated[
        Path | None, typer.Option(metavar="FILE.png", help="Draw it into a file: .png, .svg or .pdf. One sentence.")
    ] = None,
    engine: EngineName = "torch",
    device: Device = "auto",
    tokens: Tokens = None,
) -> None:
    """Translate arguments, a file, a pipe, or what you type.

    A pipe is answered as it speaks: what has arrived is translated and written before more is waited for.

    \b
    Examples:
      regard translate "Where is the library?"
      regard translate --show --model tatoeba-bahdanau-en-fr "I like this red car."
      regard translate --file letters.en > letters.fr
      tail -f chat | regard translate
      regard translate                      (asks for sentences)
    """
    arrives = given(sentences or [], file)
    no_names(sentences or [], model or "regard translate")
    if save_plot is not None:
        if len(sentences or []) != 1 or not (sentences or [""])[0].strip():
            raise ValueError("--save-plot draws one sentence: give it as the only argument")
        from ..seeing.drawing import check_figure_path

        check_figure_path(save_plot)
    from .. import decoding
    from ..data.pair import RowProblem
    from ..decoding import pretrained

    where = find_device(device)
    loaded = pretrained.load(model or pretrained.DEFAULT, where, engine, wanted=("translate",))
    how = settings(loaded, beams, length_penalty, coverage_penalty)
    if longest is not None:
        how["longest"] = longest
    if sample is not None:
        how["sample"] = decoding.Sample(sample, top_k, top_p, seed)
        how["beams"] = best
    elif (top_k, top_p, seed) != (0, 1.0, None):
        raise ValueError("--top-k, --top-p and --seed are for --sample; add e.g. --sample 1.0")
    elif beams is not None and beams < best:
        raise ValueError(f"--best {best} needs as many beams: --beams is {beams}")
    how["beams"] = max(how["beams"], best)
    how["best"], how["weights"] = best, show or save_plot is not None
    several = len(sentences or []) != 1  # of many, one that cannot be translated does not stop the others
    where = "sentence " if sentences else "line " if file is None else f"{file}:"
    before, wrong = 0, 0

    def refused(number: int, why: str) -> None:
        nonlocal wrong
        wrong += 1
        typer.echo(f"regard: {where}{before + number} {why}", err=True)

    for arrived in arrives:
        for number, item in enumerate(arrived, 1):
            if isinstance(item, RowProblem):
                refused(number, f"is no text: {item.reason}")
        texts = ["" if isinstance(item, RowProblem) else item for item in arrived]
        for translation in decoding.translate(
            loaded.model, loaded.tokenizers, texts, tokens=tokens, refused=refused if several else None, **how
        ):
            _print(translation, best, drawn=sample is not None)
            if show and len(translation.source_tokens) > 1:  # in an empty line there was nothing to look at
                _show(translation)
            if save_plot is not None:
                _plot(translation, save_plot)
        before += len(arrived)
    if not before:
        told_empty(file, "translate")
    if wrong:
        raise typer.Exit(1)


def _print(translation: Translation, best: int, *, drawn: bool) -> None:
    # Written at once: who reads the other end of a pipe may wait for it.
    if best == 1:
        print(translation.text, flush=True)
        return
    seen: set[str] = set()
    for text, hypothesis in zip(translation.texts, translation.hypotheses, strict=True):
        # Of those a reader cannot tell apart (a no-break space for a space, other pieces) the best stands for all;
        # what is drawn may come twice.
        plain = " ".join(normalize("NFC", text).split())
        if drawn or plain not in seen:
            print(f"{hypothesis.score:.4f}\t{text}", flush=True)
        seen.add(plain)
    print(flush=True)  # an empty line between sentences


def _show(translation: Translation) -> None:
    from rich.console import Console

    from ..seeing.alignment import translation_word_weights
    from ..seeing.drawing import heatmap

    Console(highlight=False).print(heatmap(*translation_word_weights(translation)))


def _plot(translation: Translation, file: Path) -> None:
    from ..seeing.alignment import translation_word_weights
    from ..seeing.drawing import save_heatmap

    save_heatmap(file, *translation_word_weights(translation))
    typer.echo(f"wrote {file}", err=True)
