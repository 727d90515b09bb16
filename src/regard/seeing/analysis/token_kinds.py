"""Text: what the patterns of heads are about: which token stands where, and what kind of token it is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jaxtyping import Bool, Float, Int
    from torch import Tensor

PUNCTUATION = frozenset(".,")
"""What Clark et al. count as punctuation."""
MARKS = "▁Ġ "
"""What tokenizers put before a piece that begins a word."""


@dataclass(frozen=True, slots=True, eq=False)
class Text:
    """One text as a model reads it, token by token."""

    ids: Int[Tensor, " t"]
    tokens: list[str]
    delimiters: Bool[Tensor, " t"]
    """Special tokens that end or part sentences ([SEP], </s>), not the one that begins the text."""
    punctuation: Bool[Tensor, " t"]
    segments: Int[Tensor, " t"] | None = None
    """Which of two sentences a token belongs to; −1 for special tokens."""
    words: list[int | None] | None = None
    """Which word a token is a piece of; None for special tokens."""

    vectors: Float[Tensor, "t d"] | None = None
    """The model's embedding of each token, by which tokens are related."""

    def __len__(self) -> int:
        return len(self.tokens)

    @classmethod
    def plain(cls, ids: Sequence[int] | Tensor, tokens: Sequence[str] | None = None) -> Text:
        """A text of which only the tokens are known."""
        ids = torch.as_tensor(ids)
        if ids.dim() != 1 or len(ids) == 0:
            raise ValueError(f"a text is one list of token numbers, got shape {list(ids.shape)}")
        tokens = [str(x) for x in ids.tolist()] if tokens is None else list(tokens)
        if len(tokens) != len(ids):
            raise ValueError(f"{len(ids)} token numbers and {len(tokens)} tokens; there must be one of each")
        punctuation = torch.tensor([token.strip(MARKS) in PUNCTUATION for token in tokens])
        return cls(ids.cpu(), tokens, torch.zeros(len(tokens), dtype=torch.bool), punctuation)

    @classmethod
    def encoded(
        cls,
        tokenizer: Any,
        first: str,
        second: str | None = None,
        longest: int | None = None,
        *,
        written: bool = False,
    ) -> Text:
        """One sentence, or a pair of them, through a Hugging Face tokenizer with its special tokens.

        `written`: as the model writes it, where that is not how it reads (translators of two languages).
        """
        options: dict[str, Any] = {"truncation": longest is not None, "max_length": longest}
        if written:
            coded = tokenizer(text_target=first, **options)
        else:
            coded = tokenizer(first, second, **options) if second is not None else tokenizer(first, **options)
        ids: list[int] = coded["input_ids"]
        if not ids:
            raise ValueError(f"the tokenizer makes no token of the text {first[:40]!r}; give one with words in it")
        plain = cls.plain(ids, tokenizer.convert_ids_to_tokens(ids))
        special = torch.tensor([x in set(tokenizer.all_special_ids) for x in ids])
        delimiters = special.clone()
        delimiters[0] = False
        segments = words = None
        if getattr(tokenizer, "is_fast", False):
            words = coded.word_ids(0)
            if second is not None:
                segments = torch.tensor([-1 if x is None else x for x in coded.sequence_ids(0)])
        return cls(plain.ids, plain.tokens, delimiters, plain.punctuation & ~special, segments, words)
