"""Encodes a corpus by looking up its words: most of them were seen before."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from jaxtyping import Int32, Int64

    FlatIds = tuple[Int32[np.ndarray, "tokens"], Int64[np.ndarray, "texts"]]

MOST_WORDS = 1 << 20  # the cache is emptied when it has more


def flat_ids(lists: Sequence[Sequence[int]]) -> FlatIds:
    """Lists of ids, one after the other in one array, and the length of each."""
    lengths = np.fromiter(map(len, lists), np.int64, len(lists))
    return np.fromiter(chain.from_iterable(lists), np.int32, int(lengths.sum())), lengths


class WordCache:
    """The ids of words, for a tokenizer that encodes each word of a text alone (`Tokenizer.encodes_words_alone`).

    The words of a text are what single spaces separate. A text with other spaces in it (two together, one at an end, or
    `space`, the character that stands for one in a vocabulary) is looked up and encoded as a whole.
    """

    def __init__(self, encode_batch: Callable[[Sequence[str]], list[list[int]]], space: str) -> None:
        self._encode_batch, self._space = encode_batch, space
        self._numbers = _WordNumbers()
        self._ids: Int32[np.ndarray, "tokens"] = np.empty(0, np.int32)
        self._starts: Int64[np.ndarray, "words"] = np.empty(0, np.int64)
        self._lengths: Int64[np.ndarray, "words"] = np.empty(0, np.int64)

    def encode(self, texts: Sequence[str]) -> FlatIds:
        """What `flat_ids(encode_batch(texts))` gives."""
        if not texts:
            return flat_ids([])
        if len(self._numbers) > MOST_WORDS:
            self._clear()
        words, counts = _words(texts, self._space)
        numbers = np.fromiter(map(self._numbers.__getitem__, words), np.int64, len(words))
        if self._numbers.new:
            self._add(self._numbers.new, texts)
        lengths = self._lengths[numbers]
        ends = lengths.cumsum()
        # Token t of the result is token t − (where its word begins in the result) + (where it begins in the table).
        shifts = np.repeat(self._starts[numbers] - ends + lengths, lengths)
        ids = self._ids[np.arange(len(shifts)) + shifts]
        return ids, np.add.reduceat(lengths, counts.cumsum() - counts)

    def _add(self, words: list[str], texts: Sequence[str]) -> None:
        try:
            ids, lengths = flat_ids(self._encode_batch(words))
        except (TypeError, ValueError):
            self._clear()
            self._encode_batch(texts)  # the same error, with the place in the text instead of that in a word
            raise
        self._numbers.new = []
        self._starts = np.concatenate([self._starts, len(self._ids) + lengths.cumsum() - lengths])
        self._lengths = np.concatenate([self._lengths, lengths])
        self._ids = np.concatenate([self._ids, ids])

    def _clear(self) -> None:
        self._numbers = _WordNumbers()
        self._ids, self._starts, self._lengths = self._ids[:0], self._starts[:0], self._lengths[:0]


class _WordNumbers(dict[str, int]):
    """Numbers words in the order in which they are first looked up; `new` has those that the table lacks."""

    def __init__(self) -> None:
        super().__init__()
        self.new: list[str] = []

    def __missing__(self, word: str) -> int:
        number = self[word] = len(self)
        self.new.append(word)
        return number


def _words(texts: Sequence[str], space: str) -> tuple[list[str], Int64[np.ndarray, "texts"]]:
    """The words of all texts, and how many each has."""
    joined = " ".join(texts)
    if _is_regular(joined, space):
        return joined.split(" "), np.fromiter((text.count(" ") + 1 for text in texts), np.int64, len(texts))
    lists = [text.split(" ") if _is_regular(text, space) else [text] for text in texts]
    return list(chain.from_iterable(lists)), np.fromiter(map(len, lists), np.int64, len(lists))


def _is_regular(text: str, space: str) -> bool:
    """Whether single spaces separate its words; of texts joined with spaces, whether this holds for all of them."""
    return bool(text) and "  " not in text and space not in text and text[0] != " " != text[-1]
