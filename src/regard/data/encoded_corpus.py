"""A corpus as ids: two flat arrays, in memory or in memory-mapped files."""

from __future__ import annotations

import io
import json
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from itertools import chain, islice
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Literal

import numpy as np

from ..atomic_write import replacing_folder
from ..json_file import DamagedFileError, read_object
from .batch import BEGIN, END
from .inverse_document_frequency import inverse_document_frequency
from .label_set import LabelSet, UnknownLabelError

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Sequence

    from jaxtyping import Float32, Int, Int32, Int64, Shaped

    from .inverse_document_frequency import IdfFormula
    from .pair import Pair
    from .tokenizer_pair import TokenizerPair

_ARRAYS = {
    "source": "<i4",  # or what the reader of a source that is no text gives
    "target": "<i4",
    "source_starts": "<i8",
    "source_lengths": "<i4",
    "target_lengths": "<i4",
    "rows": "<i8",
}
_INDEX = "encoded.json"
DTYPES = ("<i4", "<i2", "|u1")
"""The numbers of sources: tokens, samples, pixels. Objects, which numpy would unpickle, are none of them."""
LARGEST = 1 << 28
"""The maximum size of the index, in bytes: it names every source that could not be read."""
_CHUNK = 8192  # pairs tokenised together


@dataclass(frozen=True)
class CorpusInfo:
    """Metadata of the arrays; `shape` and `stride` are those of the source's reader."""

    dtype: str = "<i4"
    shape: tuple[int, ...] | None = None
    stride: int = 1
    dropped: int = 0  # pairs that had more than `longest` tokens on a side, </s> included
    unreadable: tuple[str, ...] = ()  # sources that could not be read, and why


