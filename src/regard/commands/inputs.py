"""Text input of commands: arguments, the lines of a file, a pipe or what is typed, and warnings about it."""

from __future__ import annotations

import re
import sys
from io import BytesIO, TextIOWrapper
from os.path import isfile  # unlike Path.is_file, it accepts any text
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, TextIO

import typer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ..data.rows import RowProblem


READ_AHEAD = 4096  # sentences
PROMPT = "> "
TAG = re.compile(r"<[^<>\s]{1,40}>")
"""What looks like a tag, as <2fr>."""
LARGEST_FILE = 1 << 30  # bytes of a file for `text_or_lines`
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
    sounds = [file_kind(argument) in ("sound", "file") for argument in arguments]
    for argument, is_sound in zip(arguments, sounds, strict=True):
        if is_sound and not argument.startswith("tone:") and not isfile(argument.split("#")[0]):
            raise ValueError(f"there is no file {argument:.200}; if it is a text, give a --model that reads texts")
    if any(sounds) and not all(sounds):
        sound, text = arguments[sounds.index(True)], arguments[sounds.index(False)]
        raise ValueError(f"{sound:.200} is a sound, and {text!r:.80} is not: give sounds or texts, not both")
    return any(sounds)


def require_sounds(arguments: list[str], model: str) -> None:
    """Refuse texts."""
    for argument in arguments:
        if file_kind(argument) not in ("sound", "file"):
            raise ValueError(
                f"{model} reads sounds, and {argument!r:.80} is none; for a text, give a --model that reads texts"
            )


def refuse_file_names(arguments: list[str], model: str) -> None:
    """Refuse names of existing files as texts: probably the content of the file is meant."""
    for argument in arguments:
        if problem := _file_problem(argument, model):
            raise ValueError(problem)


def _file_problem(argument: str, model: str) -> str | None:
    kind = file_kind(argument) if isfile(argument.split("#")[0]) else None
    if kind == "text":
        return f"{argument:.200} is a file, and would be read as a text; --file {argument:.200} reads its lines"
    if kind in ("sound", "picture"):
        command = f"regard {'classify' if kind == 'sound' else 'caption'} {argument:.200}"
        return f"{argument:.200} is a {kind}, and {model} reads texts; for {kind}s there is: {command}"
    return None


class TextWarnings:
    """Warnings on stderr about texts that are read as they are; each kind is given once."""

    def __init__(self, model: str = "", tags: tuple[str, ...] = ()) -> None:
        self.model, self.given = model, set[str]()
        self.tags, self.may_be_untagged = [tag for tag in tags if tag], "" in tags  # those of `Pretrained`

    def _once(self, kind: str, message: str) -> None:
        if kind not in self.given:
            typer.echo(f"regard: {message}", err=True)
        self.given.add(kind)

    def check_line(self, number: int, text: str) -> None:
        """A line with a tab, or with the name of a file."""
        if "\t" in text:
            self._once("tab", f"line {number} holds a tab; the whole line is read as the text, not a column")
        if "name" not in self.given and (problem := _file_problem(text, self.model)):
            self._once("name", f"line {number}: {problem}; here it is read as words, and so is any other")

    def check_tag(self, where: str, text: str) -> None:
        """A source without a tag, or with an unknown one, for a model that was trained with tags before sources."""
        begin, names = text.lstrip(), ", ".join(self.tags)
        if not self.tags or not begin or begin.startswith(tuple(self.tags)):
            return
        if unknown := TAG.match(begin):
            self._once("unknown", f"{where} begins with {unknown[0]}, which this model does not know: {names}")
        elif not self.may_be_untagged:
            example = f"{self.tags[0]} {begin:.40}"
            known = f"this model knows tags, which its sources begin with: {names}, as in {example!r}"
            self._once("untagged", f"{where} begins with no tag, and {known}")


def one_text(texts: list[str] | None) -> str | None:
    """The only text, if there is one. Several are probably a sentence without quotes, or a pair."""
    if texts and len(texts) > 1:
        raise ValueError(
            f"one text is read, and {len(texts)} are given, {texts[0]!r:.60} first: put a text in quotes; one that a "
            "model reads together with it goes after --with"
        )
    return texts[0] if texts else None


def standard_input() -> TextIO:
    """sys.stdin, or an empty file if it is closed (`<&-`)."""
    return TextIOWrapper(BytesIO()) if sys.stdin is None else sys.stdin


def warn_empty(file: Path | None, verb: str) -> None:
    """Warn that a file or a pipe was empty."""
    if file is not None or not standard_input().isatty():
        typer.echo(f"regard: {file or 'standard input'} is empty: there is nothing to {verb}", err=True)


