"""What a command is given: its arguments, a file's lines, a pipe's as they come, or what is typed."""

from __future__ import annotations

import sys
from io import BytesIO, TextIOWrapper
from os.path import isfile  # of Path's, a text that is no name at all is an error
from pathlib import Path
from typing import IO, TYPE_CHECKING, TextIO

import typer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ..data.pair import RowProblem

AHEAD = 4096  # sentences read ahead of the work
PROMPT = "> "
ENDINGS = {
    "sound": (".wav", ".flac", ".ogg", ".opus", ".mp3", ".m4a", ".aac", ".aif", ".aiff", ".caf", ".wma"),
    "picture": (".png", ".jpg", ".jpeg", ".gif", ".bmp", ".webp", ".tif", ".tiff", ".avif", ".heic"),
    "text": (".txt", ".md", ".tsv", ".csv", ".jsonl", ".gz", ".xz"),
}


def ending(argument: str) -> str | None:
    """What an argument would be by its name: a sound (or FILE#START:LENGTH, a stretch of one), a picture, a text."""
    name = argument.split("#")[0].lower()
    return next((kind for kind, endings in ENDINGS.items() if name.endswith(endings)), None)


def no_names(arguments: list[str], model: str) -> None:
    """Who gives a model of texts the name of a file that is there does not mean the name."""
    for one in arguments:
        kind = ending(one) if isfile(one.split("#")[0]) else None
        if kind == "text":
            raise ValueError(f"{one:.200} is a file, and would be read as a text; --file {one:.200} reads its lines")
        if kind is not None:
            able = f"regard {'classify' if kind == 'sound' else 'caption'} {one:.200}"
            raise ValueError(f"{one:.200} is a {kind}, and {model} reads texts; for {kind}s there is: {able}")


def one_text(texts: list[str] | None) -> str | None:
    """The text, where there is one. More of them were a sentence without quotes, or were meant as a pair."""
    if texts and len(texts) > 1:
        raise ValueError(
            f"one text is read, and {len(texts)} are given, {texts[0]!r:.60} first: put a text in quotes; one that a "
            "model reads together with it goes after --with"
        )
    return texts[0] if texts else None


def standard_input() -> TextIO:
    """What is piped or typed; where it is closed, as by `<&-`, nothing is."""
    return TextIOWrapper(BytesIO()) if sys.stdin is None else sys.stdin


def told_empty(file: Path | None, what: str) -> None:
    """Say that there was nothing, where nobody sat and saw it."""
    if file is not None or not standard_input().isatty():
        typer.echo(f"regard: {file or 'standard input'} is empty: there is nothing to {what}", err=True)


def given(arguments: list[str], file: Path | None) -> Iterator[list[str | RowProblem]]:
    """Sentences as they become known, in lists that can be worked on at once."""
    if arguments and file is not None:
        raise ValueError("give arguments or a --file, not both")
    if arguments:
        return iter([[*arguments]])
    if file is not None:
        if file == Path():
            raise ValueError("--file takes the name of a file, and got an empty one, or '.', which is a folder")
        if not file.exists() or file.is_dir():
            raise ValueError(f"there is no file {file}")
        return _file(file)
    if standard_input().isatty():
        return _asked()
    return _piped()


def _file(file: Path) -> Iterator[list[str | RowProblem]]:
    from itertools import islice

    from ..data.text_lines import lines

    read = lines(file)
    while several := list(islice(read, AHEAD)):
        yield several


def _piped() -> Iterator[list[str | RowProblem]]:
    """What has arrived so far, again and again; a thread reads on meanwhile."""
    from queue import Empty, Queue
    from threading import Thread

    from ..data.text_lines import read as lines

    queue: Queue[str | RowProblem | OSError | None] = Queue(AHEAD)
    stdin = standard_input()
    try:
        # A reader of our own: Python closes sys.stdin when it ends, and would wait for the thread that reads it.
        pipe: IO[bytes] = open(stdin.fileno(), "rb", closefd=False)  # noqa: SIM115
    except OSError:  # no file at all, as where somebody put a buffer in its place
        pipe = stdin.buffer

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
        several: list[str | RowProblem] = []
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


def _asked() -> Iterator[list[str | RowProblem]]:
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
