"""A corpus of sentence pairs, streamed."""

from __future__ import annotations

import errno
import json
import os
import re
from collections import Counter
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, get_args

from ..files import read_object, write_text
from ..messages import count_of
from .rows import Pair, RowProblem, aligned, reader

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from .rows import Cells, Column, Rows

OnBad = Literal["error", "skip"]
File = str | os.PathLike[str]

_SIDES = ("the source side", "the target side")  # what has no columns to be named by
_LINK = re.compile(r"(\d+)-(\d+)")
_SURROGATE = re.compile("[\ud800-\udfff]")


class BadRowError(ValueError):
    """A row that is no pair: file:line, and why."""


def skipped_rows(reasons: Counter[str]) -> str:
    """How many rows were left out, and why, as a sentence."""
    kinds = ", ".join(f"{count:,} {kind}" for kind, count in reasons.most_common())
    return f"{count_of(reasons.total(), 'row')} skipped" + (f" ({kinds})" if kinds else "")


def all_bad_error(skipped: int, first: str) -> ValueError:
    return ValueError(f"no row is left: {count_of(skipped, 'bad row')} skipped; the first: {first}")


class PairReader:
    """Pairs from files, in order; each iteration reads them anew, a row at a time.

        PairReader("train.tsv.xz", columns=(0, 2))                    # columns by number, from 0
        PairReader("train.tsv", columns=("english", "french"))        # by name: the first line is a header
        PairReader("train.csv", columns=("text", "label"))            # the same of CSV
        PairReader("train.en.gz", target="train.fr.gz")               # two files, line by line
        PairReader("train.jsonl", columns=("translation.en", "translation.fr"))
        PairReader(["old.parquet", "new.parquet"], columns=("en", "fr"))
        PairReader("folder", columns=("en", "fr"))                    # what `save_to_disk` of `datasets` wrote
        PairReader(phrasebook.pairs(1000, seed=1))                    # whatever gives pairs

    A third column holds gold alignment links ("0-0 1-2"), a fourth the links that are possible but not sure.

    A row that is no pair (a column is missing, there are more than in line 1, a side is empty, bytes are not UTF-8, one
    file ends before the other, a line is endless) is an error that says file:line and why; with on_bad="skip" it is
    left out and counted: `skipped`, `reasons` by kind, `first` message of each kind, `report()` as a sentence, all of
    the latest iteration.
    """

    def __init__(
        self,
        files: File | Iterable[File] | Iterable[Pair],
        *,
        target: File | Iterable[File] | None = None,
        columns: tuple[Column, ...] | list[Column] | None = None,
        on_bad: OnBad = "error",
    ) -> None:
        if on_bad not in get_args(OnBad):
            raise ValueError(f"on_bad is 'error' or 'skip', got {on_bad!r}")
        if columns is not None and (isinstance(columns, str) or not 2 <= len(columns) <= 4):
            raise ValueError(f"columns are those of the source, the target and perhaps two of links, got {columns!r}")
        self.on_bad = on_bad
        self.reasons: Counter[str] = Counter()
        self.first: dict[str, str] = {}
        self._parts: list[Callable[[], Rows]]
        self._sides: tuple[str, ...] = _SIDES
        paths, pairs = _files_or_pairs(files)
        if target is not None:
            targets, _ = _files_or_pairs(target)
            if paths is None or targets is None or len(paths) != len(targets):
                raise ValueError(f"target= names one file for each source file, got {files} and {target}")
            if columns is not None:
                raise ValueError("columns= is for files that hold both sides; leave it out where there is target=")
            self._parts = [partial(aligned, *two) for two in zip(paths, targets, strict=True)]
        elif paths is not None:
            chosen = None if columns is None else tuple(columns)
            self._parts = [partial(reader(path), path, chosen) for path in paths]
            self._sides = tuple(f"column {column!r}" for column in (chosen or (0, 1))[:2])
        else:
            self._parts = [partial(_pair_rows, pairs)]

    @classmethod
    def from_rows(cls, rows: Callable[[], Rows], on_bad: OnBad = "error") -> PairReader:
        """Pairs from another place than a file; `rows` is called for each iteration."""
        reader = cls([], on_bad=on_bad)
        reader._parts = [rows]
        return reader

    @property
    def skipped(self) -> int:
        return self.reasons.total()

    def report(self) -> str:
        """How many rows were left out, and why."""
        return skipped_rows(self.reasons)

    def __iter__(self) -> Iterator[Pair]:
        return self.check_rows(self.rows())

    def rows(self) -> Rows:
        """All rows as they are in the files, unchecked."""
        return chain.from_iterable(part() for part in self._parts)

    def check_rows(self, rows: Iterable[tuple[str, Cells | RowProblem]]) -> Iterator[Pair]:
        """The pairs among these rows; what the others are is counted anew."""
        self.reasons, self.first = Counter(), {}
        for row, (where, cells) in enumerate(rows):
            pair = cells if isinstance(cells, RowProblem) else _pair(cells, row, where, self._sides)
            if isinstance(pair, Pair):
                yield pair
                continue
            message = f"{where}: {pair.reason}"
            if self.on_bad == "error":
                error = BadRowError(message)
                error.add_note("on_bad='skip' leaves such rows out")  # a note: commands name an option of their own
                raise error
            self.reasons[pair.kind] += 1
            self.first.setdefault(pair.kind, message)


