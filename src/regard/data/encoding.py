"""Pairs as numbers: rows that are encoded together, and words that are looked up, since most were seen before."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from .batch import BEGIN, END
from .label_set import LabelSet, UnknownLabelError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from jaxtyping import Bool, Int32, Int64

    from .pair import Pair
    from .tokenizer_pair import TokenizerPair

    FlatIds = tuple[Int32[np.ndarray, "tokens"], Int64[np.ndarray, "texts"]]
    Arrays = dict[str, np.ndarray[Any, Any]]

CHUNK = 8192
MOST_CHARACTERS = 1 << 23
"""The cache is emptied when its words have more. Words of 7 letters then take about 0.35 GB with their ids."""
MEAN_LENGTH = 32  # characters of the words of a text, at most


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


def known_targets(chunk: RowChunk, target: Any, bad: list[str], on_bad: Literal["error", "skip"]) -> RowChunk:
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


def encode_chunk(chunk: RowChunk, tokenizers: TokenizerPair, longest: int | None) -> Arrays:
    """The arrays of the pairs that have no more than `longest` tokens on a side; `source_starts` from 0.

    For sources that are text, or nothing.
    """
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


def _flat(side: Any, texts: Sequence[str]) -> FlatIds:
    """The ids of texts; a tokenizer looks up its words."""
    return side.encode_flat(texts) if hasattr(side, "encode_flat") else flat_ids(side.encode_batch(texts))


class MediaEncoder:
    """Encodes pairs of a picture or a sound and a text, one at a time; a source that several share is read once."""

    def __init__(self, reader: Any) -> None:
        self.reader = reader
        self._written = 0  # numbers so far
        self._places: dict[str, tuple[int, int]] = {}  # where each source begins, and its size

    def encode_chunk(self, chunk: RowChunk, tokenizers: TokenizerPair, longest: int | None) -> Arrays:
        """The arrays of a chunk of one pair, or of none; empty where the pair is longer than `longest`."""
        none = np.empty(0, np.int64)
        empty = dict.fromkeys(("source", "target", "source_starts", "source_lengths", "target_lengths", "rows"), none)
        if not chunk.sources:
            return empty
        (name,), reader, values = chunk.sources, self.reader, none
        if name not in self._places:
            values = np.asarray(reader.encode_batch([name])[0], reader.dtype).reshape(-1)
        start, size = self._places.get(name, (self._written, len(values)))
        target, lengths = _flat(tokenizers.target, chunk.targets)
        width = max(0 if reader.shape else -(-size // reader.stride), int(lengths[0]) + 1)  # its </s> is predicted
        if longest is not None and width > longest:
            return empty
        self._places[name] = start, size
        self._written += len(values)
        return {
            "source": values,
            "target": _framed(target, lengths, [BEGIN]),
            "source_starts": np.array([start]),
            "source_lengths": np.array([size]),
            "target_lengths": lengths + 2,
            "rows": np.asarray(chunk.rows, np.int64),
        }


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
    `space`, the character that stands for one in a vocabulary) is encoded as a whole, and so is one with few spaces:
    its words would not occur again, in Chinese or Thai for example.
    """

    def __init__(self, encode_batch: Callable[[Sequence[str]], list[list[int]]], space: str) -> None:
        self._encode_batch, self._space = encode_batch, space
        self._clear()

    def _clear(self) -> None:
        self._numbers = _WordNumbers()
        self.characters = 0
        """Of all words in the cache."""
        self._ids: Int32[np.ndarray, "tokens"] = np.empty(0, np.int32)
        self._starts: Int64[np.ndarray, "words"] = np.empty(0, np.int64)
        self._lengths: Int64[np.ndarray, "words"] = np.empty(0, np.int64)

    def encode(self, texts: Sequence[str]) -> FlatIds:
        """What `flat_ids(encode_batch(texts))` gives."""
        if not texts:
            return flat_ids([])
        if self.characters > MOST_CHARACTERS:
            self._clear()
        try:
            return self._encode(texts)
        except (TypeError, ValueError):
            self._clear()
            self._encode_batch(texts)  # the same error, with the place in the text instead of that in a word
            raise

    def _encode(self, texts: Sequence[str]) -> FlatIds:
        if _is_regular(" ".join(texts), self._space) and all(map(_has_short_words, texts)):
            return self._look_up(texts)
        in_words = [_is_regular(text, self._space) and _has_short_words(text) for text in texts]
        encoded = [
            self._look_up([text for text, split in zip(texts, in_words, strict=True) if split]),
            flat_ids(self._encode_batch([text for text, split in zip(texts, in_words, strict=True) if not split])),
        ]
        ids, lengths = (np.concatenate(parts) for parts in zip(*encoded, strict=True))
        order = np.argsort(np.argsort(~np.array(in_words), kind="stable"))  # where each text is among those encoded
        starts = lengths.cumsum() - lengths
        return _join(ids, starts[order], lengths[order]), lengths[order]

    def _look_up(self, texts: Sequence[str]) -> FlatIds:
        """The ids of texts whose words are short and separated by single spaces."""
        if not texts:
            return flat_ids([])
        words = " ".join(texts).split(" ")
        counts = np.fromiter((text.count(" ") + 1 for text in texts), np.int64, len(texts))
        numbers = np.fromiter(map(self._numbers.__getitem__, words), np.int64, len(words))
        if self._numbers.new:
            self._add(self._numbers.new)
        lengths = self._lengths[numbers]
        ids = _join(self._ids, self._starts[numbers], lengths)
        return ids, np.add.reduceat(lengths, counts.cumsum() - counts)

    def _add(self, words: list[str]) -> None:
        ids, lengths = flat_ids(self._encode_batch(words))
        self._numbers.new = []
        self.characters += sum(map(len, words))
        self._starts = np.concatenate([self._starts, len(self._ids) + lengths.cumsum() - lengths])
        self._lengths = np.concatenate([self._lengths, lengths])
        self._ids = np.concatenate([self._ids, ids])


class _WordNumbers(dict[str, int]):
    """Numbers words in the order in which they are first looked up; `new` has those that the table lacks."""

    def __init__(self) -> None:
        super().__init__()
        self.new: list[str] = []

    def __missing__(self, word: str) -> int:
        number = self[word] = len(self)
        self.new.append(word)
        return number


def _join(
    ids: Int32[np.ndarray, "all_tokens"], starts: Int64[np.ndarray, "parts"], lengths: Int64[np.ndarray, "parts"]
) -> Int32[np.ndarray, "tokens"]:
    """Parts of an array, one after the other."""
    # Token t of the result is token t − (where its part begins in the result) + (where it begins in `ids`).
    shifts = np.repeat(starts - lengths.cumsum() + lengths, lengths)
    joined: Int32[np.ndarray, "tokens"] = ids[np.arange(len(shifts)) + shifts]
    return joined


def _has_short_words(text: str) -> bool:
    return len(text) <= MEAN_LENGTH * (text.count(" ") + 1)


def _is_regular(text: str, space: str) -> bool:
    """Whether single spaces separate its words; of texts joined with spaces, whether this holds for all of them."""
    return bool(text) and "  " not in text and space not in text and text[0] != " " != text[-1]
