"""Texts of commands: arguments, the lines of a file or a column of a table, a pipe, or what is typed."""

from __future__ import annotations

import os
import sys
from io import BytesIO, TextIOWrapper
from itertools import islice
from os.path import isfile  # unlike Path.is_file, it accepts any text
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import typer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ..data.rows import RowProblem

READ_AHEAD = 4096  # sentences
SUFFIXES = {
    "sound": (".wav", ".flac", ".ogg", ".opus", ".mp3", ".m4a", ".aac", ".aif", ".aiff", ".caf", ".wma"),
    "picture": (".png", ".jpg", ".jpeg", ".gif", ".bmp", ".webp", ".tif", ".tiff", ".avif", ".heic"),
    "text": (".txt", ".md", ".tsv", ".csv", ".jsonl", ".gz", ".xz"),
}
TABLES = (".tsv", ".csv", ".jsonl", ".parquet")  # files with columns, by the suffix


def file_kind(argument: str) -> str | None:
    """What kind of file an argument names; None: it is a text.

    By its suffix "sound", "picture" or "text", whether the file is there or not; "file" for one that is there and has
    none of these suffixes. FILE#START:LENGTH and tone:… are sounds.
    """
    name = argument.split("#")[0]
    if argument.startswith("tone:"):
        return "sound"
    known = (kind for kind, suffixes in SUFFIXES.items() if name.lower().endswith(suffixes))
    return next(known, "file" if isfile(name) else None)


def are_sounds(arguments: list[str]) -> bool:
    """Whether arguments are sounds, and not texts. A mixture is an error, and so is a sound that is not there."""
    sounds = [argument for argument in arguments if file_kind(argument) in ("sound", "file")]
    for sound in sounds:
        if not sound.startswith("tone:") and not isfile(sound.split("#")[0]):
            raise ValueError(f"there is no file {sound:.200}; if it is a text, give a --model that reads texts")
    if sounds and len(sounds) < len(arguments):
        text = next(argument for argument in arguments if argument not in sounds)
        raise ValueError(f"{sounds[0]:.200} is a sound, and {text!r:.80} is not: give sounds or texts, not both")
    return bool(sounds)


def require_sounds(arguments: list[str], model: str) -> None:
    for argument in arguments:
        if file_kind(argument) not in ("sound", "file"):
            raise ValueError(
                f"{model} reads sounds, and {argument!r:.80} is none; for a text, give a --model that reads texts"
            )


def require_texts(arguments: list[str], model: str) -> None:
    """Refuse names of existing files as texts: probably the content of the file is meant."""
    for argument in arguments:
        kind = file_kind(argument) if isfile(argument.split("#")[0]) else None
        if kind == "text":
            raise ValueError(
                f"{argument:.200} is a file, and would be read as a text; --file {argument:.200} reads its lines"
            )
        if kind in ("sound", "picture"):
            command = f"regard {'classify' if kind == 'sound' else 'caption'} {argument:.200}"
            raise ValueError(f"{argument:.200} is a {kind}, and {model} reads texts; for {kind}s there is: {command}")


def one_text(texts: list[str] | None) -> str | None:
    """The only text, if there is one. Several are probably a sentence without quotes, or a pair."""
    if texts and len(texts) > 1:
        raise ValueError(
            f"one text is read, and {len(texts)} are given, {texts[0]!r:.60} first: put a text in quotes; one that a "
            "model reads together with it goes after --with"
        )
    return texts[0] if texts else None


def require_file(file: Path) -> Path:
    if file == Path():
        raise ValueError("--file takes the name of a file, and got an empty one, or '.', which is a folder")
    if not file.exists() or file.is_dir():
        raise ValueError(f"there is no file {file}")
    return file


def require_there(file: Path | None) -> None:
    """Refuse a file or folder of pairs that is missing."""
    if file is not None and not file.exists():
        raise ValueError(f"there is no file {file}")


def standard_input() -> TextIO:
    """sys.stdin, or an empty file if it is closed (`<&-`)."""
    return TextIOWrapper(BytesIO()) if sys.stdin is None else sys.stdin


