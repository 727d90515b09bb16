"""Token labels: the word that each token is part of, and the special tokens, as far as the tokens alone tell."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from ...seeing.alignment.word_level_weights import group_pieces
from ...seeing.capture.tokenized_text import WORD_START, TokenizedText

if TYPE_CHECKING:
    from collections.abc import Sequence

SPECIAL = re.compile(r"\[[A-Z]+\d*\]|</?[a-z]+>|<\|.+\|>|<(start|end)_of_\w+>")


@dataclass(frozen=True, slots=True)
class TokenLabels:
    """The tokens along one side of a matrix."""

    tokens: list[str]
    words: list[int]
    """The number of each token's word; a special token is a word of its own."""
    special: list[bool]

    @classmethod
    def of(cls, tokens: Sequence[str]) -> TokenLabels:
        """By the marks of tokenizers: ## before a piece that continues a word, ▁ or Ġ before one that begins a word."""
        special = [SPECIAL.fullmatch(token) is not None for token in tokens]
        continues = any(token.startswith("##") for token in tokens)
        begins = any(token[:1] in WORD_START[:2] for token in tokens if token)
        words, word = [], -1
        for at, token in enumerate(tokens):
            if continues:
                new = not token.startswith("##")
            elif begins:
                new = token[:1] in WORD_START[:2] and (at == 0 or tokens[at - 1] not in WORD_START)
            else:
                new = True
            if at == 0 or new or special[at] or special[at - 1]:
                word += 1
            words.append(word)
        return cls(list(tokens), words, special)

    @classmethod
    def of_text(cls, text: TokenizedText) -> TokenLabels:
        """By the word numbers of the tokenizer, where they are known."""
        if text.words is None:
            return cls.of(text.tokens)
        return cls(text.tokens, group_pieces(text)[0], [word is None for word in text.words])

    @classmethod
    def positions(cls, count: int) -> TokenLabels:
        """Position numbers, for where the tokens are not known."""
        return cls([str(at) for at in range(count)], list(range(count)), [False] * count)

    def fit(self, count: int) -> TokenLabels:
        """Cut or padded to `count` labels: a search may run one step more than it keeps, and padding has no tokens."""
        more = count - len(self.tokens)
        if more <= 0:
            return TokenLabels(self.tokens[:count], self.words[:count], self.special[:count])
        last = self.words[-1] if self.words else -1
        return TokenLabels(
            [*self.tokens, *[""] * more],
            [*self.words, *range(last + 1, last + 1 + more)],
            [*self.special, *[True] * more],
        )

    def text(self) -> TokenizedText:
        """The text for head patterns where only the tokens are known: equal tokens get equal ids."""
        numbers = {token: at for at, token in enumerate(dict.fromkeys(self.tokens))}
        plain = TokenizedText.from_ids([numbers[token] for token in self.tokens], self.tokens)
        delimiters = torch.tensor(self.special)
        delimiters[0] = False
        words: list[int | None] = [
            None if special else word for special, word in zip(self.special, self.words, strict=True)
        ]
        return TokenizedText(
            plain.ids, plain.tokens, delimiters, plain.punctuation & ~torch.tensor(self.special), words=words
        )
