"""Ids for words that are not in a vocabulary, so that a decoder can copy them from the source."""

from __future__ import annotations

import json
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .special_tokens import UNKNOWN

if TYPE_CHECKING:
    from collections.abc import Iterable

_NAME = "<unknown {}>"  # no word of a text: it has a space


@dataclass(frozen=True)
class UnknownWords:
    """An unknown word w has the id `first` + crc32(w) mod `count`; these are the last ids of the vocabulary.

    See et al. 2017 number the unknown words of each source. A hash needs no source, so each side is encoded alone. Two
    different unknown words share an id with probability 1/count; `words` then keeps the first of them.
    """

    first: int
    count: int
    normalizer: Any

    @classmethod
    def of(cls, backend: Any) -> UnknownWords | None:
        """Those of a tokenizer of the library; None where it has none."""
        first = backend.token_to_id(_NAME.format(0))
        if first is None:
            return None
        count = backend.get_vocab_size() - first
        if count < 1 or backend.token_to_id(_NAME.format(count - 1)) != first + count - 1 or backend.normalizer is None:
            raise ValueError(f"the vocabulary has {_NAME.format(0)!r}, but does not end in ids of unknown words")
        return cls(first, count, backend.normalizer)

    @classmethod
    def add_ids(cls, backend: Any, count: int) -> Any:
        """The same tokenizer of the library with `count` ids for unknown words at the end of its vocabulary."""
        values = json.loads(backend.to_str())
        vocabulary = values["model"]["vocab"]
        for number in range(count):
            vocabulary[_NAME.format(number)] = len(vocabulary)
        return type(backend).from_str(json.dumps(values))

    def __contains__(self, token: int) -> bool:
        return token >= self.first

    def token(self, word: str) -> int:
        """The id of an unknown word."""
        return self.first + zlib.crc32(self.normalizer.normalize_str(word).encode("utf-8")) % self.count

    def tokens(self, text: str, encoding: Any) -> list[int]:
        """The ids of an encoding, with those of unknown words in place of <unk>."""
        words = (text[begin:end] for begin, end in encoding.offsets)
        return [self.token(word) if i == UNKNOWN else i for i, word in zip(encoding.ids, words, strict=True)]

    def words(self, text: str, encoding: Any) -> dict[int, str]:
        """The unknown words of a text, by their ids."""
        words: dict[int, str] = {}
        for word in _unknown(text, encoding):
            words.setdefault(self.token(word), word)
        return words

    def absent(self, text: str, encoding: Any, words: dict[int, str]) -> list[str]:
        """The unknown words of a text that are not among `words`, those of a source. An equal id is not enough."""
        normalized = {i: self.normalizer.normalize_str(word) for i, word in words.items()}
        return [
            word
            for word in _unknown(text, encoding)
            if normalized.get(self.token(word)) != self.normalizer.normalize_str(word)
        ]

    def replace_ids(self, tokens: Iterable[int], pieces: Iterable[str], words: dict[int, str]) -> list[str]:
        """The pieces, with the words in place of their ids; <unk> for an id that none of them has."""
        return [words.get(i, "<unk>") if i in self else piece for i, piece in zip(tokens, pieces, strict=True)]


def _unknown(text: str, encoding: Any) -> list[str]:
    """The words of a text that its encoding has as <unk>."""
    pairs = zip(encoding.ids, encoding.offsets, strict=True)
    return [text[begin:end] for i, (begin, end) in pairs if i == UNKNOWN]
