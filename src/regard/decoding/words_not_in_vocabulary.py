"""The words of a classified text, and which of them are not in the model's vocabulary."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..data.batch import UNKNOWN

if TYPE_CHECKING:
    from .classification import Classification


@dataclass(frozen=True)
class TextWords:
    """The words of a text; `word_of_token` has the word of each token, `unknown` the indices of unknown words."""

    words: list[str]
    word_of_token: list[int]
    unknown: list[int]
    tokenizer: Any

    @classmethod
    def of(cls, result: Classification, tokenizer: Any) -> TextWords:
        ids = result.numbers[:-1].tolist()
        word_of_token = tokenizer.words(ids)
        words = result.source.split()
        if len(words) != max(word_of_token) + 1:  # the tokenizer does not split words at spaces
            words = [""] * (max(word_of_token) + 1)
            for word, piece in zip(word_of_token, tokenizer.pieces(ids), strict=True):
                words[word] += piece.replace("▁", "")
        ids_of_word: list[list[int]] = [[] for _ in words]
        for i, word in zip(ids, word_of_token, strict=True):
            ids_of_word[word].append(i)
        unknown = [
            n
            for n, word_ids in enumerate(ids_of_word)
            # A word of which only the punctuation is unknown is known.
            if UNKNOWN in word_ids
            and (set(word_ids) == {UNKNOWN} or UNKNOWN in tokenizer.encode(_strip_punctuation(words[n])))
        ]
        return cls(words, word_of_token, unknown, tokenizer)

    @property
    def all_unknown(self) -> bool:
        return len(self.unknown) == len(self.words)

    def marked(self) -> list[str]:
        """The words, unknown ones in ⟨⟩."""
        return [f"⟨{word}⟩" if n in self.unknown else word for n, word in enumerate(self.words)]

    def warning(self) -> str:
        """A warning about the unknown words; "" if there are none."""
        if not self.unknown:
            return ""
        if self.all_unknown:
            return "the model knows no word of this, so its answer says nothing about it"
        message = "the model does not know what stands in ⟨⟩, or a part of it"
        for n in self.unknown:
            bare = _strip_punctuation(self.words[n])
            if bare not in ("", self.words[n]) and UNKNOWN not in self.tokenizer.encode(bare):
                return f"{message}; it knows {bare!r}, so put a space between it and the punctuation"
        return message


def _strip_punctuation(word: str) -> str:
    return re.sub(r"^\W+|\W+$", "", word)
