"""Pairs as numbers: rows that are encoded together, and words that are looked up, since most were seen before."""

from __future__ import annotations

import json
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from itertools import chain, islice, pairwise
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from ..files import DamagedFileError, read_object, replacing_folder
from ..messages import count_of
from ..special_tokens import BEGIN, END, UNKNOWN
from .tokenizer import SPACE, Tokenizer
from .tokenizer_pair import LabelSet, UnknownLabelError, inverse_document_frequency

if TYPE_CHECKING:
    import os
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
    ends: Sequence[int] = ()  # the row after the last one of each corpus, where there are several

    @property
    def types(self) -> dict[str, str]:
        """The numbers of each array."""
        return {**ARRAYS, "source": self.dtype}


@dataclass(frozen=True)
class RowChunk:
    """Sources and targets, the row of the corpus that each pair is, and `place(i)`, the file and line of pair i."""

    sources: Sequence[str]
    targets: Sequence[str]
    rows: Sequence[int] | Int64[np.ndarray, "rows"]
    place: Callable[[int], str]

    def select(self, indices: Sequence[int]) -> RowChunk:
        rows = np.asarray(self.rows, np.int64)[np.asarray(indices, np.int64)]
        sources, targets = ([side[i] for i in indices] for side in (self.sources, self.targets))
        return RowChunk(sources, targets, rows, lambda i: self.place(indices[i]))

    def pieces(self) -> Iterator[RowChunk]:
        """So many rows at a time as are encoded together."""
        count = len(self.sources)
        return (self.select(range(begin, min(begin + CHUNK, count))) for begin in range(0, count, CHUNK))


def row_chunks(pairs: Iterable[Pair], size: int = CHUNK) -> Iterator[RowChunk]:
    """Pairs, several at a time."""
    stream = iter(pairs)
    while chunk := list(islice(stream, size)):
        yield RowChunk(
            [pair.source for pair in chunk],
            [pair.target for pair in chunk],
            [pair.row for pair in chunk],
            lambda i, chunk=chunk: chunk[i].where or f"pair {chunk[i].row + 1}",  # type: ignore[misc]
        )


def encoded_arrays(
    chunks: Iterable[RowChunk],
    tokenizers: TokenizerPair,
    longest: int | None,
    on_bad: Literal["error", "skip"],
    about: CorpusInfo,
) -> Iterator[Arrays]:
    """The arrays of the pairs of each chunk that have no more than `longest` tokens on a side.

    `source_starts` counts from the first chunk on. A source or a label that nobody knows is an error, or with
    on_bad="skip" left out; `about` counts what is left out.
    """
    written = 0
    places: dict[str, tuple[int, int]] = {}
    for chunk in chunks:
        known = _with_known_labels(chunk, tokenizers.target, on_bad, about.unreadable)
        if tokenizers.source.kind in ("text", "none"):
            arrays = _encode_texts(known, tokenizers, longest)
            arrays["source_starts"] += written
        else:  # pictures and sounds, one by one
            try:
                arrays = _encode_media(known, tokenizers, longest, written, places)
            except ValueError as error:
                if on_bad == "error":
                    raise
                about.unreadable.append(str(error))
                continue
        about.dropped += len(known.sources) - len(arrays["rows"])
        written += len(arrays["source"])
        yield {name: np.asarray(arrays[name], kind) for name, kind in about.types.items()}


def _with_known_labels(chunk: RowChunk, target: Any, on_bad: Literal["error", "skip"], bad: list[str]) -> RowChunk:
    """The rows whose target can be written; of labels, only those there are."""
    if not isinstance(target, LabelSet):
        return chunk
    known = []
    for i, label in enumerate(chunk.targets):
        try:
            target.encode_batch([label])
        except UnknownLabelError as error:
            message = f"{chunk.place(i)}: {error}"
            if on_bad == "error":
                raise UnknownLabelError(message) from None
            bad.append(message)
        else:
            known.append(i)
    return chunk if len(known) == len(chunk.targets) else chunk.select(known)


