"""TokenizedText: the tokens a model reads, and which of them are special tokens, punctuation or parts of a word."""

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
WORD_START = "▁Ġ "
"""What tokenizers put before the first piece of a word."""


@dataclass(frozen=True, slots=True, eq=False)
class TokenizedText:
    """One text, or a pair of sentences, as a model reads it."""

    ids: Int[Tensor, " t"]
    tokens: list[str]
    delimiters: Bool[Tensor, " t"]
    """Special tokens that end or separate sentences ([SEP], </s>), without the one that begins the text."""
    punctuation: Bool[Tensor, " t"]
    segments: Int[Tensor, " t"] | None = None
    """Which of two sentences a token belongs to; −1 for special tokens."""
    words: list[int | None] | None = None
    """Which word a token is a piece of; None for special tokens."""
    vectors: Float[Tensor, "t d"] | None = None
    """The model's embedding of each token, by which the pattern "related" compares tokens."""

    def __len__(self) -> int:
        return len(self.tokens)

    @classmethod
    def from_ids(cls, ids: Sequence[int] | Tensor, tokens: Sequence[str] | None = None) -> TokenizedText:
        """A text of which only the token ids are known, and perhaps the tokens."""
        ids = torch.as_tensor(ids)
        if ids.dim() != 1 or len(ids) == 0:
            raise ValueError(f"a text is one list of token ids, got shape {list(ids.shape)}")
        tokens = [str(x) for x in ids.tolist()] if tokens is None else list(tokens)
        if len(tokens) != len(ids):
            raise ValueError(f"there are {len(ids)} token ids and {len(tokens)} tokens; give one token for each id")
        punctuation = torch.tensor([token.strip(WORD_START) in PUNCTUATION for token in tokens])
        return cls(ids.cpu(), tokens, torch.zeros(len(tokens), dtype=torch.bool), punctuation)

    @classmethod
    def encode(
        cls,
        tokenizer: Any,
        first: str,
        second: str | None = None,
        max_length: int | None = None,
        *,
        is_target: bool = False,
    ) -> TokenizedText:
        """Encode a sentence, or a pair of them, with a Hugging Face tokenizer and its special tokens.

        `is_target`: as a target of the model, where its tokenizer treats sources and targets differently.
        """
        for text in (first, second or ""):
            text.encode("utf-8")  # half of a surrogate pair is no text: a UnicodeEncodeError that says where it is
        options: dict[str, Any] = {"truncation": max_length is not None, "max_length": max_length}
        if is_target:
            encoding = tokenizer(text_target=first, **options)
        else:
            encoding = tokenizer(first, second, **options) if second is not None else tokenizer(first, **options)
        ids: list[int] = encoding["input_ids"]
        if not ids:
            raise ValueError(f"the tokenizer makes no token of the text {first[:40]!r}; give one with words in it")
        plain = cls.from_ids(ids, tokenizer.convert_ids_to_tokens(ids))
        special = torch.tensor([x in set(tokenizer.all_special_ids) for x in ids])
        delimiters = special.clone()
        delimiters[0] = False
        segments = words = None
        if getattr(tokenizer, "is_fast", False):
            words = encoding.word_ids(0)
            if second is not None:
                segments = torch.tensor([-1 if x is None else x for x in encoding.sequence_ids(0)])
        return cls(plain.ids, plain.tokens, delimiters, plain.punctuation & ~special, segments, words)
