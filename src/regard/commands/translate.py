"""`regard translate`."""

from __future__ import annotations

import sys
from pathlib import Path  # noqa: TC003  typer reads the annotations when it runs
from typing import IO, TYPE_CHECKING, Annotated

import typer

from .app import app
from .options import (
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

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ..data.pair import Bad
    from ..decoding import Translation

AHEAD = 4096  # sentences read ahead of the translation
PROMPT = "> "


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
        int, typer.Option(metavar="N", min=1, help="Print so many translations of each, with their scores.")
    ] = 1,
    length_penalty: LengthPenalty = None,
    coverage_penalty: CoveragePenalty = None,
    longest: Annotated[int | None, typer.Option(metavar="N", min=0, help="Tokens a translation may have.")] = None,
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
    given = _sentences(sentences or [], file, save_plot)
    if save_plot is not None:
        from ..seeing.figure import check

        check(save_plot)
    from .. import decoding
    from ..data.pair import Bad
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
    how["beams"] = max(how["beams"], best)
    how["best"], how["weights"] = best, show or save_plot is not None
    several = len(sentences or []) != 1  # of many, one that cannot be translated does not stop the others
    where = "sentence " if sentences else "line " if file is None else f"{file}:"
    before, wrong = 0, 0

    def refused(number: int, why: str) -> None:
        nonlocal wrong
        wrong += 1
        typer.echo(f"regard: {where}{before + number} {why}", err=True)

    for arrived in given:
        for number, item in enumerate(arrived, 1):
            if isinstance(item, Bad):
                refused(number, f"is no text: {item.reason}")
        texts = ["" if isinstance(item, Bad) else item for item in arrived]
        for translation in decoding.translate(
            loaded.model, loaded.tokenizers, texts, tokens=tokens, refused=refused if several else None, **how
        ):
            _print(translation, best)
            if show and len(translation.source_tokens) > 1:  # in an empty line there was nothing to look at
                _show(translation)
            if save_plot is not None:
                _plot(translation, save_plot)
        before += len(arrived)
    if wrong:
        raise typer.Exit(1)


def _sentences(arguments: list[str], file: Path | None, plot: Path | None) -> Iterator[list[str | Bad]]:
    """Sentences as they become known, in lists that can be translated at once."""
    if arguments and file is not None:
        raise ValueError("give sentences as arguments or a --file, not both")
    if plot is not None and (len(arguments) != 1 or not arguments[0].strip()):
        raise ValueError("--save-plot draws one sentence: give it as the only argument")
    if arguments:
        return iter([[*arguments]])
    if file is not None:
        if not file.exists() or file.is_dir():
            raise ValueError(f"there is no file {file}")
        return _file(file)
    if sys.stdin.isatty():
        return _asked()
    return _piped()


def _file(file: Path) -> Iterator[list[str | Bad]]:
    from itertools import islice

    from ..data.lines import lines

    read = lines(file)
    while several := list(islice(read, AHEAD)):
        yield several


def _piped() -> Iterator[list[str | Bad]]:
    """What has arrived so far, again and again; a thread reads on meanwhile."""
    from queue import Empty, Queue
    from threading import Thread

    from ..data.lines import read as lines

    queue: Queue[str | Bad | OSError | None] = Queue(AHEAD)
    try:
        # A reader of our own: Python closes sys.stdin when it ends, and would wait for the thread that reads it.
        pipe: IO[bytes] = open(sys.stdin.fileno(), "rb", closefd=False)  # noqa: SIM115
    except OSError:  # no file at all, as where somebody put a buffer in its place
        pipe = sys.stdin.buffer

    def read() -> None:
        try:
            for line in lines(pipe):
                queue.put(line)
        except OSError as error:
            queue.put(error)
        finally:
            queue.put(None)

    Thread(target=read, daemon=True).start()
    over = False
    while not over:
        several: list[str | Bad] = []
        item = queue.get()
        while item is not None and not isinstance(item, OSError):
            several.append(item)
            try:
                if len(several) == AHEAD:
                    break
                item = queue.get_nowait()
            except Empty:
                break
        if several:
            yield several
        if isinstance(item, OSError):
            raise item
        over = item is None


def _asked() -> Iterator[list[str | Bad]]:
    import contextlib

    with contextlib.suppress(ImportError):
        import readline  # noqa: F401  arrow keys and history for input()
    typer.echo("Type a sentence and press Enter; Ctrl-D leaves.", err=True)
    while True:
        try:
            line = input(PROMPT)
        except (EOFError, KeyboardInterrupt):
            typer.echo(err=True)
            return
        if line.strip():
            yield [line]


def _print(translation: Translation, best: int) -> None:
    # Written at once: who reads the other end of a pipe may wait for it.
    if best == 1:
        print(translation.text, flush=True)
        return
    for text, hypothesis in zip(translation.texts, translation.hypotheses, strict=True):
        print(f"{hypothesis.score:.4f}\t{text}", flush=True)
    print(flush=True)  # an empty line between sentences


def _show(translation: Translation) -> None:
    from rich.console import Console

    from ..seeing.looked import looked
    from ..seeing.terminal import heatmap

    Console(highlight=False).print(heatmap(*looked(translation)))


def _plot(translation: Translation, file: Path) -> None:
    from ..seeing.figure import save_weights
    from ..seeing.looked import looked

    save_weights(file, *looked(translation))
    typer.echo(f"wrote {file}", err=True)