def _encode_texts(chunk: RowChunk, tokenizers: TokenizerPair, longest: int | None) -> Arrays:
    """`source_starts` from 0."""
    source, source_lengths = _flat(tokenizers.source, chunk.sources)
    target, target_lengths = _flat(tokenizers.target, chunk.targets)
    # What the encoder reads ends in </s>, and what the decoder predicts too.
    kept = np.ones(len(source_lengths), bool)
    if longest is not None:
        kept = np.maximum(source_lengths, target_lengths) + 1 <= longest
    if not kept.all():
        source, target = source[np.repeat(kept, source_lengths)], target[np.repeat(kept, target_lengths)]
        source_lengths, target_lengths = source_lengths[kept], target_lengths[kept]
    lengths = source_lengths + 1
    return {
        "source": _framed(source, source_lengths, []),
        "target": _framed(target, target_lengths, [BEGIN]),
        "source_starts": lengths.cumsum() - lengths,
        "source_lengths": lengths,
        "target_lengths": target_lengths + 2,
        "rows": np.asarray(chunk.rows, np.int64)[kept],
    }


def _encode_media(
    chunk: RowChunk,
    tokenizers: TokenizerPair,
    longest: int | None,
    written: int,
    places: dict[str, tuple[int, int]],
) -> Arrays:
    """A picture or a sound and its text, or nothing. `places` is where each source that was read begins, and its size;
    one that several pairs share is there once."""
    empty = dict.fromkeys(ARRAYS, np.empty(0, np.int64))
    if not chunk.sources:
        return empty
    (name,), reader, values = chunk.sources, tokenizers.source, empty["source"]
    if name not in places:
        values = np.asarray(reader.encode_batch([name])[0], reader.dtype).reshape(-1)
    start, size = places.get(name, (written, len(values)))
    target, lengths = _flat(tokenizers.target, chunk.targets)
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
        "rows": np.asarray(chunk.rows, np.int64),
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
        self._clear()

    def _clear(self) -> None:
        self._numbers = _WordNumbers()
        self._ids: Int32[np.ndarray, "tokens"] = np.empty(0, np.int32)
        self._starts: Int64[np.ndarray, "words"] = np.empty(0, np.int64)
        self._lengths: Int64[np.ndarray, "words"] = np.empty(0, np.int64)

    def encode(self, texts: Sequence[str]) -> FlatIds:
        """What `flat_ids(encode_batch(texts))` gives."""
        if not texts:
            return flat_ids([])
        if self._numbers.characters > MOST_CHARACTERS:
            self._clear()
        joined = " ".join(texts)
        if _is_regular(joined, self._space) and all(map(_has_short_words, texts)):  # the common case
            words = joined.split(" ")
            counts = np.fromiter((text.count(" ") + 1 for text in texts), np.int64, len(texts))
        else:
            split = [_is_regular(text, self._space) and _has_short_words(text) for text in texts]
            parts = [text.split(" ") if cut else [text] for text, cut in zip(texts, split, strict=True)]
            words = list(chain.from_iterable(parts))
            counts = np.fromiter(map(len, parts), np.int64, len(parts))
        numbers = np.fromiter(map(self._numbers.__getitem__, words), np.int64, len(words))
        if self._numbers.new:
            try:
                self._add(self._numbers.new)
            except (TypeError, ValueError):
                self._clear()
                self._encode_batch(texts)  # the same error, with the place in the text instead of that in a word
                raise
        lengths = self._lengths[numbers]
        # Token t of the result is token t − (where its word begins in the result) + (where it begins in the table).
        shifts = np.repeat(self._starts[numbers] - lengths.cumsum() + lengths, lengths)
        return self._ids[np.arange(len(shifts)) + shifts], np.add.reduceat(lengths, counts.cumsum() - counts)

    def _add(self, words: list[str]) -> None:
        ids, lengths = flat_ids(self._encode_batch(words))
        self._numbers.new = []
        self._starts = np.concatenate([self._starts, len(self._ids) + lengths.cumsum() - lengths])
        self._lengths = np.concatenate([self._lengths, lengths])
        self._ids = np.concatenate([self._ids, ids])


