"""Encodes a corpus by looking up its words: most of them were seen before."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from jaxtyping import Int32, Int64

    FlatIds = tuple[Int32[np.ndarray, "tokens"], Int64[np.ndarray, "texts"]]

MOST_CHARACTERS = 1 << 23
"""The cache is emptied when its words have more. Words of 7 letters then take about 0.35 GB with their ids."""
MEAN_LENGTH = 32  # characters of the words of a text, at most


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