class EncodedCorpus:
    """All pairs, one after the other: source with </s> at its end, target with <s> before and </s> after.

    A source that is no text is what its reader gives (samples, pixels), without </s>; one that several pairs share is
    there once. `rows` says which row of the corpus each pair was. An `EncodedCorpus` in a folder is read through
    memory-mapped files and never held whole in memory.
    """

    def __init__(self, arrays: dict[str, np.ndarray[Any, Any]], about: CorpusInfo, folder: Path | None = None) -> None:
        self.source: Shaped[np.ndarray, "source_tokens"] = arrays["source"]
        self.target: Int32[np.ndarray, "target_tokens"] = arrays["target"]
        self.source_lengths: Int64[np.ndarray, "pairs"] = arrays["source_lengths"].astype(np.int64)
        self.target_lengths: Int64[np.ndarray, "pairs"] = arrays["target_lengths"].astype(np.int64)
        self.rows: Int64[np.ndarray, "pairs"] = arrays["rows"]
        self.source_starts: Int64[np.ndarray, "pairs"] = arrays["source_starts"]
        self.target_starts = self.target_lengths.cumsum() - self.target_lengths
        self.about, self.folder = about, folder

    @property
    def widths(self) -> Int64[np.ndarray, "pairs"]:
        """What a pair takes of a batch: what the encoder reads or the decoder predicts, whichever is longer.

        Sources of one shape take the same room in every batch, and the target decides.
        """
        written: Int64[np.ndarray, "pairs"] = self.target_lengths - 1  # the target's <s> is never predicted
        if self.about.shape is None:
            written = np.maximum(-(-self.source_lengths // self.about.stride), written)
        return written

    @classmethod
    def build(
        cls,
        pairs: Iterable[Pair],
        tokenizers: TokenizerPair,
        *,
        longest: int | None = None,
        folder: str | os.PathLike[str] | None = None,
        on_bad: Literal["error", "skip"] = "error",
    ) -> EncodedCorpus:
        """Tokenise a corpus as it streams by, into memory or into a new folder.

        A source that cannot be read is an error, or with on_bad="skip" left out and named in `about`.
        """
        if folder is None:
            memory = {name: io.BytesIO() for name in _ARRAYS}
            about = _write(pairs, tokenizers, longest, memory, on_bad)
            kinds = {**_ARRAYS, "source": about.dtype}
            return cls({name: np.frombuffer(memory[name].getbuffer(), kind) for name, kind in kinds.items()}, about)
        folder = Path(folder)
        if folder.exists():
            raise ValueError(f"{folder} exists; load it, or remove it to encode the corpus again")
        with replacing_folder(folder) as unfinished:
            with ExitStack() as opened:
                files = {name: opened.enter_context((unfinished / f"{name}.bin").open("wb")) for name in _ARRAYS}
                about = _write(pairs, tokenizers, longest, files, on_bad)
            sizes = {name: (unfinished / f"{name}.bin").stat().st_size for name in _ARRAYS}
            (unfinished / _INDEX).write_text(json.dumps({"about": asdict(about), "sizes": sizes}), encoding="utf-8")
        return cls.load(folder)

    @classmethod
    def load(cls, folder: str | os.PathLike[str]) -> EncodedCorpus:
        """The corpus that `build` wrote into a folder."""
        folder = Path(folder)
        if not (folder / _INDEX).is_file():
            raise ValueError(f"{folder} holds no encoded corpus ({_INDEX} is missing)")
        index = read_object(folder / _INDEX, again := f"remove {folder} and encode the corpus again", LARGEST)
        if "about" not in index:
            raise ValueError(f"{folder} was encoded by another version of regard; remove it and encode again")
        try:
            lists = {name: tuple(value) for name, value in index["about"].items() if isinstance(value, list)}
            about = CorpusInfo(**{**index["about"], **lists})
            sizes = {name: int(index["sizes"][name]) for name in _ARRAYS}
        except (AttributeError, LookupError, TypeError, ValueError) as error:
            raise DamagedFileError(f"{folder / _INDEX} is damaged: {type(error).__name__}: {error}; {again}") from None
        if about.dtype not in DTYPES:
            raise DamagedFileError(f"{folder / _INDEX} is damaged: its numbers are {about.dtype!r:.40}; {again}")
        arrays = {}
        for name, kind in {**_ARRAYS, "source": about.dtype}.items():
            file, size = folder / f"{name}.bin", sizes[name]
            if not file.exists() or file.stat().st_size != size or size % np.dtype(kind).itemsize:
                raise ValueError(f"{file} should have {size:,} bytes; {again}")
            # numpy maps no empty file
            arrays[name] = np.memmap(file, kind, mode="r") if size else np.empty(0, kind)
        return cls(arrays, about, folder)

    def idf(self, vocabulary: int, formula: IdfFormula = "smoothed") -> Float32[np.ndarray, "vocabulary"]:
        """Inverse document frequency of each source token."""
        text = np.repeat(np.arange(len(self)), self.source_lengths)
        once = np.unique(text * vocabulary + self.source)  # each token of each text
        texts_with_token = np.bincount(once % vocabulary, minlength=vocabulary)
        return inverse_document_frequency(texts_with_token, len(self), formula).astype(np.float32)

    def __reduce__(self) -> tuple[Any, ...]:
        # A worker process opens the same files instead of receiving their content.
        if self.folder is not None:
            return EncodedCorpus.load, (self.folder,)
        return EncodedCorpus, ({name: getattr(self, name) for name in _ARRAYS}, self.about)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, i: int) -> tuple[Shaped[np.ndarray, "source"], Int[np.ndarray, "target"]]:
        """The numbers of pair i, specials included."""
        i = range(len(self))[i]
        source, target = self.source_starts[i], self.target_starts[i]
        return (
            self.source[source : source + self.source_lengths[i]],
            self.target[target : target + self.target_lengths[i]],
        )


def _write(
    pairs: Iterable[Pair],
    tokenizers: TokenizerPair,
    longest: int | None,
    files: dict[str, Any],
    on_bad: Literal["error", "skip"],
) -> CorpusInfo:
    """Append every pair to the files."""
    stream, reader, dropped = iter(pairs), tokenizers.source, 0
    several = reader.kind == "text"  # tokenizers are fast with many at once; pictures and sounds are read one by one
    sources = _Sources(files["source"], reader)
    bad: list[str] = []
    while chunk := list(islice(stream, _CHUNK if several else 1)):
        chunk = _known(chunk, tokenizers.target, bad, on_bad)
        try:
            sizes = sources.read([pair.source for pair in chunk])
        except ValueError as error:
            if on_bad == "error" or several:
                raise
            bad.append(str(error))
            continue
        targets = [[BEGIN, *ids, END] for ids in tokenizers.target.encode_batch([pair.target for pair in chunk])]
        widths = [
            max(0 if reader.shape else -(-size // reader.stride), len(targets[i]) - 1) for i, size in enumerate(sizes)
        ]
        kept = [i for i, width in enumerate(widths) if longest is None or width <= longest]
        dropped += len(chunk) - len(kept)
        _append(files["source_starts"], "<i8", sources.keep(kept))
        _append(files["source_lengths"], "<i4", (sizes[i] for i in kept))
        _append(files["target"], "<i4", chain.from_iterable(targets[i] for i in kept))
        _append(files["target_lengths"], "<i4", (len(targets[i]) for i in kept))
        _append(files["rows"], "<i8", (chunk[i].row for i in kept))
    return CorpusInfo(reader.dtype, reader.shape, reader.stride, dropped, tuple(bad))


def _known(pairs: list[Pair], target: Any, bad: list[str], on_bad: Literal["error", "skip"]) -> list[Pair]:
    """The pairs whose target can be written; of labels, only those there are."""
    if not isinstance(target, LabelSet):
        return pairs
    known = []
    for pair in pairs:
        try:
            target.encode_batch([pair.target])
        except UnknownLabelError as error:
            message = f"{pair.where or f'pair {pair.row + 1}'}: {error}"
            if on_bad == "error":
                raise UnknownLabelError(message) from None
            bad.append(message)
        else:
            known.append(pair)
    return known


class _Sources:
    """Reads sources and writes those that are kept, one after the other; a picture that several pairs share, once."""

    def __init__(self, file: IO[bytes], reader: Any) -> None:
        self.file, self.reader = file, reader
        self.written = 0  # numbers so far
        self.places: dict[str, tuple[int, int]] = {}  # start and size of each that is no text
        self.waiting: list[Any] = []
        self.names: Sequence[str] = []

    def read(self, names: Sequence[str]) -> list[int]:
        """How many numbers each is."""
        self.names, self.waiting = names, []
        if self.reader.kind in ("text", "none"):
            self.waiting = [[*ids, END] for ids in self.reader.encode_batch(names)]
        elif names and names[0] in self.places:
            return [self.places[names[0]][1]]
        else:
            self.waiting = [np.asarray(x, self.reader.dtype).reshape(-1) for x in self.reader.encode_batch(names)]
        return [len(source) for source in self.waiting]

    def keep(self, kept: list[int]) -> list[int]:
        """Write these of those just read, where they are not there yet; where each begins."""
        if not self.waiting:
            return [self.places[self.names[i]][0] for i in kept]
        starts = []
        for i in kept:
            starts.append(self.written)
            self.written += len(self.waiting[i])
            if isinstance(self.waiting[i], np.ndarray):
                self.places[self.names[i]] = (starts[-1], len(self.waiting[i]))
                _append(self.file, self.reader.dtype, self.waiting[i])
        ids = (self.waiting[i] for i in kept if isinstance(self.waiting[i], list))
        _append(self.file, self.reader.dtype, chain.from_iterable(ids))
        return starts


def _append(file: IO[bytes], kind: str, values: Iterable[int] | np.ndarray[Any, Any]) -> None:
    made = values if isinstance(values, np.ndarray) else np.fromiter(values, kind)
    file.write(made.astype(kind, copy=False).tobytes())