class _WordNumbers(dict[str, int]):
    """Numbers words in the order in which they are first looked up; `new` has those that the table lacks."""

    def __init__(self) -> None:
        super().__init__()
        self.new: list[str] = []
        self.characters = 0

    def __missing__(self, word: str) -> int:
        number = self[word] = len(self)
        self.new.append(word)
        self.characters += len(word)
        return number


def _has_short_words(text: str) -> bool:
    return len(text) <= MEAN_LENGTH * (text.count(" ") + 1)


def _is_regular(text: str, space: str) -> bool:
    """Whether single spaces separate its words; of texts joined with spaces, whether this holds for all of them."""
    return bool(text) and "  " not in text and space not in text and text[0] != " " != text[-1]


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
        chunks = row_chunks(pairs, CHUNK if tokenizers.source.kind in ("text", "none") else 1)
        if folder is None:
            return cls.build_chunks(chunks, tokenizers, longest=longest, on_bad=on_bad)
        folder = Path(folder)
        if folder.exists():
            raise ValueError(f"{folder} exists; load it, or remove it to encode the corpus again")
        about = CorpusInfo(tokenizers.source.dtype, tokenizers.source.shape, tokenizers.source.stride)
        with replacing_folder(folder) as unfinished:
            write_folder(unfinished, encoded_arrays(chunks, tokenizers, longest, on_bad, about), about)
        return cls.load(folder)

    @classmethod
    def build_chunks(
        cls,
        chunks: Iterable[RowChunk],
        tokenizers: TokenizerPair,
        *,
        longest: int | None = None,
        on_bad: Literal["error", "skip"] = "error",
    ) -> EncodedCorpus:
        """Into memory, of rows that come several at a time; of pictures and sounds, one at a time."""
        about = CorpusInfo(tokenizers.source.dtype, tokenizers.source.shape, tokenizers.source.stride)
        content = {name: bytearray() for name in ARRAYS}
        for arrays in encoded_arrays(chunks, tokenizers, longest, on_bad, about):
            for name, array in arrays.items():
                content[name] += array.data.cast("B") if array.size else b""
        return cls({name: np.frombuffer(content[name], kind) for name, kind in about.types.items()}, about)

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

    def repeats(self, weights: Sequence[int]) -> Int64[np.ndarray, "pairs"]:
        """The weight of the corpus that each pair belongs to."""
        ends = self.about.ends
        if len(weights) != len(ends):
            raise ValueError(f"{count_of(len(weights), 'weight')} for {count_of(len(ends), 'corpus', 'corpora')}")
        repeats: Int64[np.ndarray, "pairs"] = np.array(weights)[np.searchsorted(ends, self.rows, side="right")]
        return repeats

    def arrays(self) -> Arrays:
        """What `build` writes, by name."""
        return {name: getattr(self, name).astype(kind, copy=False) for name, kind in self.about.types.items()}

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


MOST_WORDS = 1 << 20  # that are remembered
ROOM = 1.5  # how much longer a text may become; if it becomes longer, it stays as it was