def warn_empty(file: Path | None, verb: str) -> None:
    """Warn that a file or a pipe was empty."""
    if file is not None or not standard_input().isatty():
        typer.echo(f"regard: {file or 'standard input'} is empty: there is nothing to {verb}", err=True)


def read_texts(arguments: list[str], file: Path | None, column: str | None = None) -> Iterator[list[str | RowProblem]]:
    """Sentences from arguments, a file, a pipe or the keyboard, in lists of what is available at once.

    Of a table, a TSV, CSV, JSONL or Parquet file, those of a column, which is a name or a number.
    """
    if arguments and file is not None:
        raise ValueError("give arguments or a --file, not both")
    if arguments:
        return iter([[*arguments]])
    if file is None:
        return _typed_lines() if standard_input().isatty() else _piped_lines()
    require_file(file)
    from ..data.rows import lines

    return _in_lists(lines(file) if column is None else _table_texts(file, column))


def refuse_table(file: Path) -> None:
    """Refuse a file with columns where lines are read: a header and labels would be texts."""
    name = file.with_suffix("") if file.suffix in (".gz", ".xz") else file
    if name.suffix in TABLES:
        raise ValueError(
            f"{file} is a table by its name; --column says where the texts are: --column text for a column with that "
            "name in the header, --column 0 for the first one of a file without a header"
        )


def _in_lists(texts: Iterator[str | RowProblem]) -> Iterator[list[str | RowProblem]]:
    while batch := list(islice(texts, READ_AHEAD)):
        yield batch


def _table_texts(file: Path, column: str) -> Iterator[str | RowProblem]:
    from ..data.rows import RowProblem, reader

    def text(row: list[Any] | RowProblem) -> str | RowProblem:
        if isinstance(row, RowProblem):
            return row
        if not isinstance(row[0], str):
            return RowProblem("not text", f"it is {row[0]!r:.40}")
        return " ".join(row[0].splitlines()).replace("\t", " ")  # one line

    return (text(row) for _, row in reader(file)(file, (int(column) if column.isdecimal() else column,)))


def _piped_lines() -> Iterator[list[str | RowProblem]]:
    """The lines that have arrived so far, again and again."""
    from ..data.rows import LONGEST
    from ..data.rows import read as lines

    stdin, rest = standard_input(), b""
    try:
        handle = stdin.fileno()
    except OSError:  # stdin was replaced by a buffer
        yield from _in_lists(lines(stdin.buffer))
        return
    while arrived := os.read(handle, 1 << 18):
        whole, end, rest = (rest + arrived).rpartition(b"\n")
        if end:
            yield list(lines(BytesIO(whole + end)))
        rest = rest[: LONGEST + 2]  # a longer line is refused whatever follows
    if rest:
        yield list(lines(BytesIO(rest)))


def _typed_lines() -> Iterator[list[str | RowProblem]]:
    import contextlib

    with contextlib.suppress(ImportError):
        import readline  # noqa: F401  arrow keys and history for input()
    typer.echo("Type a sentence and press Enter; Ctrl-D leaves.", err=True)
    while True:
        try:
            line = input("> ")
        except (EOFError, KeyboardInterrupt):
            typer.echo(err=True)
            return
        if line.strip():
            yield [line]


def text_or_lines(argument: str, limit: int) -> list[str]:
    """The text itself; or, if it names a file, its first `limit` lines that are not blank."""
    if file_kind(argument) is None and not ("/" in argument and argument.split() == [argument]):
        return [argument]
    if not isfile(argument):
        raise ValueError(f"there is no file {argument:.200}; what looks like a file's name is not read as a text")
    from ..data.rows import RowProblem, lines

    texts: list[str] = []
    for number, line in enumerate(lines(Path(argument)), 1):
        if isinstance(line, RowProblem):
            typer.echo(f"regard: {argument}:{number} is no text: {line.reason}; it is left out", err=True)
        elif line.strip():
            texts.append(line)
            if len(texts) == limit:
                break
    if not texts:
        raise ValueError(f"{argument} has no line with words in it")
    return texts
