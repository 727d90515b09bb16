"""Pairs as numbers: rows that are encoded together, and words that are looked up, since most were seen before."""

from __future__ import annotations

import json
import os
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from ..files import DamagedFileError, read_object, replacing_folder
from ..special_tokens import BEGIN, END
from .tokenizer_pair import LabelSet, UnknownLabelError, inverse_document_frequency

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from jaxtyping import Bool, Float32, Int, Int32, Int64, Shaped

    from .rows import Pair
    from .tokenizer_pair import IdfFormula, TokenizerPair

    FlatIds = tuple[Int32[np.ndarray, "tokens"], Int64[np.ndarray, "texts"]]
    Arrays = dict[str, np.ndarray[Any, Any]]

CHUNK = 8192
MOST_CHARACTERS = 1 << 23
"""The cache is emptied when its words have more. Words of 7 letters then take about 0.35 GB with their ids."""
MEAN_LENGTH = 32  # characters of the words of a text, at most


ARRAYS = {
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


@dataclass
class CorpusInfo:
    """Metadata of the arrays; `shape` and `stride` are those of the source's reader."""

    dtype: str = "<i4"
    shape: Sequence[int] | None = None
    stride: int = 1
    dropped: int = 0  # pairs that had more than `longest` tokens on a side, </s> included
    unreadable: list[str] = field(default_factory=list)  # sources that could not be read, and why

    @property
    def types(self) -> dict[str, str]:
        """The numbers of each array."""
        return {**ARRAYS, "source": self.dtype}


def encoded_arrays(
    pairs: Iterable[Pair],
    tokenizers: TokenizerPair,
    longest: int | None,
    on_bad: Literal["error", "skip"],
    about: CorpusInfo,
    processes: int = 1,
) -> Iterator[Arrays]:
    """The arrays of the pairs that have no more than `longest` tokens on a side, some thousand pairs at a time.

    `source_starts` counts from the first pair on. A source or a label that nobody knows is an error, or with
    on_bad="skip" left out; `about` counts what is left out. Texts may be encoded by several processes.
    """
    is_text = tokenizers.source.kind in ("text", "none")
    stream = iter(pairs)
    chunks = iter(lambda: list(islice(stream, CHUNK if is_text else 1)), [])  # pictures and sounds one by one
    known = (_with_known_labels(chunk, tokenizers.target, on_bad, about.unreadable) for chunk in chunks)
    written = 0
    if is_text:
        for count, arrays in _encode_chunks(known, TextEncoder(tokenizers, longest), processes):
            about.dropped += count - len(arrays["rows"])
            arrays["source_starts"] += written
            written += len(arrays["source"])
            yield _typed(arrays, about)
        return
    places: dict[str, tuple[int, int]] = {}
    for chunk in known:
        try:
            arrays = _encode_media(chunk, tokenizers, longest, written, places)
        except ValueError as error:
            if on_bad == "error":
                raise
            about.unreadable.append(str(error))
            continue
        about.dropped += len(chunk) - len(arrays["rows"])
        written += len(arrays["source"])
        yield _typed(arrays, about)


def _typed(arrays: Arrays, about: CorpusInfo) -> Arrays:
    return {name: np.asarray(arrays[name], kind) for name, kind in about.types.items()}


def _with_known_labels(pairs: list[Pair], target: Any, on_bad: Literal["error", "skip"], bad: list[str]) -> list[Pair]:
    """Those whose target can be written; of labels, only those there are."""
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


if TYPE_CHECKING:
    Texts = tuple[list[str], list[str], list[int]]
    """Sources, targets and rows: they go to another process sooner than pairs do."""


class TextEncoder:
    """Texts as numbers. Subscripted, since a DataLoader asks for its items so."""

    def __init__(self, tokenizers: TokenizerPair, longest: int | None) -> None:
        self.tokenizers, self.longest = tokenizers, longest

    def __getitem__(self, texts: Texts) -> tuple[int, Arrays]:
        """How many pairs there were, and the arrays of those that are short enough; `source_starts` from 0."""
        sources, targets, rows = texts
        source, source_lengths = _flat(self.tokenizers.source, sources)
        target, target_lengths = _flat(self.tokenizers.target, targets)
        # What the encoder reads ends in </s>, and what the decoder predicts too.
        kept = np.ones(len(rows), bool)
        if self.longest is not None:
            kept = np.maximum(source_lengths, target_lengths) + 1 <= self.longest
        if not kept.all():
            source, target = source[np.repeat(kept, source_lengths)], target[np.repeat(kept, target_lengths)]
            source_lengths, target_lengths = source_lengths[kept], target_lengths[kept]
        lengths = source_lengths + 1
        return len(rows), {
            "source": _framed(source, source_lengths, []),
            "target": _framed(target, target_lengths, [BEGIN]),
            "source_starts": lengths.cumsum() - lengths,
            "source_lengths": lengths,
            "target_lengths": target_lengths + 2,
            "rows": np.array(rows, np.int64)[kept],
        }


def _encode_chunks(chunks: Iterable[list[Pair]], encoder: TextEncoder, processes: int) -> Iterator[tuple[int, Arrays]]:
    """What the encoder makes of each chunk, in order; several processes are a few chunks ahead of what is taken."""
    texts = (([p.source for p in chunk], [p.target for p in chunk], [p.row for p in chunk]) for chunk in chunks)
    if processes == 1:
        return map(encoder.__getitem__, texts)
    from torch import Generator
    from torch.utils.data import DataLoader

    how: Any = {"batch_size": None, "collate_fn": _as_it_is, "worker_init_fn": _begin_worker}
    # Without a generator it draws from the one that models are initialised from.
    return iter(DataLoader(encoder, sampler=texts, num_workers=processes, generator=Generator(), **how))  # type: ignore[arg-type]


def _as_it_is(item: Any) -> Any:  # a lambda could not be sent to a process that is not forked
    return item


def _begin_worker(worker: int) -> None:
    os.environ["TOKENIZERS_PARALLELISM"] = "false"


def _encode_media(
    pairs: list[Pair],
    tokenizers: TokenizerPair,
    longest: int | None,
    written: int,
    places: dict[str, tuple[int, int]],
) -> Arrays:
    """A picture or a sound and its text, or nothing. `places` is where each source that was read begins, and its size;
    one that several pairs share is there once."""
    empty = dict.fromkeys(ARRAYS, np.empty(0, np.int64))
    if not pairs:
        return empty
    (pair,), reader, values = pairs, tokenizers.source, empty["source"]
    name = pair.source
    if name not in places:
        values = np.asarray(reader.encode_batch([name])[0], reader.dtype).reshape(-1)
    start, size = places.get(name, (written, len(values)))
    target, lengths = _flat(tokenizers.target, [pair.target])
    width = max(0 if reader.shape else -(-size // reader.stride), int(lengths[0]) + 1)  # its </s> is predicted
    if longest is not None and width > longest:
        return empty
    places[name] = start, size
    return {
        "source": values,
        "target": _framed(target, lengths, [BEGIN]),
        "source_starts": np.array([start]),
        "source_lengths": np.array([size]),
        "target_lengths": lengths + 2,
        "rows": np.array([pair.row]),
    }


def _flat(side: Any, texts: Sequence[str]) -> FlatIds:
    """The ids of texts; a tokenizer looks up its words."""
    return side.encode_flat(texts) if hasattr(side, "encode_flat") else flat_ids(side.encode_batch(texts))


def _framed(
    ids: Int32[np.ndarray, "tokens"], lengths: Int64[np.ndarray, "texts"], before: list[int]
) -> Int32[np.ndarray, "all_tokens"]:
    """Each text with these tokens before it and </s> after it."""
    extra = len(before) + 1
    ends = (lengths + extra).cumsum()
    framed = np.empty(len(ids) + extra * len(lengths), np.int32)
    inside: Bool[np.ndarray, "all_tokens"] = np.ones(len(framed), bool)
    framed[ends - 1], inside[ends - 1] = END, False
    for place, token in enumerate(before):
        starts = ends - lengths - extra + place
        framed[starts], inside[starts] = token, False
    framed[inside] = ids
    return framed


def flat_ids(lists: Sequence[Sequence[int]]) -> FlatIds:
    """Lists of ids, one after the other in one array, and the length of each."""
    lengths = np.fromiter(map(len, lists), np.int64, len(lists))
    return np.fromiter(chain.from_iterable(lists), np.int32, int(lengths.sum())), lengths


class WordCache:
    """The ids of words, for a tokenizer that encodes each word of a text alone (`Tokenizer.encodes_words_alone`).

    The words of a text are what single spaces separate. A text with other spaces in it (two together, one at an end, or
    `space`, the character that stands for one in a vocabulary) counts as one word, and so does one with few spaces: its
    words would not occur again, in Chinese or Thai for example.
    """

    def __init__(self, encode_batch: Callable[[Sequence[str]], list[list[int]]], space: str) -> None:
        self._encode_batch, self._space = encode_batch, space
        self._ids: dict[str, list[int]] = {}
        self._characters = 0

    def encode(self, texts: Sequence[str]) -> FlatIds:
        """What `flat_ids(encode_batch(texts))` gives."""
        if not texts:
            return flat_ids([])
        if self._characters > MOST_CHARACTERS:
            self._ids, self._characters = {}, 0
        parts = list(map(self._words, texts))
        words, ids = list(chain.from_iterable(parts)), self._ids
        new = list(set(words).difference(ids))
        try:
            ids.update(zip(new, self._encode_batch(new), strict=True))
        except (TypeError, ValueError):
            self._encode_batch(texts)  # the same error, with the place in the text instead of that in a word
            raise
        self._characters += sum(map(len, new))
        flat, of_words = flat_ids([ids[word] for word in words])
        ends = np.fromiter(map(len, parts), np.int64, len(parts)).cumsum()
        return flat, np.diff(of_words.cumsum()[ends - 1], prepend=0)

    def _words(self, text: str) -> list[str]:
        """What single spaces separate, if nothing else does, and if they are short."""
        words = text.split(" ")
        is_regular = "" not in words and self._space not in text and len(text) <= MEAN_LENGTH * len(words)
        return words if is_regular else [text]


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
        processes: int = 1,
    ) -> EncodedCorpus:
        """Tokenise a corpus as it streams by, into memory or into a new folder.

        A source that cannot be read is an error, or with on_bad="skip" left out and named in `about`.
        """
        about = CorpusInfo(tokenizers.source.dtype, tokenizers.source.shape, tokenizers.source.stride)
        chunks = encoded_arrays(pairs, tokenizers, longest, on_bad, about, processes)
        if folder is None:
            content = {name: bytearray() for name in ARRAYS}
            for arrays in chunks:
                for name, array in arrays.items():
                    content[name] += array.data.cast("B") if array.size else b""
            return cls({name: np.frombuffer(content[name], kind) for name, kind in about.types.items()}, about)
        folder = Path(folder)
        if folder.exists():
            raise ValueError(f"{folder} exists; load it, or remove it to encode the corpus again")
        with replacing_folder(folder) as unfinished:
            write_folder(unfinished, chunks, about)
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
            about = CorpusInfo(**index["about"])
            sizes = {name: int(index["sizes"][name]) for name in ARRAYS}
        except (AttributeError, LookupError, TypeError, ValueError) as error:
            raise DamagedFileError(f"{folder / _INDEX} is damaged: {type(error).__name__}: {error}; {again}") from None
        if about.dtype not in DTYPES:
            raise DamagedFileError(f"{folder / _INDEX} is damaged: its numbers are {about.dtype!r:.40}; {again}")
        arrays = {}
        for name, kind in about.types.items():
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
        return EncodedCorpus, ({name: getattr(self, name) for name in ARRAYS}, self.about)

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


def write_folder(folder: Path, each: Iterable[Arrays], about: CorpusInfo) -> None:
    """What `EncodedCorpus.load` reads. `about` is written last: it may count what `each` leaves out."""
    with ExitStack() as opened:
        files = {name: opened.enter_context((folder / f"{name}.bin").open("wb")) for name in ARRAYS}
        for arrays in each:
            for name, file in files.items():
                file.write(np.ascontiguousarray(arrays[name]).data)
    sizes = {name: (folder / f"{name}.bin").stat().st_size for name in ARRAYS}
    (folder / _INDEX).write_text(json.dumps({"about": asdict(about), "sizes": sizes}), encoding="utf-8")