class BpeDropout:
    """Cuts the words of encoded pairs into other pieces.

    At every step of the algorithm each merge that could be applied is left out with probability `rate`; the first of
    those that remain in the order of the vocabulary is applied, and a word is done when none remains. The numbers that
    a pair comes with decide its pieces, and nothing else: a resumed run, another process or another number of processes
    cuts it alike.

    `longest` is the maximum number of tokens of a side.
    """

    def __init__(self, tokenizers: TokenizerPair, rate: float, longest: int) -> None:
        if not 0 < rate < 1:
            raise ValueError(f"BPE-dropout leaves out a share of the merges between 0 and 1, got {rate}")
        self.longest = longest
        self._source = _Merges(tokenizers.source, rate) if isinstance(tokenizers.source, Tokenizer) else None
        self._target = _Merges(tokenizers.target, rate) if isinstance(tokenizers.target, Tokenizer) else None

    def room(self, widths: Int64[np.ndarray, "pairs"]) -> Int64[np.ndarray, "pairs"]:
        """How many tokens pairs of these widths may take."""
        longer = np.minimum((widths * ROOM).astype(np.int64), self.longest)
        room: Int64[np.ndarray, "pairs"] = np.maximum(widths, longer)
        return room

    def segmented(
        self, encoded: EncodedCorpus, pairs: Sequence[int] | Int64[np.ndarray, "batch"], seeds: Sequence[Sequence[int]]
    ) -> EncodedCorpus:
        """A corpus of these pairs alone, cut anew; `seeds` has the numbers that decide how, for each."""
        room = self.room(encoded.widths[pairs])
        sources, targets = [], []
        for pair, most, seed in zip(pairs, room.tolist(), seeds, strict=True):
            source, target = encoded[int(pair)]
            random = Random(" ".join(map(str, seed)))
            if self._source is not None:
                ids = self._source.cut_again(source[:-1].tolist(), most - 1, random)
                source = np.array([*ids, END], np.int32)
            if self._target is not None:
                ids = self._target.cut_again(target[1:-1].tolist(), most - 1, random)
                target = np.array([BEGIN, *ids, END], np.int32)
            sources.append(source)
            targets.append(target)
        lengths = np.array([len(source) for source in sources], np.int64)
        arrays = {
            "source": np.concatenate([*sources, np.empty(0, encoded.source.dtype)]),
            "target": np.concatenate([*targets, np.empty(0, np.int32)]),
            "source_starts": lengths.cumsum() - lengths,
            "source_lengths": lengths,
            "target_lengths": np.array([len(target) for target in targets], np.int64),
            "rows": encoded.rows[pairs],
        }
        return EncodedCorpus(arrays, encoded.about)


class _Merges:
    """The merges of one vocabulary."""

    def __init__(self, tokenizer: Tokenizer, rate: float) -> None:
        model: dict[str, Any] = json.loads(tokenizer.to_json())["model"]
        if model["type"] != "BPE" or tokenizer.plugin or not tokenizer.encodes_words_alone:
            raise ValueError(f'tokenizer.dropout leaves out merges of "bpe"; the vocabulary is of type {model["type"]}')
        self.tokenizer, self.rate = tokenizer, rate
        self.ids: dict[str, int] = model["vocab"]
        self.pieces = {number: piece for piece, number in self.ids.items() if number != UNKNOWN}
        self.merges = {
            (self.ids[left], self.ids[right]): (rank, self.ids[left + right])
            for rank, (left, right) in enumerate(model["merges"])
        }
        self._parts: dict[str, list[list[int]] | None] = {}  # of words that were cut before

    def _split(self, word: str) -> list[list[int]] | None:
        """The parts of a word that pieces do not cross, as characters; None where one has no id of its own."""
        if word not in self._parts:
            if len(self._parts) == MOST_WORDS:
                self._parts.clear()
            known = set(word) <= self.ids.keys()
            parts = self.tokenizer.split_word(word) if known else []
            self._parts[word] = [[self.ids[character] for character in part] for part in parts] if known else None
        return self._parts[word]

    def cut_again(self, ids: list[int], most: int, random: Random) -> list[int]:
        """Other pieces for the same text; the same where they would be more than `most`. Tags and <unk> stay."""
        words: list[list[int]] = []  # and tags and <unk>, each alone
        for number in ids:
            piece = self.pieces.get(number, "")
            if not words or not piece or piece.startswith(SPACE) or words[-1][-1] not in self.pieces:
                words.append([])
            words[-1].append(number)
        cut: list[int] = []
        for each in words:
            word = "".join(self.pieces.get(number, "") for number in each)
            # Without a space before it, it is the rest of a word with an <unk>.
            parts = self._split(word) if word.startswith(SPACE) else None
            cut += each if parts is None else [number for part in parts for number in self._merged(list(part), random)]
        return cut if len(cut) <= most else ids

    def _merged(self, symbols: list[int], random: Random) -> list[int]:
        merges, rate, draw = self.merges, self.rate, random.random
        while len(symbols) > 1:
            best, place, merged = len(merges), -1, 0
            for i, pair in enumerate(pairwise(symbols)):
                merge = merges.get(pair)
                # A merge that would not be applied anyway need not be drawn.
                if merge is not None and merge[0] < best and draw() >= rate:
                    best, place, merged = merge[0], i, merge[1]
            if place < 0:
                break
            symbols[place : place + 2] = [merged]
        return symbols