def _pair_rows(pairs: Iterable[Pair]) -> Rows:
    for i, pair in enumerate(pairs):
        yield pair.where or f"pair {i + 1}", [pair.source, pair.target, pair.alignment, pair.possible]


def _files_or_pairs(files: File | Iterable[File] | Iterable[Pair]) -> tuple[list[Path] | None, Iterable[Pair]]:
    """The files, or None and the pairs; the first item decides."""
    several: Iterable[Any] = [files] if isinstance(files, str | os.PathLike) else files
    if iter(several) is several:  # a generator gives what it has only once
        several = list(several)
    first = next(iter(several), None)
    if isinstance(first, Pair | None):
        return None, several
    if not isinstance(first, str | os.PathLike):
        raise ValueError(f"PairReader reads files or takes pairs (regard.data.Pair), got {first!r:.60}")
    paths = [Path(file) for file in several]
    for path in paths:
        if not path.exists():
            raise FileNotFoundError(errno.ENOENT, "there is no such file or folder", str(path))
    return paths, []


def _pair(cells: Cells, row: int, where: str, names: tuple[str, ...]) -> Pair | RowProblem:
    """The row as a pair, if it is one."""
    sides: list[str] = []
    for side, name, text in zip(("source", "target"), names, cells, strict=False):
        if text is not None and not isinstance(text, str):
            return RowProblem("not text", f"{name} is {text!r:.40}, not text")
        if not text or not text.strip():
            return RowProblem(f"empty {side}", f"{name} is empty")
        if _SURROGATE.search(text):
            return RowProblem("undecodable bytes", f"{name} holds one half of a surrogate pair")
        sides.append(text.strip())
    if len(sides) == len(cells):
        return Pair(sides[0], sides[1], row, where)
    links = [None if cell is None else str(cell).split() for cell in cells[2:]]
    wrong = _link_problem(links, *(len(side.split(" ")) for side in sides))
    written = [None if some is None else " ".join(some) for some in links] + [None, None]
    return wrong or Pair(sides[0], sides[1], row, where, written[0], written[1])


def _link_problem(links: list[list[str] | None], source: int, target: int) -> RowProblem | None:
    """What is wrong with gold links between sentences of so many words, if anything."""
    for link in chain.from_iterable(some or [] for some in links):
        ends: Any = _LINK.fullmatch(link)
        if ends is None:
            return RowProblem("bad links", f"{link!r:.40} is no link; links look like 0-0 1-2")
        if int(ends[1]) >= source or int(ends[2]) >= target:
            sizes = f"{count_of(source, 'word')} and {count_of(target, 'word')}"
            return RowProblem("bad links", f"link {link} points past the end: the sides have {sizes}")
    return None


READER = "reader.json"  # how a source that is no text is read; beside the tokenizer of the target


class EmptyReader:
    """The source of a language model: each is a single, unused </s>.

    What reads sources has these attributes. `shape` is that of every source where all have the same (pictures); without
    it a source is a row of numbers of any length, `stride` of which count as one token of a batch. A source that cannot
    be read is a ValueError that names it.
    """

    kind: ClassVar[str] = "none"
    dtype: ClassVar[str] = "<i4"  # of the numbers, as numpy names it
    stride = 1
    shape = None

    def encode_batch(self, sources: Sequence[str]) -> list[list[int]]:
        return [[] for _ in sources]

    def to_dict(self) -> dict[str, Any]:
        """Its settings, for reader.json."""
        return {}


def save(reader: Any, folder: Path) -> None:
    """reader.json, from which `load` makes the same reader."""
    write_text(folder / READER, json.dumps({"kind": reader.kind, **reader.to_dict()}, indent=2) + "\n")


def load(folder: Path) -> Any:
    values = read_object(folder / READER)
    try:
        return make_reader(**{"kind": None, **values})
    except (TypeError, ValueError) as error:
        raise ValueError(f"{folder / READER}: {error}") from None


def make_reader(kind: object, **settings: Any) -> Any:
    """The reader of a kind: "none", "picture" or "sound". What these need is imported only here."""
    if kind == "none":
        return EmptyReader(**settings)
    if kind == "picture":
        from .media import PictureReader

        return PictureReader(**settings)
    if kind == "sound":
        from .media import SoundReader

        return SoundReader(**settings)
    raise ValueError(f"no reader is of kind {kind!r:.40}; known kinds are none, picture, sound")