def read_texts(arguments: list[str], file: Path | None) -> Iterator[list[str | RowProblem]]:
    """Sentences from arguments, a file, a pipe or the keyboard, in lists of what is available at once."""
    if arguments and file is not None:
        raise ValueError("give arguments or a --file, not both")
    if arguments:
        return iter([[*arguments]])
    if file is not None:
        if file == Path():
            raise ValueError("--file takes the name of a file, and got an empty one, or '.', which is a folder")
        if not file.exists() or file.is_dir():
            raise ValueError(f"there is no file {file}")
        return _file_lines(file)
    if standard_input().isatty():
        return _typed_lines()
    return _piped_lines()


def table_texts(file: Path, column: str) -> Iterator[list[str | RowProblem]]:
    """The texts in a column of a TSV, CSV, JSONL or Parquet file, each as one line; a column is a name or a number."""
    from itertools import islice

    from ..data.rows import RowProblem, reader

    def text(row: list[Any] | RowProblem) -> str | RowProblem:
        if isinstance(row, RowProblem):
            return row
        if not isinstance(row[0], str):
            return RowProblem("not text", f"it is {row[0]!r:.40}")
        return " ".join(row[0].splitlines()).replace("\t", " ")

    if not file.exists():
        raise ValueError(f"there is no file {file}")
    rows = reader(file)(file, (int(column) if column.isdecimal() else column,))
    texts = (text(row) for _, row in rows)
    while batch := list(islice(texts, READ_AHEAD)):
        yield batch


def refuse_table(file: Path) -> None:
    """Refuse a file with columns where lines are read: a header and labels would be texts."""
    name = file.with_suffix("") if file.suffix in (".gz", ".xz") else file
    if name.suffix in TABLES:
        raise ValueError(
            f"{file} is a table by its name; --column says where the texts are: --column text for a column with that "
            "name in the header, --column 0 for the first one of a file without a header"
        )


def _file_lines(file: Path) -> Iterator[list[str | RowProblem]]:
    from itertools import islice

    from ..data.rows import lines

    reader = lines(file)
    while batch := list(islice(reader, READ_AHEAD)):
        yield batch


def _piped_lines() -> Iterator[list[str | RowProblem]]:
    """The lines that have arrived so far, again and again; a thread reads ahead meanwhile."""
    from queue import Empty, Queue
    from threading import Thread

    from ..data.rows import read as lines

    queue: Queue[str | RowProblem | OSError | None] = Queue(READ_AHEAD)
    stdin = standard_input()
    try:
        # A file object of our own: Python closes sys.stdin when it exits, and would wait for the thread that reads it.
        pipe: IO[bytes] = open(stdin.fileno(), "rb", closefd=False)  # noqa: SIM115
    except OSError:  # stdin was replaced by a buffer
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
    ended = False
    while not ended:
        batch: list[str | RowProblem] = []
        item = queue.get()
        while item is not None and not isinstance(item, OSError):
            batch.append(item)
            try:
                if len(batch) == READ_AHEAD:
                    break
                item = queue.get_nowait()
            except Empty:
                break
        if batch:
            yield batch
        if isinstance(item, OSError):
            raise item
        ended = item is None


def _typed_lines() -> Iterator[list[str | RowProblem]]:
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


def text_or_lines(argument: str, limit: int) -> list[str]:
    """The text itself; or, if it names a file, its first `limit` lines that are not blank."""
    from itertools import islice

    from ..data.rows import RowProblem, lines

    is_path = "/" in argument and argument.split() == [argument] and not argument.endswith(".")
    if file_kind(argument) is None and not is_path:
        return [argument]
    if not isfile(argument):
        raise ValueError(f"there is no file {argument:.200}; what looks like a file's name is not read as a text")
    size = Path(argument).stat().st_size
    if size > LARGEST_FILE:
        raise ValueError(f"{argument} has {size:,} bytes; at most {LARGEST_FILE:,} are read: split it")
    bad: list[str] = []

    def texts() -> Iterator[str]:
        for number, line in enumerate(lines(Path(argument)), 1):
            if isinstance(line, RowProblem):
                bad.append(f"{argument}:{number} is no text: {line.reason}")
            elif line.strip():
                yield line

    result = list(islice(texts(), limit))
    if bad:
        more = f"; {len(bad):,} such lines are left out" if len(bad) > 1 else "; it is left out"
        typer.echo(f"regard: {bad[0]}{more}", err=True)
    if not result:
        raise ValueError(f"{argument} has no line with words in it")
    return result
